"""convoy run: every line of the READMEs, as it is written."""

import shlex
from pathlib import Path

import pytest
from dry_runs import Meaning, dry, refusals, repeated, the_row, values
from golden.readme_plans import PLANS, Figures
from readme_commands import ROWS, Row
from running import convoy

PLANNED = [(row, plan) for row, plan in zip(ROWS, PLANS, strict=True) if plan is not None]


@pytest.fixture(autouse=True)
def _nothing_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file of the reader's own stands in for what a line leaves out."""
    monkeypatch.chdir(tmp_path)


def figures(plan: Meaning) -> Figures:
    return Figures(
        plan["model"],
        plan["data"],
        plan["batch"]["samples_per_update"],
        len(plan["stages"]),
        plan["topology"]["replicas"],
        plan["learning_rate"]["base"],
        plan["updates"]["epochs"],
    )


def test_all_lines_are_here() -> None:
    assert (len(ROWS), len(PLANNED)) == (54, 43)


@pytest.mark.parametrize(("row", "expected"), PLANNED)
def test_a_line_comes_to_what_its_application_would_do(row: Row, expected: Figures) -> None:
    meaning = dry(row.line)
    verb = "validate" if "valid" in meaning["program"] else "train"

    assert figures(meaning["plan"]) == expected
    assert meaning["dialect"] == row.dialect
    assert meaning["program"] == Path(row.start.split()[1]).name
    assert shlex.split(meaning["command"])[:2] == ["convoy", verb]
    # The canonical command says exactly the same.
    assert repeated(meaning, target="RUN") == values(meaning["plan"])
    assert_every_option_is_told(row, meaning)


def test_an_option_without_its_value_is_told_by_name() -> None:
    line = the_row("--ipus-per-replica --mpi-local-args").line

    assert refusals(line) == ["--ipus-per-replica needs a value, as in `--ipus-per-replica N`"]


def test_python_without_a_program_is_told_what_it_lacks() -> None:
    line = the_row("python3 --config").line

    assert refusals(line) == [
        "python3 is followed by --config where its program should be; name it first, as in "
        "`convoy run -- python3 train.py --config NAME`"
    ]


@pytest.mark.parametrize("row", [row for row in ROWS if "my_config" in row.tail])
def test_a_configuration_that_nobody_has_written_is_told(row: Row) -> None:
    assert refusals(row.line) == [
        "--config 'my_config' is not shipped, and no configs.yml here defines it; "
        "`convoy configs` lists those shipped"
    ]


def test_a_benchmark_that_there_is_not_is_told_by_name() -> None:
    (told,) = refusals(the_row("--benchmark NAME").line)

    assert told.startswith("--benchmark 'NAME' is unknown; known are G16_EfficientNet_B4_pipelined")
    assert told.endswith(", …") and told.count("G16_") == 1


def test_help_is_that_of_the_dialect_and_ends_well() -> None:
    said = convoy("run", "--", *shlex.split(the_row("--help").line))

    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("usage: train.py ")
    assert "--model-size" in said.out and "--optimiser" in said.out


def test_a_cluster_is_counted_in_processes_and_hosts() -> None:
    topology = dry(the_row("mpirun", "TF_CONFIG").line)["plan"]["topology"]
    large = dry(the_row("--num-replicas=16 --num-instances=16").line)["plan"]["topology"]

    assert topology == {"hosts": 2, "instances": 2, "replicas": 2, "stages": 1, "processes": 2}
    assert large == {"hosts": 4, "instances": 16, "replicas": 16, "stages": 4, "processes": 64}


def assert_every_option_is_told(row: Row, meaning: Meaning) -> None:
    """It became something or was left out."""
    told = [one["word"] for one in meaning["became"] + meaning["dropped"]]
    typed = [word.partition("=")[0] for word in shlex.split(row.tail) if word.startswith("--")]
    untold = [word for word in typed if not any(one.startswith(word) for one in told)]
    dropped = [one["word"] for one in meaning["dropped"]]

    assert set(untold) <= {"--config", "--restore-path"}
    assert len(dropped) == len(set(dropped))
