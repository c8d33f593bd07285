"""The command line of the benchmark runner: its options, and the variants it selects."""

from pathlib import Path

import pytest

from convoy.bench import selection as module
from convoy.bench.selection import (
    BenchConfig,
    Selection,
    parse_runner_args,
    select_benchmarks,
    strip_wandb_options,
)
from convoy.config.schema import DroppedWord
from convoy.errors import ConfigError


def read(line: str) -> BenchConfig:
    config, problems = parse_runner_args(line.split())
    assert problems == []
    return config


def problem_lines(line: str) -> list[str]:
    return [str(problem) for problem in parse_runner_args(line.split())[1]]


def test_without_arguments_the_default_file_is_selected() -> None:
    assert read("") == BenchConfig(("benchmarks.yml",), (), False, False, False, ())


def test_options_that_select_benchmarks_are_parsed() -> None:
    line = "--spec a.yml b.yml --benchmark x y --include-convergence --allow-wandb --compile-only"

    assert read(line) == BenchConfig(("a.yml", "b.yml"), ("x", "y"), True, True, True)


def test_an_option_can_be_repeated_and_abbreviated() -> None:
    assert read("--bench x --spec=a --benchmark=y --spec b").benchmark == ("x", "y")
    assert read("--bench x --spec=a --benchmark=y --spec b").spec == ("a", "b")


DROPPED_FLAGS = [
    *("--additional-metrics", "--csv-metrics a b", "--custom-metrics-files m.py", "--log-dir out"),
    *("--logging DEBUG", "--timeout 90", "--stop-on-error", "--profile", "--gc-monitor"),
    *("--requirements-file r.txt", "--no-code-sync", "--remove-dirs-after"),
    *("--upload-checkpoints wandb s3", "--progress-trace-period 0.5"),
]


@pytest.mark.parametrize("line", DROPPED_FLAGS)
def test_an_option_without_effect_is_accepted_and_dropped_with_a_reason(line: str) -> None:
    (dropped,) = read(line).dropped

    assert dropped.word == line and dropped.reason


def test_nothing_else_is_dropped() -> None:
    config = read(" ".join(["--spec a --benchmark b --allow-wandb", *DROPPED_FLAGS]))

    assert [word.word for word in config.dropped] == DROPPED_FLAGS
    assert config.dropped[0] == DroppedWord("--additional-metrics", "results are not written yet")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--bencmark x", "unknown option --bencmark; did you mean --benchmark"),
        ("--no-code", ""),
        ("--pro", "option --pro is ambiguous: it could be --profile, --progress-trace-period"),
        ("word", "unexpected argument 'word'"),
        ("--spec", "--spec needs a value"),
        ("--spec=", "--spec needs a value"),
        ("--benchmark --profile", "--benchmark needs a value"),
        ("--log-dir", "--log-dir needs a value"),
        ("--timeout soon", "--timeout expects a number, got 'soon'"),
        ("--timeout 0", "--timeout must be greater than 0, got 0"),
        ("--timeout -5", "--timeout must be greater than 0, got -5"),
        ("--timeout nan", "--timeout expects a finite number, got nan"),
        (
            "--logging LOUD",
            "--logging cannot be 'LOUD'; choose from CRITICAL, DEBUG, ERROR, INFO, W",
        ),
        (
            "--upload-checkpoints s3 ftp",
            "--upload-checkpoints cannot be 'ftp'; choose from s3, wandb",
        ),
        ("--profile=yes", "--profile takes no value, got 'yes'"),
    ],
)
def test_each_mistake_is_reported_in_one_line(line: str, text: str) -> None:
    lines = problem_lines(line)

    assert len(lines) == (1 if text else 0)
    assert not text or lines[0].startswith(text)


def test_all_problems_are_reported_together() -> None:
    assert (
        len(problem_lines("word --spcc x --profile=1 --spec --timeout x --logging y --log-dir"))
        == 7
    )


