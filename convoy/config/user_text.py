"""A user's text in messages: what may stand in it, and how much of it is repeated."""

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


def shown(text: str) -> str:
    """A user's text, quoted and escaped, cut where it would flood the message."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"


def control_character(text: str) -> re.Match[str] | None:
    """The first character that no configuration needs: it hides, or drives a terminal."""
    return _CONTROL.search(text) or _LONE_RETURN.search(text)
