"""What happens after an update, and in which order."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.run_convoy import TINY, convoy

from convoy.events import Event, Observers, Reported
from convoy.parallel.replicas import Replicas
from convoy.run import lifecycle
from convoy.run.lifecycle import Lifecycle


def train(run: Path, *words: str) -> None:
    result = convoy("train", *TINY, *words, "--output", run)
    assert result.code == 0, result.err


def test_replicas_compare_their_weights_at_the_start_at_intervals_and_at_each_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[int] = []

    def record(replicas: Replicas, digest: Callable[[], bytes], update: int) -> None:
        del replicas, digest
        compared.append(update)

    monkeypatch.setattr(Replicas, "check_weights_equal", record)
    monkeypatch.setattr(lifecycle, "SYNC_CHECK_UPDATES", 4)
    train(tmp_path / "run")  # twelve updates, saved after every sixth

    assert compared == [0, 4, 6, 8, 12]


def test_an_update_is_reported_then_validated_then_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    validate, save, notify = Lifecycle._validate, Lifecycle._save, Observers.notify

    def record_event(observers: Observers, event: Event) -> None:
        if isinstance(event, Reported):
            done.append("report")
        notify(observers, event)

    monkeypatch.setattr(Observers, "notify", record_event)
    monkeypatch.setattr(
        Lifecycle, "_validate", lambda run: done.append("validate") or validate(run)
    )
    monkeypatch.setattr(Lifecycle, "_save", lambda run: done.append("save") or save(run))
    train(
        tmp_path / "run",
        *("--validation-mode=during", "--validation-frequency=1", "--logs-per-epoch=1"),
    )

    assert done == ["report", "validate", "save"] * 2
