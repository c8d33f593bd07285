"""A text stream whose errors cannot stop a run: once the reader is gone, it writes nothing."""

import errno
import os
import sys
from contextlib import suppress
from typing import TextIO

# The reader still exists; only this text is lost.
_TEMPORARY = {errno.EAGAIN, errno.ENOSPC, errno.EDQUOT}


class SafeStream:
    """Write and flush at once; without a stream, write nothing."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

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
        """Write text; characters missing in the encoding are replaced."""
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
        """Do nothing: every write is flushed already."""

    def close(self) -> None:
        """Prevent unwritten text from failing again at interpreter exit."""
        if self._stream is not None:
            try:
                self._stream.flush()
            except (OSError, ValueError):
                self._detach()

    def _detach(self) -> None:
        """Redirect the stream to /dev/null: its buffer would change the exit code at exit."""
        stream, self._stream = self._stream, None
        with suppress(OSError, ValueError):  # a stream without a descriptor cannot be redirected
            if stream is not None:
                devnull = os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, stream.fileno())
                os.close(devnull)


def print_error(line: str) -> None:
    SafeStream(sys.stderr).print(line)
