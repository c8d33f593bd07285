"""A stream to a person that cannot hurt the run: when nobody listens any more, it falls silent."""

import errno
import os
import sys
from contextlib import suppress
from typing import TextIO

# The listener is still there, this text just did not get through.
_PASSING = {errno.EAGAIN, errno.ENOSPC, errno.EDQUOT}


def one_line(text: str) -> str:
    """The text without line breaks and terminal controls: file names may hold either."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


class Voice:
    """Writes and flushes at once. Made of no stream at all, it is silent from the start."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def heard(self) -> bool:
        return self._stream is not None

    @property
    def encoding(self) -> str:
        return (self._stream.encoding if self._stream is not None else None) or "utf-8"

    def isatty(self) -> bool:
        with suppress(OSError, ValueError):
            return self._stream is not None and self._stream.isatty()
        return False

    def say(self, line: str) -> None:
        self.write(line + "\n")

    def write(self, text: str) -> int:
        """Characters that the stream cannot spell are replaced, never an error."""
        if self._stream is None:
            return len(text)
        spelled = text.encode(self.encoding, "replace").decode(self.encoding)
        try:
            self._stream.write(spelled)
            self._stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            if not isinstance(error, OSError) or error.errno not in _PASSING:
                self._fall_silent()
        return len(text)

    def flush(self) -> None:
        """Every write is flushed already."""

    def close(self) -> None:
        """Make sure that what is stuck does not fail again when the interpreter ends."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._fall_silent()

    def _fall_silent(self) -> None:
        """Lead the stream nowhere: its buffer would spoil the exit code of a good run."""
        stream, self._stream = self._stream, None
        with suppress(OSError, ValueError):  # a stream without a descriptor has no such end
            if stream is not None:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, stream.fileno())
                os.close(nowhere)


def tell_on_stderr(line: str) -> None:
    """One line for the person at the terminal, wherever stderr points to now."""
    Voice(sys.stderr).say(line)
