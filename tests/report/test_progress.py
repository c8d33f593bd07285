"""Progress as plain lines or as a live display, and progress bars."""

import io
import subprocess
import sys
from collections.abc import Iterable

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
from convoy.report.live import LiveBar
from convoy.report.progress import (
    PlainBar,
    PlainProgress,
    make_bar,
    make_progress,
)

RUN_SCRIPT = """
import sys
from convoy.events import Began, Ended, Reported, Updated
from convoy.report.progress import make_progress
progress = make_progress(sys.argv[1], sys.stdout, interval=0)
progress.write(Began(0, 500, 100, 64))
for update in range(1, 501):
    progress.write(Updated(update, 0.1))
    progress.write(Reported(update, update / 100, 0.412, 0.861, 0.0905, 412.0, 1.0))
progress.write(Ended(500, "done"))
progress.close()
sys.stderr.write("rich" if "rich" in sys.modules else "no rich")
"""


class FakeClock:
    """A clock that a test advances manually."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def reported(update: int) -> Reported:
    return Reported(update, update / 250, 0.412, 0.861, 0.0905, 412.0, 1.0)


def printed_lines(timed_events: Iterable[tuple[float, Event]], interval: float = 5.0) -> list[str]:
    stream, clock = io.StringIO(), FakeClock()
    progress = PlainProgress(stream, interval, clock)
    for now, event in timed_events:
        clock.now = 100 + now
        progress.write(event)
    progress.close()
    return stream.getvalue().splitlines()


def run(kind: str, out: str = "") -> subprocess.CompletedProcess[str]:
    command = f'set -o pipefail; "$0" -c "$1" {kind} {out}'
    return subprocess.run(
        ["bash", "-c", command, sys.executable, RUN_SCRIPT],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_run_prints_a_short_log():
    assert printed_lines(
        [
            (0, Began(0, 1250, 250, 64)),
            (1, reported(10)),
            (2, Validated(10, 0.04, 0.5, 0.9, 1.5, 100, 2.0, 50.0)),
            (3, Saved(10, "runs/x/update-10", 0.2)),
            (3, Noticed("skip", "a bad record", 10)),
            (3, Averaged(10, "runs/x/averaged", "mean", 2, "ab")),
            (4, Ended(10, "preempted")),
        ]
    ) == [
        "starting 1250 updates of 64 images, 250 updates per epoch",
        "epoch 1/5  update 10/1250  loss 0.412  accuracy 86.1 %  lr 0.0905  412 images/s",
        "validation  update 10  top-1 50.0 %  top-5 90.0 %  loss 1.500  100 images in 2.0 s",
        "checkpoint  runs/x/update-10  in 0.2 s",
        "notice  a bad record (update 10)",
        "average  runs/x/averaged  mean of 2 checkpoints",
        "stopped after update 10: preempted",
    ]


def test_reports_are_printed_at_most_once_per_interval():
    timed_events = [(update / 10, reported(update)) for update in range(201)]
    updates = [line.split("update ")[1].split("/")[0] for line in printed_lines(timed_events)]

    assert updates == ["0", "50", "100", "150", "200"]


def test_the_final_progress_is_printed_even_within_the_interval():
    lines = printed_lines([(0, reported(1)), (1, reported(2)), (1, Ended(2, "done"))])

    assert [line.split("  ")[1] for line in lines[:2]] == ["update 1/0", "update 2/0"]
    assert lines[2:] == ["finished after update 2"]


def test_a_run_with_rare_reports_still_prints_its_progress():
    timed_events: list[tuple[float, Event]] = [(0, Began(0, 100, 50, 64))]
    timed_events += [(update * 8.0, Updated(update, 8.0)) for update in range(1, 7)]
    lines = printed_lines(timed_events)

    assert lines[1:] == [
        "epoch 1/2  update 2/100  8.00 images/s  ETA 13:04",
        "epoch 1/2  update 5/100  8.00 images/s  ETA 12:40",
    ]


def test_updates_within_the_interval_print_no_line():
    assert printed_lines([(update / 1000, Updated(update, 0.001)) for update in range(1000)]) == []


@pytest.mark.parametrize("kind", ["auto", "rich", "plain", "none"])
def test_without_a_stream_nothing_is_printed(kind: str, capfd: pytest.CaptureFixture[str]):
    progress = make_progress(kind, None)
    progress.write(Ended(1, "done"))
    progress.close()

    assert capfd.readouterr() == ("", "")


def test_progress_none_writes_nothing():
    stream = io.StringIO()
    make_progress("none", stream).write(Ended(1, "done"))

    assert stream.getvalue() == ""


def test_a_stream_that_is_not_a_terminal_gets_plain_lines():
    assert isinstance(make_progress("auto", io.StringIO()), PlainProgress)


@pytest.mark.processes
def test_a_pipe_gets_plain_lines_and_rich_is_not_loaded():
    process = run("auto", "| cat")
    lines = process.stdout.splitlines()

    assert process.stderr == "no rich"
    assert "\x1b" not in process.stdout
    assert lines[0] == "starting 500 updates of 64 images, 100 updates per epoch"
    assert lines[-2] == (
        "epoch 5/5  update 500/500  loss 0.412  accuracy 86.1 %  lr 0.0905  412 images/s  ETA 0:00"
    )


@pytest.mark.processes
def test_a_process_with_progress_none_prints_nothing():
    assert run("none").stdout == ""


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["plain", "rich"])
@pytest.mark.parametrize("out", ["| head -n 1", "| true", ">&-", ">/dev/full"])
def test_a_broken_output_does_not_end_the_run(kind: str, out: str):
    process = run(kind, out)

    assert process.returncode == 0
    assert process.stderr in ("rich", "no rich")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_bar_prints_a_line_every_ten_percent() -> None:
    stream = io.StringIO()
    bar = PlainBar(stream, "reading", "records")
    for done in range(1001):
        bar(done, 1000)
    lines = stream.getvalue().splitlines()

    assert len(lines) == 10
    assert lines[0] == "reading: 100 of 1,000 records"
    assert lines[-1] == "reading: 1,000 of 1,000 records"


def test_bytes_are_reported_as_megabytes() -> None:
    stream = io.StringIO()
    PlainBar(stream, "reading", "bytes")(25_000_000, 50_000_000)

    assert stream.getvalue() == "reading: 25 of 50 MB\n"


def test_a_bar_can_be_used_for_another_task() -> None:
    stream = io.StringIO()
    bar = PlainBar(stream, "reading", "records")
    for total in (10, 4):
        for done in (0, total):
            bar(done, total)

    assert len(stream.getvalue().splitlines()) == 2


def test_an_empty_task_prints_no_line() -> None:
    stream = io.StringIO()
    PlainBar(stream, "reading", "records")(0, 0)

    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar_and_the_cursor_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    bar = make_bar(stream, "reading", "records")
    for done in range(101):
        bar(done, 100)
    bar.close()

    assert isinstance(bar, LiveBar)
    assert "100 of 100 records" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")


def test_an_unused_bar_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    make_bar(stream, "reading", "records").close()

    assert stream.getvalue() == ""


def test_a_terminal_without_a_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")

    assert isinstance(make_bar(Terminal(), "reading", "records"), PlainBar)
