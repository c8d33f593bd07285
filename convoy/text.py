"""Text for people: counts and short numbers, and how a user's own text is quoted in messages."""

import re

MOST_DIGITS = 18  # every such number fits 64 bits
_SHOWN = 60  # characters of a user's text that a message repeats

# Control characters but tab and line feed (C0, delete, C1), the Unicode line breaks, which parsers
# count as lines and editors do not, halves of surrogate pairs, byte order marks and non-characters.
_CONTROL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
)
_LONE_RETURN = re.compile("\r(?!\n)")


def printable(name: str) -> str:
    """A file name that cannot break the message into lines."""
    return name if name.isprintable() else repr(name)


def one_line(text: str) -> str:
    """The text without line breaks and terminal controls: file names may hold either."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown(text: str) -> str:
    """A user's text, quoted and escaped, cut where it would flood the message."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"


def control_character(text: str) -> re.Match[str] | None:
    """The first character that no configuration needs: it hides, or drives a terminal."""
    return _CONTROL.search(text) or _LONE_RETURN.search(text)


UNITS = ((10**9, "G"), (10**6, "M"), (10**3, "k"))


def short(number: float) -> str:
    """`172.5 k`, `4.1 G`: three or four digits and a unit."""
    for size, unit in UNITS:
        if number >= 0.99995 * size:  # 999,999 is 1.0 M, not 1000.0 k
            return f"{number / size:.1f} {unit}"
    return f"{number:.0f} "


def counted(count: int, word: str) -> str:
    """`1 stage`, `2 stages`, `2 micro-batches`."""
    ending = "es" if word.endswith(("s", "ch")) else "s"
    return f"{count} {word}{ending * (count != 1)}"
