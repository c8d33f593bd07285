"""The guards of the YAML reader: what is refused before a parser sees the text.

In: a path or the bytes of a file. Out: clean text, or a ConfigError with file, line and reason.
"""

import re
import stat
from pathlib import Path

from convoy.config.user_text import control_character, printable
from convoy.errors import ConfigError

MOST_BYTES = 256 * 1024  # the largest reference file has 10 KB
MOST_NODES = 20_000  # keys, values and collections, after aliases and merges are expanded
MOST_DEPTH = 20  # the file's own mapping is level 1

# Before content the C parser and the pure one disagree on tabs, on empty lines both complain.
_TAB_INDENT = re.compile("^ *\t", re.MULTILINE)


def refusal(name: str, line: int, reason: str) -> ConfigError:
    """The error for one place of a file, on one line whatever the file's name holds."""
    return ConfigError(f"{printable(name)}, line {line}: {reason}")


def read_limited(path: Path) -> bytes:
    """The bytes of a regular file that is small enough to be a configuration."""
    name = printable(str(path))
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{name} is {_kind(status.st_mode)}, not a configuration file")
        _check_size(status.st_size, name)
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)  # the file may have grown since it was measured
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {name}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{name} cannot be read: {reason}") from None
    _check_size(len(data), name)
    return data


def clean_text(source: str | bytes, name: str) -> str:
    """Text of an allowed size, without byte order mark, control characters or tab indents."""
    data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    _check_size(len(data), printable(name))
    text = (source if isinstance(source, str) else _decode(source, name)).removeprefix("\ufeff")
    if found := control_character(text):
        reason = f"the control character U+{ord(found[0]):04X} has no place in a configuration"
        raise refusal(name, _line(text, found.start()), reason)
    if found := _TAB_INDENT.search(text):
        reason = "the line is indented with a tab; use spaces"
        raise refusal(name, _line(text, found.start()), reason)
    return text


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        reason = f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise refusal(name, line, reason) from None


def _check_size(size: int, name: str) -> None:
    if size > MOST_BYTES:
        raise ConfigError(
            f"{name} is too big for a configuration: it has {size:,} bytes or more, "
            f"and at most {MOST_BYTES:,} are read"
        )


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")
