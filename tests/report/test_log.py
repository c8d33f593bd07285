"""Events are written to the files of a run; a resumed run has each update once."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from convoy.events import (
    Averaged,
    Began,
    Ended,
    Event,
    Noticed,
    Reported,
    Saved,
    Updated,
    Validated,
)
from convoy.report.log import Log, read_jsonl
from convoy.run.folder import RunFolder

TIME = datetime(2026, 1, 2, 12, 0, 0, 5000, UTC)


def reported(update: int) -> Reported:
    return Reported(update, update / 4, 2.5, 0.1, 0.05, 412.0, float(update))


def validated(update: int) -> Validated:
    return Validated(update, update / 4, 0.5, 0.9, 1.5, 100, 2.0, 50.0)


def write_events(folder: RunFolder, *events: Event) -> None:
    log = Log(folder, lambda: TIME, lambda _: None)
    for event in events:
        log.write(event)
    log.close()


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def test_a_report_is_written_to_the_metrics_file(folder: RunFolder):
    write_events(folder, reported(4))

    assert list(read_jsonl(folder.metrics)) == [
        {
            "update": 4,
            "epoch": 1.0,
            "loss": 2.5,
            "accuracy": 0.1,
            "learning_rate": 0.05,
            "images_per_second": 412.0,
            "seconds": 4.0,
            "loss_scale": 1.0,
            "skipped": 0,
            "left_out": 0,
        }
    ]


def test_a_validation_is_written_to_the_validation_file(folder: RunFolder):
    write_events(folder, validated(4))
    (record,) = read_jsonl(folder.validation)

    assert (record["update"], record["top1"], record["samples"]) == (4, 0.5, 100)
    assert not folder.metrics.exists()


def test_other_events_are_written_with_their_name_and_time(folder: RunFolder):
    average = Averaged(8, "a/8", "mean", 2, "ab")
    write_events(folder, Began(0, 8, 4, 64), Saved(4, "c/4", 0.1), Noticed("k", "t", 5))
    write_events(folder, average, Ended(8, "done"))
    records = list(read_jsonl(folder.events))

    assert [record["event"] for record in records] == [
        *("began", "saved", "noticed", "averaged", "ended"),
    ]
    assert (records[3]["path"], records[3]["top1"]) == ("a/8", None)
    assert records[1] == {
        "event": "saved",
        "time": "2026-01-02T12:00:00.005+00:00",
        "update": 4,
        "path": "c/4",
        "seconds": 0.1,
    }


def test_the_text_log_has_a_timestamped_line_for_every_event_but_updates(folder: RunFolder):
    write_events(folder, Began(0, 8, 4, 64), Updated(1, 0.1), reported(1), Noticed("k", "a\nb", 1))
    lines = folder.log.read_text().splitlines()

    assert len(lines) == 3
    assert all(line.startswith("2026-01-02T12:00:00.005+00:00  ") for line in lines)
    assert lines[2].endswith("notice  a\\nb (update 1)")


@pytest.mark.parametrize("last_update", range(1, 13))
@pytest.mark.parametrize("interval", [1, 5])
def test_a_resumed_run_has_each_update_once(folder: RunFolder, last_update: int, interval: int):
    checkpoint = last_update // interval * interval
    before = [
        event
        for update in range(1, last_update + 1)
        for event in (reported(update), validated(update))
    ]
    after = [
        event
        for update in range(checkpoint + 1, 13)
        for event in (reported(update), validated(update))
    ]
    write_events(folder, Began(0, 12, 6, 64), *before)
    with folder.metrics.open("a") as file:
        file.write('{"update": 9')  # a line that a crash truncated
    write_events(folder, Began(checkpoint, 12, 6, 64), *after)

    assert [record["update"] for record in read_jsonl(folder.metrics)] == list(range(1, 13))
    assert [record["update"] for record in read_jsonl(folder.validation)] == list(range(1, 13))


def test_the_history_of_events_is_kept_on_resume(folder: RunFolder):
    write_events(folder, Began(0, 12, 6, 64), Noticed("lost", "worker 2 died", 9))
    write_events(folder, Began(5, 12, 6, 64))

    assert [record["update"] for record in read_jsonl(folder.events)] == [0, 9, 5]


def test_lost_metrics_are_reported_at_the_end(folder: RunFolder):
    folder.metrics.symlink_to("/dev/full")
    write_events(folder, reported(1), reported(2), Ended(2, "done"))
    records = list(read_jsonl(folder.events))

    assert [record["event"] for record in records] == ["noticed", "ended"]
    assert records[0]["text"] == "metrics.jsonl is missing 2 lines (updates 1 to 2)"
    assert re.search("is missing 2 lines", folder.log.read_text())


def test_a_full_disk_does_not_stop_the_run(folder: RunFolder):
    for path in (folder.log, folder.metrics, folder.validation, folder.events):
        path.symlink_to("/dev/full")
    warnings: list[str] = []
    log = Log(folder, lambda: TIME, warnings.append)
    for event in (reported(1), validated(1), Saved(1, "c", 0.1), reported(2), Ended(2, "done")):
        log.write(event)
    log.close()

    assert len(warnings) == 4  # one for each file


def test_a_metrics_file_that_cannot_be_read_does_not_affect_other_files(folder: RunFolder):
    folder.metrics.mkdir()
    warnings: list[str] = []
    log = Log(folder, lambda: TIME, warnings.append)
    for event in (Began(2, 9, 3, 32), reported(4), Ended(9, "done")):
        log.write(event)
    log.close()

    assert "metrics.jsonl" in warnings[0]
    assert "finished after update 9" in folder.log.read_text()
    assert [record["event"] for record in read_jsonl(folder.events)][-1] == "ended"


def test_a_closed_log_has_no_open_file(folder: RunFolder):
    before = open_files()
    write_events(folder, Began(0, 8, 4, 64), reported(1), validated(1), Ended(1, "done"))

    assert open_files() == before
