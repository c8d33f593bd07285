"""convoy run: commands that resume, validate or average an existing or a missing run."""

import shutil
from pathlib import Path

import pytest
from support.dry_runs import Meaning, dry, readme_row, refusals, values
from support.readme_commands import ROWS, Row
from support.run_convoy import TINY, convoy

VERBS = {
    "restore.py": "resume",
    "validate.py": "validate",
    "validation.py": "validate",
    "weight_avg.py": "average",
}
RUN_ROWS = [row for row in ROWS if "RUN" in row.arguments and row.program.split()[1] in VERBS]
ROWS_WITHOUT_CONFIG = [row for row in RUN_ROWS if "--config" not in row.arguments]
ROWS_WITH_CONFIG = [row for row in RUN_ROWS if "--config" in row.arguments]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets") / "run"
    assert convoy("train", *TINY, "--output", folder).code == 0
    return folder


@pytest.fixture(autouse=True)
def _empty_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command_for_run(row: Row, run: Path) -> str:
    return row.line.replace("RUN", str(run))


def training_values(plan: Meaning) -> tuple[object, ...]:
    batch, updates = plan["batch"]["samples_per_update"], plan["updates"]["total"]
    return plan["model"], plan["data"], batch, updates, plan["learning_rate"]["base"]


# 8 images × 2 micro-batches; 96 samples are 6 updates, in each of 2 epochs.
TRAINING_VALUES = ("resnet8", "shapes", 16, 12, 0.02)


def test_the_readmes_have_six_commands_for_a_run() -> None:
    assert (len(ROWS_WITHOUT_CONFIG), len(ROWS_WITH_CONFIG)) == (4, 2)


@pytest.mark.parametrize("row", RUN_ROWS)
def test_the_plan_is_that_of_the_run(row: Row, run: Path) -> None:
    description = dry(command_for_run(row, run))
    verb = VERBS[description["program"]]

    assert training_values(description["plan"]) == TRAINING_VALUES
    assert description["command"].split()[:3] == ["convoy", verb, str(run)]
    assert description["dialect"] == row.dialect


@pytest.mark.parametrize("row", ROWS_WITH_CONFIG)
def test_the_configuration_of_the_command_is_dropped_and_reported(row: Row, run: Path) -> None:
    description = dry(command_for_run(row, run))
    name = row.arguments.split()[1]

    assert {"word": f"--config {name}", "reason": "a run has its own configuration"} in (
        description["dropped"]
    )
    assert "--config" not in description["command"]


@pytest.mark.parametrize("row", ROWS_WITHOUT_CONFIG)
def test_a_missing_run_without_a_configuration_has_no_plan(row: Row) -> None:
    description = dry(row.line)

    assert description["plan"] is None
    assert description["command"] == f"convoy {VERBS[description['program']]} RUN"


@pytest.mark.parametrize("row", ROWS_WITH_CONFIG)
def test_the_plan_of_a_missing_run_is_that_of_the_named_configuration(row: Row) -> None:
    description = dry(row.line)
    name = row.arguments.split()[1]

    assert description["plan"]["model"] == "resnet50"
    assert description["command"].startswith(f"convoy validate RUN --config {name} ")
    assert all("--config" not in entry["word"] for entry in description["dropped"])


def test_training_starts_a_new_run_and_drops_the_given_one(run: Path) -> None:
    row = readme_row("train.py", "--shards 1", "RUN")
    description = dry(command_for_run(row, run))

    assert description["plan"]["model"] == "resnet50"
    assert description["command"].startswith("convoy train --config mk2_resnet50_bn_64ipus ")
    assert description["dropped"][-1] == {
        "word": str(run),
        "reason": "train.py starts a new run; restore.py resumes one",
    }


def test_a_checkpoint_has_the_configuration_of_its_run(run: Path) -> None:
    checkpoint = run / "checkpoints" / "update-12"
    description = dry(f"python3 validate.py --checkpoint-input-path {checkpoint}")

    assert training_values(description["plan"]) == TRAINING_VALUES
    assert description["command"] == f"convoy validate {checkpoint}"


def test_a_checkpoint_without_its_run_uses_the_configuration(run: Path, tmp_path: Path) -> None:
    checkpoint = shutil.copytree(run / "checkpoints" / "update-12", tmp_path / "update-12")
    description = dry(
        f"python3 validation.py --config mk2_resnet8_test --restore-path {checkpoint}"
    )

    assert description["plan"]["model"] == "resnet8"
    assert description["command"].startswith(
        f"convoy validate {checkpoint} --config mk2_resnet8_test"
    )


def test_options_of_a_validation_do_not_change_the_training(run: Path) -> None:
    words = "--batch-size 64 --log-dir elsewhere --replicas 999 --epochs 7"
    description = dry(f"python3 validation.py --restore-path {run} {words}")

    assert training_values(description["plan"]) == TRAINING_VALUES
    assert "--valid-batch-size 64" in description["command"]


def test_options_of_a_resumed_run_are_part_of_its_plan(run: Path) -> None:
    description = dry(f"python3 restore.py --restore-path {run} --logs-per-epoch 3")

    assert values(description["plan"])["logs_per_epoch"] == 3
    assert description["command"] == f"convoy resume {run} --logs-per-epoch 3"


def test_a_changed_training_is_refused_before_it_starts(run: Path) -> None:
    (message,) = refusals(f"python3 restore.py --restore-path {run} --epochs 7")

    assert message.startswith("this would change the training results: --epochs was 2, now 7")


@pytest.mark.parametrize(
    ("program", "flag"),
    [("restore.py", "--checkpoint-input-path"), ("weight_avg.py --mode mean", "--restore-path")],
)
def test_a_command_without_a_run_is_refused_with_the_missing_flag(program: str, flag: str) -> None:
    assert refusals(f"python3 {program}") == [f"{program.split()[0]} needs {flag} RUN"]
