"""A text stream whose errors cannot stop a run: when nobody reads any more, it writes nothing."""

import errno
import os
import sys
from contextlib import suppress
from typing import TextIO

# The reader is still there, only this text was lost.
_TEMPORARY = {errno.EAGAIN, errno.ENOSPC, errno.EDQUOT}


class SafeStream:
    """Writes and flushes at once; without a stream it writes nothing."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    @property
    def is_open(self) -> bool:
        return self._stream is not None

    @property
    def encoding(self) -> str:
        return (self._stream.encoding if self._stream is not None else None) or "utf-8"

    def isatty(self) -> bool:
        with suppress(OSError, ValueError):
            return self._stream is not None and self._stream.isatty()
        return False

    def print(self, line: str) -> None:
        self.write(line + "\n")

    def write(self, text: str) -> int:
        """Characters that the encoding does not have are replaced, never an error."""
        if self._stream is None:
            return len(text)
        encoded = text.encode(self.encoding, "replace").decode(self.encoding)
        try:
            self._stream.write(encoded)
            self._stream.flush()
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            if not isinstance(error, OSError) or error.errno not in _TEMPORARY:
                self._detach()
        return len(text)

    def flush(self) -> None:
        """Every write is flushed already."""

    def close(self) -> None:
        """Make sure that unwritten text does not fail again when the interpreter exits."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._detach()

    def _detach(self) -> None:
        """Redirect the stream to /dev/null: its buffer would spoil the exit code of a good run."""
        stream, self._stream = self._stream, None
        with suppress(OSError, ValueError):  # a stream without a descriptor cannot be redirected
            if stream is not None:
                devnull = os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, stream.fileno())
                os.close(devnull)


def print_error(line: str) -> None:
    """One line on stderr, wherever it points to now."""
    SafeStream(sys.stderr).print(line)