BENCHMARKS = """
shared: &shared
  location: apps
  data: {throughput: {regexp: 'x: (.*)'}}
  derived: {twice: {expr: '2 * {throughput}'}}
infer:
  <<: *shared
  parameters: {size: '1,2'}
  cmd: python3 infer.py --size {size} --data $DATA
train:
  <<: *shared
  cmd: python3 train.py --wandb --wandb-project mine --seed 1
train_conv:
  <<: *shared
  cmd: python3 train.py
"""


@pytest.fixture(autouse=True)
def _benchmark_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write `local.yml` into the working directory, and one shipped file."""
    monkeypatch.chdir(tmp_path)
    Path("local.yml").write_text(BENCHMARKS)
    shipped = tmp_path / "shipped"
    shipped.mkdir()
    (shipped / "ours.yml").write_text("ours: {cmd: python3 ours.py}\n")
    monkeypatch.setattr(module, "SHIPPED_DIR", shipped)


def run(line: str) -> Selection:
    return select_benchmarks(line.split(), {"DATA": "/data"})


def names(line: str) -> list[str]:
    return [variant.name for variant in run(line).variants]


def error_lines(line: str) -> list[str]:
    with pytest.raises(ConfigError) as error:
        run(line)
    return str(error.value).splitlines()


def test_convergence_runs_are_excluded_and_reported() -> None:
    selection = run("--spec local.yml")

    assert [variant.name for variant in selection.variants] == [
        "infer_size_1",
        "infer_size_2",
        "train",
    ]
    assert selection.notes == (
        "1 of 3 benchmarks are convergence runs and not selected; "
        "add --include-convergence, or list their names",
    )


def test_convergence_runs_are_selected_by_option_or_name() -> None:
    assert names("--spec local.yml --include-convergence")[-1] == "train_conv"
    assert run("--spec local.yml --include-convergence").notes == ()
    assert names("--spec local.yml --benchmark train_conv") == ["train_conv"]


def test_a_convergence_run_is_identified_by_its_suffix() -> None:
    Path("benchmarks.yml").write_text(
        "a_pod64_conv: {cmd: x}\na_conv_pod64: {cmd: x}\na_convergence: {cmd: x}\n"
    )

    assert names("") == ["a_conv_pod64", "a_convergence"]


def test_benchmarks_and_variants_are_selected_by_name_in_order() -> None:
    assert names("--spec local.yml --benchmark train infer_size_2") == ["train", "infer_size_2"]
    assert names("--spec local.yml --benchmark infer_size_2 infer") == [
        "infer_size_2",
        "infer_size_1",
    ]


def test_the_command_of_a_variant_is_ready_to_run() -> None:
    (variant,) = run("--spec local.yml --benchmark infer_size_2").variants

    assert variant.words == ("python3", "infer.py", "--size", "2", "--data", "/data")


def test_an_unknown_name_is_refused_with_near_names() -> None:
    (line,) = error_lines("--spec local.yml --benchmark infer_size_3")

    assert line.startswith("--benchmark 'infer_size_3' is unknown; did you mean infer_size_")


def test_an_entry_that_others_merge_is_not_a_benchmark() -> None:
    assert error_lines("--spec local.yml --benchmark shared") == [
        "--benchmark 'shared' is not a benchmark: it has no cmd"
    ]


def test_wandb_options_are_dropped_and_reported() -> None:
    selection = run("--spec local.yml --benchmark train")

    assert " ".join(selection.variants[0].words) == "python3 train.py --seed 1"
    assert selection.dropped[:2] == (
        DroppedWord("--wandb", "dropped without --allow-wandb"),
        DroppedWord("--wandb-project", "dropped without --allow-wandb"),
    )


def test_wandb_options_stay_if_allowed() -> None:
    selection = run("--spec local.yml --benchmark train --allow-wandb")

    assert "--wandb --wandb-project mine" in " ".join(selection.variants[0].words)
    assert [word.word for word in selection.dropped] == ["location", "derived"]


@pytest.mark.parametrize(
    ("line", "left"),
    [
        ("train.py --wandb", "train.py"),
        ("train.py --wandb --seed 1", "train.py --seed 1"),
        ("train.py --wandb data", "train.py data"),
        ("train.py --wandb-id 5 data", "train.py data"),
        ("train.py --wandb-id=5 data", "train.py data"),
        ("train.py --wandb-weight-histogram --seed 1", "train.py --seed 1"),
        ("train.py --wandb-project a --wandb-id b c", "train.py c"),
        (
            "train.py --data-dir /home/wandb --out=/wandb",
            "train.py --data-dir /home/wandb --out=/wandb",
        ),
    ],
)
def test_wandb_options_are_removed_with_their_values(line: str, left: str) -> None:
    assert strip_wandb_options(tuple(line.split())) == tuple(left.split())


def test_compile_only_is_added_to_the_command() -> None:
    (variant,) = run("--spec local.yml --benchmark train --compile-only").variants

    assert variant.words[-1] == "--compile-only"


def test_options_without_effect_are_dropped_once_with_a_reason() -> None:
    dropped = run("--spec local.yml --timeout 5 --include-convergence").dropped

    assert [word.word for word in dropped] == [
        "--timeout 5",
        "location",
        "derived",
        "--wandb",
        "--wandb-project",
    ]


@pytest.mark.parametrize("line", ["", "--spec benchmarks.yml", "--spec apps/cnns/benchmarks.yml"])
def test_the_shipped_files_replace_a_missing_default_file(line: str) -> None:
    selection = run(line)

    assert [variant.name for variant in selection.variants] == ["ours"]
    missing = line.removeprefix("--spec ") or "benchmarks.yml"
    assert selection.notes == (f"{missing} does not exist; using the shipped files ours.yml",)


def test_the_default_file_is_used_if_it_exists() -> None:
    Path("benchmarks.yml").write_text("mine: {cmd: python3 mine.py}\n")

    assert names("") == ["mine"]
    assert run("").notes == ()


def test_another_file_that_does_not_exist_is_refused() -> None:
    assert error_lines("--spec missing.yml") == ["configuration file missing.yml does not exist"]


def test_several_files_are_merged() -> None:
    assert names("--spec local.yml benchmarks.yml local.yml") == [
        *("infer_size_1", "infer_size_2", "train", "ours")
    ]


def test_a_name_in_two_files_is_refused_with_both_locations() -> None:
    Path("more.yml").write_text("\ntrain: {cmd: x}\nshared: {a: 1}\n")

    assert error_lines("--spec local.yml more.yml") == [
        "more.yml, line 2: train is already defined in local.yml, line 10"
    ]


def test_a_file_with_only_convergence_runs_is_refused() -> None:
    Path("benchmarks.yml").write_text("a_conv: {cmd: x}\n")

    assert error_lines("") == ["all benchmarks are convergence runs; add --include-convergence"]


def test_all_problems_of_a_command_and_its_files_are_reported_together() -> None:
    Path("bad.yml").write_text("a: {cmd: x, evn: 1}\n")

    assert [
        line.split(";")[0] for line in error_lines("--tmeout 5 --spec bad.yml missing.yml")
    ] == [
        "unknown option --tmeout",
        "bad.yml, line 1: evn is not a key of a benchmark",
        "configuration file missing.yml does not exist",
    ]
    assert len(error_lines("--tmeout 5 --spec local.yml --benchmark x y")) == 3


def test_shipped_files_are_listed_in_order(tmp_path: Path) -> None:
    (tmp_path / "shipped" / "also.yml").write_text("a: {cmd: x}")
    (tmp_path / "shipped" / "note.txt").write_text("")

    assert run("").notes == (
        "benchmarks.yml does not exist; using the shipped files also.yml, ours.yml",
    )
