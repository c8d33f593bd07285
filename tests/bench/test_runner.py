"""The runner's own options: what is chosen, what is dropped, all mistakes at once."""

import pytest

from convoy.bench.runner import BenchConfig, Dropped, read_runner


def read(line: str) -> BenchConfig:
    config, problems = read_runner(line.split())
    assert problems == []
    return config


def told(line: str) -> list[str]:
    return [str(problem) for problem in read_runner(line.split())[1]]


def test_nothing_asked_means_all_of_the_usual_file() -> None:
    assert read("") == BenchConfig(("benchmarks.yml",), (), False, False, False, ())


def test_what_chooses_is_taken() -> None:
    line = "--spec a.yml b.yml --benchmark x y --include-convergence --allow-wandb --compile-only"

    assert read(line) == BenchConfig(("a.yml", "b.yml"), ("x", "y"), True, True, True)


def test_an_option_may_be_given_again_and_in_short() -> None:
    assert read("--bench x --spec=a --benchmark=y --spec b").benchmark == ("x", "y")
    assert read("--bench x --spec=a --benchmark=y --spec b").spec == ("a", "b")


IDLE = [
    *("--additional-metrics", "--csv-metrics a b", "--custom-metrics-files m.py", "--log-dir out"),
    *("--logging DEBUG", "--timeout 90", "--stop-on-error", "--profile", "--gc-monitor"),
    *("--requirements-file r.txt", "--no-code-sync", "--remove-dirs-after"),
    *("--upload-checkpoints wandb s3", "--progress-trace-period 0.5"),
]


@pytest.mark.parametrize("line", IDLE)
def test_an_option_without_effect_is_taken_and_dropped_with_a_reason(line: str) -> None:
    (dropped,) = read(line).dropped

    assert dropped.word == line and dropped.reason


def test_nothing_else_is_dropped() -> None:
    config = read(" ".join(["--spec a --benchmark b --allow-wandb", *IDLE]))

    assert [one.word for one in config.dropped] == IDLE
    assert config.dropped[0] == Dropped("--additional-metrics", "no results are written yet")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--bencmark x", "unknown option --bencmark; did you mean --benchmark"),
        ("--no-code", ""),
        ("--pro", "option --pro is ambiguous: it could be --profile, --progress-trace-period"),
        ("word", "unexpected word 'word'"),
        ("--spec", "--spec needs a value"),
        ("--spec=", "--spec needs a value"),
        ("--benchmark --profile", "--benchmark needs a value"),
        ("--log-dir", "--log-dir needs a value"),
        ("--timeout soon", "--timeout expects a number, got 'soon'"),
        ("--timeout 0", "--timeout must be above 0, got 0"),
        ("--timeout -5", "--timeout must be above 0, got -5"),
        ("--timeout nan", "--timeout expects a finite number, got nan"),
        ("--logging LOUD", "--logging cannot be 'LOUD'; known are CRITICAL, DEBUG, ERROR, INFO, W"),
        (
            "--upload-checkpoints s3 ftp",
            "--upload-checkpoints cannot be 'ftp'; known are s3, wandb",
        ),
        ("--profile=yes", "--profile takes no value, got 'yes'"),
    ],
)
def test_one_mistake_is_one_line(line: str, text: str) -> None:
    found = told(line)

    assert len(found) == (1 if text else 0)
    assert not text or found[0].startswith(text)


def test_all_mistakes_come_together() -> None:
    assert len(told("word --spcc x --profile=1 --spec --timeout x --logging y --log-dir")) == 7
