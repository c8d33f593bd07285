"""A resume is refused if the training has changed."""

import json
import shutil
import signal
from pathlib import Path

import pytest
from support.cifar_files import write_cifar10
from support.run_convoy import TINY, convoy, convoy_process


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("stopped") / "run"
    assert convoy("train", *TINY, "--stop-after", "5", "--output", run).code == 75
    return run


@pytest.fixture
def run(tmp_path: Path, stopped: Path) -> Path:
    return shutil.copytree(stopped, tmp_path / "run")


def events(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]


def test_a_refused_resume_changes_nothing(run: Path) -> None:
    before = (run / "config.yaml").read_bytes()
    refused = convoy("resume", run, "--override", "--model", "resnet14")

    assert refused.code == 4
    assert (run / "config.yaml").read_bytes() == before
    assert convoy("resume", run).code == 0


def test_the_checkpoint_of_another_training_is_refused(run: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    convoy("train", *TINY, "--seed", "5", "--stop-after", "5", "--output", foreign)
    result = convoy("resume", run, "--checkpoint", foreign / "checkpoints" / "update-5")

    assert result.code == 4
    assert "--seed was 5, now 0" in result.err


@pytest.mark.parametrize("edit", [("lr: 0.02", "lr: 0.2"), ("\nlr: 0.02", "\n#")])
def test_an_edited_configuration_is_detected(run: Path, edit: tuple[str, str]) -> None:
    text = (run / "config.yaml").read_text()
    assert edit[0] in text
    (run / "config.yaml").write_text(text.replace(*edit))
    result = convoy("resume", run)

    assert result.code == 4
    assert "--lr was 0.02" in result.err


def test_changed_data_is_detected(tmp_path: Path) -> None:
    words = [item for item in TINY if not item.startswith(("--data=", "--image-size", "--samples"))]
    folder = write_cifar10(tmp_path / "data", 40)
    more = ("--data=cifar10", "--data-dir", tmp_path / "data", "--stop-after", "3")
    assert convoy("train", *words, *more, "--output", tmp_path / "run").code == 75
    first, second = folder / "data_batch_1.bin", folder / "data_batch_2.bin"
    saved = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(saved)
    result = convoy("resume", tmp_path / "run")

    assert result.code == 4
    assert "data has changed" in result.err


def test_an_overridden_change_is_recorded(run: Path) -> None:
    assert convoy("resume", run, "--lr", "0.01", "--override").code == 0

    assert any(
        event.get("kind") == "override" and "--lr was 0.02, now 0.01" in str(event["text"])
        for event in events(run)
    )


def test_a_longer_run_is_not_complete_with_the_old_summary(tmp_path: Path) -> None:
    run = tmp_path / "run"
    convoy("train", *TINY, "--output", run)
    old = (run / "summary.json").read_bytes()
    convoy("resume", run, "--override", "--epoch", "3")
    (run / "summary.json").write_bytes(old)  # as if the new summary was not written
    result = convoy("resume", run)

    assert "already complete" not in result.out
    assert json.loads((run / "summary.json").read_text())["updates"] == 18


def test_a_missing_validation_file_is_detected_before_training(tmp_path: Path) -> None:
    words = [item for item in TINY if not item.startswith(("--data=", "--image-size", "--samples"))]
    folder = write_cifar10(tmp_path / "data", 40)
    (folder / "test_batch.bin").unlink()
    more = ("--data=cifar10", "--data-dir", tmp_path / "data", "--validation-mode=after")
    result = convoy("train", *words, *more, "--output", tmp_path / "run")

    assert result.code == 3
    assert not (tmp_path / "run").exists()


@pytest.mark.processes
def test_a_run_without_a_checkpoint_prints_how_to_start_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    faults = {"CONVOY_TEST_FAULTS": "kill@3"}
    convoy_process("train", *TINY, "--output", run, scratch=tmp_path, env=faults)
    result = convoy("resume", run)
    again = convoy("train", "--config-path", run / "config.yaml", "--output", tmp_path / "new")

    assert result.code == 4
    assert "--config-path" in result.err
    assert again.code == 0, again.err


@pytest.mark.processes
def test_a_signal_ignored_from_the_start_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        result = convoy("train", *TINY, "--output", tmp_path / "run")
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

    assert result.code == 0


@pytest.mark.parametrize("words", [("--output", "x"), ("--name", "x"), ("--log-dir", "x")])
def test_a_run_stays_in_its_folder(run: Path, words: tuple[str, str]) -> None:
    result = convoy("resume", run, *words)

    assert result.code == 2
    assert "cannot be set: the folder of a run cannot be changed" in result.err


@pytest.mark.parametrize("limit", [2, 5])  # 5 updates are done
def test_a_limit_that_has_passed_is_refused(run: Path, limit: int) -> None:
    result = convoy("resume", run, "--stop-after", str(limit))

    assert result.code == 2
    assert f"--stop-after {limit} must be greater than the 5 updates" in result.err


def test_one_damaged_checkpoint_does_not_hide_others(tmp_path: Path) -> None:
    run = tmp_path / "run"
    convoy("train", *TINY, "--ckpts-per-epoch", "2", "--output", run)
    (run / "checkpoints" / "update-6" / "state.json").write_text("{}")
    result = convoy("validate", run / "checkpoints", "--json")
    rows = json.loads(result.out)

    assert result.code == 4
    assert [row.get("epoch") for row in rows] == [0.5, None, 1.5, 2.0]
    assert "update-6" in result.err


def test_averages_with_different_options_do_not_replace_each_other(tmp_path: Path) -> None:
    run = tmp_path / "run"
    convoy("train", *TINY, "--output", run)
    for statistics in ("keep", "average"):
        assert convoy("average", run, "--norm-statistics", statistics).code == 0

    assert len(list((run / "checkpoints" / "averaged").iterdir())) == 2


def test_a_failed_run_writes_a_summary(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert convoy("train", *TINY, "--lr", "1e30", "--output", run).code == 5

    assert json.loads((run / "summary.json").read_text())["exit_reason"] == "NotFiniteError"
