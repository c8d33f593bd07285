"""What an option can hold, and how it is read: from words of a command line, or from YAML."""

import math
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin


class WrongType(ValueError):
    """The text or value is not of the option's type; says what was expected and what came."""


@dataclass(frozen=True)
class Kind:
    """The type of an option: a base type, perhaps a list of it, perhaps unset."""

    base: type
    many: bool = False
    optional: bool = False

    @staticmethod
    def of(annotation: Any) -> "Kind":
        """Read a field's annotation: `int`, `int | None`, `tuple[str, ...]`."""
        if get_origin(annotation) in (UnionType, Union):
            (inner,) = (one for one in get_args(annotation) if one is not NoneType)
            return Kind(Kind.of(inner).base, Kind.of(inner).many, optional=True)
        if get_origin(annotation) is tuple:
            return Kind(get_args(annotation)[0], many=True)
        return Kind(annotation)

    def read(self, words: list[str]) -> Any:
        """The value that words of a command line or an environment variable spell."""
        if self.many:
            return tuple(_read_word(self.base, part) for word in words for part in _parts(word))
        return _read_word(self.base, words[0])

    def check(self, value: Any) -> Any:
        """The value as YAML gave it, if it is of this type."""
        if value is None and (self.optional or self.many):
            return () if self.many else None
        if self.many:
            several = value if isinstance(value, list | tuple) else [value]
            return tuple(_check_value(self.base, one) for one in several)
        return _check_value(self.base, value)

    def __str__(self) -> str:
        word = {int: "whole number", float: "number", bool: "true or false", str: "text"}[self.base]
        return f"list of {word}" if self.many else word


def _parts(word: str) -> list[str]:
    """`a,b` and `a b` are the same list."""
    return [part for part in word.split(",") if part]


def _read_word(base: type, word: str) -> Any:
    if base is str:
        return word
    if base is bool:
        if word.lower() not in ("true", "false"):
            raise WrongType(f"expects true or false, got {word!r}")
        return word.lower() == "true"
    try:
        number = base(word)
    except ValueError:
        raise WrongType(f"expects a {Kind(base)}, got {word!r}") from None
    return _finite(number)


def _check_value(base: type, value: Any) -> Any:
    fits = isinstance(value, base) and not (isinstance(value, bool) and base is not bool)
    if base is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not fits:
        raise WrongType(f"expects a {Kind(base)}, got {value!r}")
    return _finite(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        raise WrongType(f"expects a finite number, got {value}")
    return value


def as_words(value: Any) -> list[str]:
    """A value as a command line would spell it."""
    if isinstance(value, tuple):
        return [word for one in value for word in as_words(one)]
    if isinstance(value, bool):
        return [str(value).lower()]
    return [f"{value:g}" if isinstance(value, float) else str(value)]
