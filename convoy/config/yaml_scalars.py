"""The text of a YAML scalar → its value, after the YAML 1.2 core schema with decimal numbers only.

A text that other YAML readers take for another number than a person does is a ValueError.
"""

import math
import re

from convoy.config.user_text import MOST_DIGITS, control_character, shown

Scalar = bool | int | float | str | None

TAGS = ("str", "int", "float", "bool", "null")  # the core tags a scalar may carry

_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLS = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"([-+]?)0+([0-9].*)")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def resolve(text: str) -> Scalar:
    """The value of a bare scalar: what its spelling says, text if it says nothing else."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _NOT_FINITE.fullmatch(text):
        raise ValueError(f"{text} is not a finite number")
    return _number(text) if _FLOAT.fullmatch(text) else checked(text)


def convert(text: str, tag: str) -> Scalar:
    """The value of a scalar with a core tag; the text must fit the tag."""
    if tag == "str":
        return checked(text)
    value = resolve(text)
    if tag == "float" and type(value) is int:
        return float(value)
    kind = {"int": int, "float": float, "bool": bool, "null": type(None)}[tag]
    if type(value) is not kind:  # isinstance would take true for an int
        raise ValueError(f"{shown(text)} does not fit its tag !!{tag}")
    return value


def checked(text: str) -> str:
    """Text as it is, unless escapes have put a control character into it."""
    if found := control_character(text):
        raise ValueError(f"the text holds the control character U+{ord(found[0]):04X}")
    return text


def _number(text: str) -> int | float:
    if zeros := _LEADING_ZERO.fullmatch(text):
        bare = zeros[1] + zeros[2]
        raise ValueError(
            f"{shown(text)} begins with a zero, which some read as octal; "
            f"write {shown(bare)[1:-1]} for a number, or put text in quotes"
        )
    if not _INT.fullmatch(text):
        return _finite(text)
    digits = len(text.lstrip("+-"))
    if digits > MOST_DIGITS:
        raise ValueError(f"a whole number of {digits} digits; at most {MOST_DIGITS} are read")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{shown(text)} is not a finite number")
    return value
