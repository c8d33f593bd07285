"""How far long work is: lines in a log, a bar on a terminal."""

import io

import pytest

from convoy.report.bar import PlainBar, make_bar
from convoy.report.live_bar import LiveBar


class Terminal(io.StringIO):
    """A stream that moves its cursor."""

    def isatty(self) -> bool:
        return True


def test_a_log_gets_a_line_for_every_tenth() -> None:
    stream = io.StringIO()
    bar = PlainBar(stream, "reading", "records")
    for done in range(1001):
        bar(done, 1000)
    lines = stream.getvalue().splitlines()

    assert len(lines) == 10
    assert lines[0] == "reading: 100 of 1,000 records"
    assert lines[-1] == "reading: 1,000 of 1,000 records"


def test_bytes_are_told_as_megabytes() -> None:
    stream = io.StringIO()
    PlainBar(stream, "reading", "bytes")(25_000_000, 50_000_000)

    assert stream.getvalue() == "reading: 25 of 50 MB\n"


def test_the_next_piece_of_work_is_counted_from_its_own_start() -> None:
    stream = io.StringIO()
    bar = PlainBar(stream, "reading", "records")
    for total in (10, 4):
        for done in (0, total):
            bar(done, total)

    assert len(stream.getvalue().splitlines()) == 2


def test_nothing_to_do_is_told_by_no_line() -> None:
    stream = io.StringIO()
    PlainBar(stream, "reading", "records")(0, 0)

    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar_and_its_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    bar = make_bar(stream, "reading", "records")
    for done in range(101):
        bar(done, 100)
    bar.close()

    assert isinstance(bar, LiveBar)
    assert "100 of 100 records" in stream.getvalue()
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")


def test_a_bar_that_was_never_needed_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    make_bar(stream, "reading", "records").close()

    assert stream.getvalue() == ""


def test_a_terminal_without_a_cursor_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")

    assert isinstance(make_bar(Terminal(), "reading", "records"), PlainBar)
