"""Text for messages: counts, short numbers, and quoting of user input."""

import re

MAX_DIGITS = 18  # every such number fits in 64 bits
_MAX_SHOWN = 60  # characters of user input that a message repeats

# Control characters except tab, line feed and \r\n (C0, delete, C1), Unicode line breaks (parsers
# count them as lines, editors do not), lone surrogates, byte order marks and non-characters.
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]|\r(?!\n)"
)


def printable(name: str) -> str:
    """Return a file name, escaped if it would break a message into lines."""
    return name if name.isprintable() else repr(name)


def one_line(text: str) -> str:
    """Escape line breaks and terminal controls, which file names may contain."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def quote_shortened(text: str) -> str:
    """Quote and escape user input, shortened if it is long."""
    return repr(text) if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]!r}…"


def control_character(text: str) -> re.Match[str] | None:
    """Find the first character that is invisible or controls a terminal."""
    return _CONTROL.search(text)


UNITS = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


def format_si(number: float) -> str:
    """Format with three or four digits and an SI prefix: `172.5 k`, `4.1 G`."""
    for size, unit in UNITS:
        if number >= 0.99995 * size:  # 999,999 is 1.0 M, not 1000.0 k
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f} "


def pluralize(count: int, word: str) -> str:
    """Format a count with its noun: `1 stage`, `2 epochs`, `2 micro-batches`."""
    suffix = "es" if word.endswith(("s", "tch")) else "s"
    return f"{count} {word}{suffix * (count != 1)}"
