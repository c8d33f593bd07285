"""`convoy run`: command lines of the reference applications train, resume and validate."""

import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest
from support.run_convoy import CommandResult, convoy

# Options of convoy that make the commands of the applications available and small.
PYTORCH = (
    *("--precision=32.32", "--image-size=12", "--num-classes=10", "--validation-mode=none"),
    *("--threads=1", "--progress=plain", "--dataloader-worker=0"),
)
TENSORFLOW = (
    *("--precision=32.32", "--loss-scaling=1", "--no-enable-stochastic-rounding", "--stable-norm"),
    *("--weight-decay-spares=vectors", "--image-size=12", "--samples=64"),
    *("--threads=1", "--progress=plain", "--dataloader-worker=0"),
)

# 4 loader steps per epoch, with one micro-batch on each replica.
TRAIN = (
    "python3 train.py --model resnet8 --data generated --iterations 4 --micro-batch-size 4 "
    "--epoch 2 --seed 3 --norm-type group --norm-num-groups 4"
)
CIFAR = "python train.py --model-size 8 --dataset cifar-10 --generated-data --batch-size 8"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(line: str, *options: str | Path) -> CommandResult:
    return convoy("run", *options, "--", *shlex.split(line))


def summary(folder: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return record


def command(result: CommandResult) -> list[str]:
    """The printed canonical command, without `convoy`."""
    (line,) = (item for item in result.out.splitlines() if item.startswith("convoy "))
    return shlex.split(line)[1:]


@pytest.fixture(scope="module")
def reference_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of 8 updates."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    assert run(TRAIN, *PYTORCH, "--output", folder).code == 0
    return folder


def test_the_command_of_the_readme_trains(here: Path) -> None:
    line = "python3 train.py --model resnet18 --data generated --iterations 2 --micro-batch-size 4"
    options = [word for word in PYTORCH if "image" not in word]
    result = run(f"{line} --epoch 1", *options, "--image-size=32", "--output=out")
    reported = summary(here / "out")

    assert (result.code, result.err) == (0, "")
    assert (reported["model"], reported["dataset"], reported["layout"]) == (
        *("resnet18", "generated"),
        "1 replica × 1 stage",
    )
    assert (reported["updates"], reported["images"], reported["exit_reason"]) == (2, 8, "done")


def test_words_are_reported_with_their_translation() -> None:
    result = run(f"python3 -u {TRAIN[8:]} --disable-async-loading", *PYTORCH[:-1], "--output=out")
    lines = result.out.splitlines()

    assert result.code == 0
    assert "--iterations 4 → --samples 16" in lines
    assert "--disable-async-loading → --dataloader-worker 0" in lines
    assert "-u dropped: the program runs in convoy's own interpreter" in lines
    assert lines[lines.index("") - 1].startswith("convoy train --model resnet8 ")


def test_the_printed_command_gives_the_same_weights(reference_run: Path, here: Path) -> None:
    result = run(TRAIN, *PYTORCH, "--output=first")
    words = [word.replace("first", "second") for word in command(result)]

    assert convoy(*words).code == 0
    assert summary(here / "first")["weights_sha256"] == summary(reference_run)["weights_sha256"]
    assert summary(here / "second")["weights_sha256"] == summary(reference_run)["weights_sha256"]


def test_a_run_prints_its_options(reference_run: Path) -> None:
    written = (reference_run / "config.yaml").read_text()

    assert "samples: 16  # command line\n" in written
    assert "lr: 0.01  # command line\n" in written  # the default of the application


@pytest.mark.processes
def test_replicas_of_a_launcher_are_trained(here: Path) -> None:
    result = run(f"poprun --num-instances 2 --num-replicas 2 {TRAIN}", *PYTORCH, "--output=two")
    single = run(f"{TRAIN} --gradient-accumulation 2", *PYTORCH, "--output=one")
    reported = summary(here / "two")

    assert (result.code, single.code) == (0, 0)
    # 4 × 4 images per replica and epoch, 2 replicas, 2 epochs.
    assert (reported["layout"], reported["updates"], reported["images"]) == (
        "2 replicas × 1 stage",
        8,
        64,
    )
    assert "--replicas 2" in result.out and "--instances 2" in result.out
    assert reported["weights_sha256"] == summary(here / "one")["weights_sha256"]


def test_a_stopped_run_is_restored_bit_exactly(reference_run: Path, here: Path) -> None:
    first = run(TRAIN, *PYTORCH, "--output=part", "--stop-after=3")
    halfway = summary(here / "part")
    rest = run("python3 restore.py --checkpoint-input-path part")

    assert (first.code, halfway["updates"], halfway["exit_reason"]) == (75, 3, "limit")
    assert (rest.code, command(rest)) == (0, ["resume", "part"])
    assert summary(here / "part")["weights_sha256"] == summary(reference_run)["weights_sha256"]


def test_all_checkpoints_of_a_run_are_validated(reference_run: Path) -> None:
    result = run(f"python3 validate.py --checkpoint-input-path {reference_run}")
    rows = [line for line in result.out.splitlines() if "top-1" in line]

    assert (result.code, command(result)) == (0, ["validate", str(reference_run)])
    assert [Path(row.split()[0]).name for row in rows] == ["update-4", "update-8"]


def test_the_validation_command_of_the_reference_gives_the_same_score(reference_run: Path) -> None:
    """Replicas of the launcher and the log folder do not change the score."""
    poprun = "poprun --num-instances 8 --num-replicas 16 --ipus-per-replica 1"
    tensorflow = run(
        f"{poprun} python3 validation.py --log-dir logs --restore-path {reference_run}"
    )
    pytorch = run(f"python3 validate.py --checkpoint-input-path {reference_run}")
    scores = [
        [line.partition(" samples")[0] for line in result.out.splitlines() if "top-1" in line]
        for result in (tensorflow, pytorch)
    ]

    assert (tensorflow.code, tensorflow.err) == (0, "")
    assert scores[0] == scores[1] != []


def test_checkpoints_of_a_run_are_averaged(here: Path) -> None:
    assert run(TRAIN, *PYTORCH, "--output=run").code == 0
    result = run("python3 weight_avg.py --restore-path run --mode mean -N 2 --filename mean.pt")
    (average,) = (here / "run" / "checkpoints" / "averaged").glob("*/update-8")

    assert result.code == 0
    assert command(result) == shlex.split("average run --weight-avg-strategy mean --weight-avg-n 2")
    assert "--filename mean.pt dropped" in result.out
    assert f"{average.relative_to(here)}  mean of 2 checkpoints" in result.out


def test_a_tensorflow_command_line_trains(here: Path) -> None:
    result = run(f"{CIFAR} --iterations 3 --epochs 9 --log-dir logs --name-suffix one", *TENSORFLOW)
    (folder,) = (here / "logs").iterdir()
    reported = summary(folder)

    assert (result.code, result.err) == (0, "")
    assert "--epochs 9 dropped: --iterations sets the length" in result.out
    assert "--dataset cifar-10 → --num-classes 10" in result.out
    assert (reported["model"], reported["updates"], reported["images"]) == ("resnet8", 3, 24)
    assert 0 <= reported["top1"] <= 1  # validated at the end, as in the application


def test_an_untrained_network_is_validated(here: Path) -> None:
    line = f"{CIFAR} --repeat 2".replace("train.py", "validation.py")
    result = run(line, *TENSORFLOW)

    assert (result.code, result.err) == (0, "")
    assert result.out.count("random weights  top-1 ") == 2
    assert "--random-weights" in command(result)
    assert list(here.iterdir()) == []


def test_environment_variables_of_a_command_apply_to_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINE", "")  # removes the variable after the test
    result = run(f"MINE='a b' {TRAIN}", *PYTORCH, "--updates=1", "--output=out")

    assert result.code == 0
    assert os.environ["MINE"] == "a b"
    assert "\nMINE='a b' convoy train --model resnet8 " in result.out


def test_unsupported_values_are_refused_together(here: Path) -> None:
    result = run(f"{CIFAR} --iterations 3 --log-dir logs --wandb --mlperf-logging")
    reported = [line.removeprefix("convoy: ") for line in result.err.splitlines()]

    assert result.code == 2
    assert [line.partition(" is not available in this version")[0] for line in reported] == [
        "--mlperf-logging true",
        "--wandb true",
    ]
    assert list(here.iterdir()) == []


def test_a_dry_run_of_a_training_command_writes_nothing(here: Path) -> None:
    result = run(TRAIN, *PYTORCH, "--output=out", "--dry-run")

    assert result.code == 0
    assert json.loads(result.out)["plan"]["updates"]["total"] == 8
    assert list(here.iterdir()) == []


def test_a_missing_run_is_reported(here: Path) -> None:
    line = "python3 restore.py --checkpoint-input-path nowhere"
    result = run(line)

    assert result.code == 2
    assert result.err == "convoy: nowhere does not exist\n"
    assert list(here.iterdir()) == []
