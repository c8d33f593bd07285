"""The live display of a run on a terminal. Only this file and `live_bar.py` know rich."""

import atexit
import sys
import time
from typing import IO, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

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
from convoy.report.standing import Standing
from convoy.report.throughput import Clock
from convoy.report.voice import Voice
from convoy.report.wording import duration, event_line, quality_words, validation_line

_WIDEST = 78  # a frame that fits nearly every window is not broken by a resize
_SECONDS_BETWEEN_FRAMES = 0.1


def frame(standing: Standing, width: int) -> Group:
    """Three lines that never wrap.

    epoch 2/5  ━━━━━━━━━╸━━━━━━━━━━━━━━━━━━━━━━━━━  320/1250  25 %  left 1:12
    loss 0.412  accuracy 86.1 %  rate 0.0905  412 images/s
    validation  update 250  top-1 84.2 %  top-5 99.0 %  loss 0.501
    """
    rows: list[RenderableType] = [
        _course(standing, min(width, _WIDEST)),
        _line("  ".join(quality_words(standing))),
    ]
    if standing.validated is not None:
        rows.append(_line(validation_line(standing.validated)))
    return Group(*rows)


def _line(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def _course(standing: Standing, width: int) -> Table:
    """Epoch, bar, count, share and time left; the bar takes what the words leave."""
    updates = standing.began.updates
    before = f"epoch {standing.epoch}/{standing.epochs}  "
    after = f"  {standing.update}/{updates}  {100 * standing.update // max(1, updates)} %"
    if standing.seconds_left is not None:
        after += f"  left {duration(standing.seconds_left)}"
    room = max(1, width - len(before) - len(after))
    row = Table.grid()
    bar = ProgressBar(total=max(1, updates), completed=standing.update, width=room)
    row.add_row(_line(before), bar, _line(after))
    return row


class LiveProgress:
    """Draws on events, without a thread of its own: nothing runs beside the training."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._stream = stream
        self._voice = Voice(stream)
        self._clock = clock
        self._standing = Standing(clock)
        self._drawn_at = clock() - _SECONDS_BETWEEN_FRAMES
        # rich ends the program on a broken pipe; the voice swallows it before rich can see it.
        self._console = Console(file=cast(IO[str], self._voice), force_terminal=True)
        self._live: Live | None = None

    def write(self, event: Event) -> None:
        self._standing.take(event)
        match event:
            case Began():
                self._say(event_line(event))
                self._open()
                self._draw()
            case Updated() | Reported():
                if self._clock() - self._drawn_at >= _SECONDS_BETWEEN_FRAMES:
                    self._draw()
            case Validated() | Saved():
                self._draw()
            case Averaged() | Noticed():
                self._say(event_line(event))
            case Ended():
                self.close()
                self._say(event_line(event))

    def close(self) -> None:
        """Leave the last frame in place and give the cursor back."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._voice.close()
        atexit.unregister(self.close)

    def _open(self) -> None:
        """A new frame; a run that begins again without an end goes on in its old one."""
        if self._live is None:
            self._live = Live(
                console=self._console,
                auto_refresh=False,
                get_renderable=lambda: frame(self._standing, self._console.width),
                redirect_stdout=self._stream is sys.stdout,
                # Warnings go above the frame; a stderr led to a file stays there.
                redirect_stderr=Voice(sys.stderr).isatty(),
            )
            self._live.start()
            atexit.register(self.close)  # the cursor comes back even after a crash

    def _say(self, line: str) -> None:
        """Above the frame while there is one."""
        self._console.print(Text(line), soft_wrap=True)

    def _draw(self) -> None:
        self._drawn_at = self._clock()
        if self._live is not None:
            self._live.refresh()
