"""convoy run: lines that work on a run, and lines that ask for one that is not there."""

import shutil
from pathlib import Path

import pytest
from dry_runs import Meaning, dry, refusals, the_row, values
from readme_commands import ROWS, Row
from running import TINY, convoy

VERBS = {
    "restore.py": "resume",
    "validate.py": "validate",
    "validation.py": "validate",
    "weight_avg.py": "average",
}
OF_RUN = [row for row in ROWS if "RUN" in row.tail and row.start.split()[1] in VERBS]
NAMELESS = [row for row in OF_RUN if "--config" not in row.tail]
NAMED = [row for row in OF_RUN if "--config" in row.tail]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets") / "run"
    assert convoy("train", *TINY, "--output", folder).code == 0
    return folder


@pytest.fixture(autouse=True)
def _nothing_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def line_on(row: Row, run: Path) -> str:
    return row.line.replace("RUN", str(run))


def trained(plan: Meaning) -> tuple[object, ...]:
    batch, updates = plan["batch"]["samples_per_update"], plan["updates"]["total"]
    return plan["model"], plan["data"], batch, updates, plan["learning_rate"]["base"]


# 8 images × 2 micro-batches; 96 samples are 6 updates, twice.
AS_TRAINED = ("resnet8", "shapes", 16, 12, 0.02)


def test_there_are_six_lines_that_work_on_a_run() -> None:
    assert (len(NAMELESS), len(NAMED)) == (4, 2)


@pytest.mark.parametrize("row", OF_RUN)
def test_the_plan_is_that_of_the_run(row: Row, run: Path) -> None:
    meaning = dry(line_on(row, run))
    verb = VERBS[meaning["program"]]

    assert trained(meaning["plan"]) == AS_TRAINED
    assert meaning["command"].split()[:3] == ["convoy", verb, str(run)]
    assert meaning["dialect"] == row.dialect


@pytest.mark.parametrize("row", NAMED)
def test_a_run_has_its_own_configuration_and_that_is_told(row: Row, run: Path) -> None:
    meaning = dry(line_on(row, run))
    name = row.tail.split()[1]

    assert {"word": f"--config {name}", "reason": "a run has its own configuration"} in (
        meaning["dropped"]
    )
    assert "--config" not in meaning["command"]


@pytest.mark.parametrize("row", NAMELESS)
def test_without_the_folder_nothing_is_known_of_the_run(row: Row) -> None:
    meaning = dry(row.line)

    assert meaning["plan"] is None
    assert meaning["command"] == f"convoy {VERBS[meaning['program']]} RUN"


@pytest.mark.parametrize("row", NAMED)
def test_without_the_folder_a_named_configuration_says_what_was_trained(row: Row) -> None:
    meaning = dry(row.line)
    name = row.tail.split()[1]

    assert meaning["plan"]["model"] == "resnet50"
    assert meaning["command"].startswith(f"convoy validate RUN --config {name} ")
    assert all("--config" not in one["word"] for one in meaning["dropped"])


def test_a_training_begins_anew_and_says_so(run: Path) -> None:
    row = the_row("train.py", "--shards 1", "RUN")
    meaning = dry(line_on(row, run))

    assert meaning["plan"]["model"] == "resnet50"
    assert meaning["command"].startswith("convoy train --config mk2_resnet50_bn_64ipus ")
    assert meaning["dropped"][-1] == {
        "word": str(run),
        "reason": "a training begins anew; restore.py goes on, and validates what it wrote",
    }


def test_a_checkpoint_belongs_to_its_run(run: Path) -> None:
    checkpoint = run / "checkpoints" / "update-12"
    meaning = dry(f"python3 validate.py --checkpoint-input-path {checkpoint}")

    assert trained(meaning["plan"]) == AS_TRAINED
    assert meaning["command"] == f"convoy validate {checkpoint}"


def test_a_checkpoint_without_its_run_takes_the_configuration(run: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(run / "checkpoints" / "update-12", tmp_path / "update-12")
    meaning = dry(f"python3 validation.py --config mk2_resnet8_test --restore-path {alone}")

    assert meaning["plan"]["model"] == "resnet8"
    assert meaning["command"].startswith(f"convoy validate {alone} --config mk2_resnet8_test")


def test_what_is_said_to_a_validation_changes_nothing_that_was_trained(run: Path) -> None:
    words = "--batch-size 64 --log-dir elsewhere --replicas 999 --epochs 7"
    meaning = dry(f"python3 validation.py --restore-path {run} {words}")

    assert trained(meaning["plan"]) == AS_TRAINED
    assert "--valid-batch-size 64" in meaning["command"]


def test_what_is_said_to_a_resumed_run_is_part_of_its_plan(run: Path) -> None:
    meaning = dry(f"python3 restore.py --restore-path {run} --logs-per-epoch 3")

    assert values(meaning["plan"])["logs_per_epoch"] == 3
    assert meaning["command"] == f"convoy resume {run} --logs-per-epoch 3"


def test_another_training_is_refused_before_it_begins(run: Path) -> None:
    (told,) = refusals(f"python3 restore.py --restore-path {run} --epochs 7")

    assert told.startswith("this would be another training: --epoch was 2, now 7")


@pytest.mark.parametrize(
    ("program", "flag"),
    [("restore.py", "--checkpoint-input-path"), ("weight_avg.py --mode mean", "--restore-path")],
)
def test_a_line_that_names_no_run_is_told_how(program: str, flag: str) -> None:
    assert refusals(f"python3 {program}") == [f"{program.split()[0]} needs {flag} RUN"]
