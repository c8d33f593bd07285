"""What an option can hold, and how it is read: from words of a command line, or from YAML."""

import math
import re
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from convoy.text import MOST_DIGITS, control_character, shown

_COMMA = re.compile(r"(?<!\\),")  # that is not escaped


class WrongType(ValueError):
    """The text or value is not of the option's type; says what was expected and what came."""


@dataclass(frozen=True)
class ValueType:
    """The type of an option: a base type, perhaps a list of it, perhaps unset."""

    base: type
    many: bool = False
    optional: bool = False

    @staticmethod
    def of(annotation: Any) -> "ValueType":
        """Read a field's annotation: `int`, `int | None`, `tuple[str, ...]`."""
        if get_origin(annotation) in (UnionType, Union):
            (inner,) = (one for one in get_args(annotation) if one is not NoneType)
            return ValueType(ValueType.of(inner).base, ValueType.of(inner).many, optional=True)
        if get_origin(annotation) is tuple:
            return ValueType(get_args(annotation)[0], many=True)
        return ValueType(annotation)

    def read(self, words: list[str]) -> Any:
        """The value that words of a command line or an environment variable spell."""
        if self.many:
            parts = (part for word in words for part in _parts(word))
            return tuple(_divisible(_read_word(self.base, part)) for part in parts)
        return _read_word(self.base, words[0])

    def check(self, value: Any) -> Any:
        """The value as YAML gave it, if it is of this type."""
        if value is None and (self.optional or self.many):
            return () if self.many else None
        if self.many:
            several = value if isinstance(value, list | tuple) else [value]
            return tuple(_divisible(_check_value(self.base, one)) for one in several)
        return _check_value(self.base, value)

    def __str__(self) -> str:
        word = {int: "whole number", float: "number", bool: "true or false", str: "text"}[self.base]
        return f"list of {word}" if self.many else word


def as_words(value: Any) -> list[str]:
    """A value as a command line would spell it, exactly."""
    if isinstance(value, tuple):
        return [word.replace(",", "\\,") for one in value for word in as_words(one)]
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, float):
        short = f"{value:g}"
        return [short if float(short) == value else repr(value)]
    return [str(value)]


def spelled(value: Any) -> str:
    """A value on one line; a dash where nothing is set."""
    return "–" if value in (None, ()) else " ".join(as_words(value))


def _parts(word: str) -> list[str]:
    """`a,b` and `a b` are the same list; `a\\,b` is one item with a comma in it."""
    return [part.replace("\\,", ",") for part in _COMMA.split(word) if part]


def _divisible(item: Any) -> Any:
    """An item of a list, if a comma behind it would part it from the next."""
    if isinstance(item, str) and item.endswith("\\"):
        raise WrongType(f"cannot hold {shown(item)}: no item of a list ends with a backslash")
    return item


def _read_word(base: type, word: str) -> Any:
    if not word:
        raise WrongType("needs a value")
    if base is str:
        return _storable(word)
    if base is bool:
        if word.lower() not in ("true", "false"):
            raise _wrong(base, shown(word))
        return word.lower() == "true"
    try:
        number = base(word)
    except ValueError:
        raise _wrong(base, shown(word)) from None
    return _storable(number)


def _check_value(base: type, value: Any) -> Any:
    if base is float and type(value) is int:
        return float(value)
    if type(value) is not base:  # isinstance would take true for a whole number
        raise _wrong(base, named(value))
    return _storable(value)


def _storable(value: Any) -> Any:
    """Only what a run's `config.yaml` can hold and give back."""
    match value:
        case float() if not math.isfinite(value):
            raise WrongType(f"expects a finite number, got {value}")
        case int() if abs(value) >= 10**MOST_DIGITS:
            raise WrongType(f"expects a whole number of at most {MOST_DIGITS} digits")
        case "":
            raise WrongType("needs a value")
        case "--":
            raise WrongType("cannot be two dashes, which end the options of a command")
        case str() if found := control_character(value):
            raise WrongType(f"holds the control character U+{ord(found[0]):04X}")
    return value


def _wrong(base: type, came: str) -> WrongType:
    article = "a " if base in (int, float) else ""
    return WrongType(f"expects {article}{ValueType(base)}, got {came}")


def named(value: Any) -> str:
    """A value of YAML as a message calls it."""
    match value:
        case None:
            return "nothing"
        case str():
            return shown(value)
        case list() | dict():
            return "several values"
    return str(value).lower() if isinstance(value, bool) else str(value)
