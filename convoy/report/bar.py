"""How far a long piece of work is: a bar on a terminal, a line for every tenth elsewhere."""

from typing import Protocol, TextIO

from convoy.report.progress import draws
from convoy.report.voice import Voice
from convoy.report.wording import done_words


class Bar(Protocol):
    """Call it with what is done and all there is, one thread at a time; close it at the end."""

    def __call__(self, done: int, total: int) -> None: ...

    def close(self) -> None: ...


class PlainBar:
    """Lines that stay readable in a batch log."""

    def __init__(self, stream: TextIO, what: str, unit: str) -> None:
        self._voice = Voice(stream)
        self._what, self._unit = what, unit
        self._told = 0

    def __call__(self, done: int, total: int) -> None:
        if done == 0:  # another piece of work
            self._told = 0
        tenth = 10 * done // total if total else 0
        if tenth > self._told:
            self._told = tenth
            self._voice.say(f"{self._what}: {done_words(done, total, self._unit)}")

    def close(self) -> None:
        """Every line is out already."""


def make_bar(stream: TextIO, what: str, unit: str) -> Bar:
    if draws(stream):
        from convoy.report.live_bar import LiveBar  # rich takes longer to load than `--help` may

        return LiveBar(stream, what, unit)
    return PlainBar(stream, what, unit)
