"""option() declares a field of a section: its help, its limits, what it excludes, when it has no
effect, and what is supported. Option is such a field as the table has it; ValueType reads its value
from words of a command line, or from YAML.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from types import NoneType, UnionType
from typing import Any, TypedDict, Union, Unpack, get_args, get_origin, get_type_hints

from convoy.registry import suggest
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
            return replace(ValueType.of(inner), optional=True)
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
    try:
        value = {"true": True, "false": False}[word.lower()] if base is bool else base(word)
    except (ValueError, KeyError):
        raise _wrong(base, shown(word)) from None
    return _storable(value)


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


# When an option has no effect: a condition takes the RunConfig and returns the rest of the sentence
# `--option has no effect …`, or None. The sections that use it make up the RunConfig: no type here.
Run = Any
Condition = Callable[[Run], str | None]


def when(holds: Callable[[Run], Any], why: str) -> Condition:
    """No effect where this holds; the reason may name values of the run, as `{run.data.data}`."""
    return lambda run: why.format(run=run) if holds(run) else None


def unless(name: str, *values: Any, why: str = "") -> Condition:
    """An effect only where another option has one of these values."""
    return _depends(name, lambda value: value in values, why)


def where(name: str, *values: Any, why: str = "") -> Condition:
    """No effect where another option has one of these values."""
    return _depends(name, lambda value: value not in values, why)


def without(name: str) -> Condition:
    """No effect unless another option is given."""
    return when(lambda run: not _value(run, name), f"without {_flag(name)}")


def _depends(name: str, has_effect: Callable[[Any], bool], why: str) -> Condition:
    def condition(run: Run) -> str | None:
        value = _value(run, name)
        if has_effect(value):
            return None
        words = f"{_flag(name)} {spelled(value)}"
        if isinstance(value, bool):
            words = _flag(name) if value else _flag(f"no_{name}")
        return f"with {words}: {why}" if why else f"with {words}"

    return condition


def _value(run: Run, name: str) -> Any:
    return next(vars(section)[name] for section in vars(run).values() if name in vars(section))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Limit:
    """The values an option may take: a range, or a closed list."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()

    def problem(self, value: Any) -> str | None:
        """What is wrong with one value, or None."""
        if self.choices:
            if value in self.choices:
                return None
            return f"cannot be {shown(value)}; {suggest(value, self.choices)}"
        if self.at_least is not None and value < self.at_least:
            return f"must be at least {self.at_least:g}, got {spelled(value)}"
        if self.above is not None and value <= self.above:
            return f"must be above {self.above:g}, got {spelled(value)}"
        if self.at_most is not None and value > self.at_most:
            return f"must be at most {self.at_most:g}, got {spelled(value)}"
        return None

    def __str__(self) -> str:
        bounds = [("≥", self.at_least), (">", self.above), ("≤", self.at_most)]
        return " or ".join(self.choices) or ", ".join(
            f"{sign} {bound:g}" for sign, bound in bounds if bound is not None
        )


@dataclass(frozen=True)
class Exclusion:
    """Another option that says the same in another way: the one of the higher source wins."""

    other: str
    both: str = ""  # what both would do; a source may set both where this is empty
    needed: bool = False  # one of the two must be set


class Support(StrEnum):
    """Where an option has an effect."""

    HERE = "works here"
    CUDA = "works on CUDA only"
    NOWHERE = "no counterpart"


@dataclass(frozen=True)
class Declaration:
    """What `option()` says beside type and default, which the field itself holds."""

    help: str
    limit: Limit = Limit()
    also: tuple[str, ...] = ()  # older spellings
    env: str | None = None  # the environment variable that sets it
    free: bool = False  # no bit of the weights depends on it: a resumed run may change it
    jointly: bool = False  # they depend on its product with --replicas only
    fixed: str = ""  # why it cannot be given to a run that is resumed
    momentary: bool = False  # holds for one part of a run only
    excludes: Exclusion | None = None
    idle: tuple[Condition, ...] = ()  # when it has no effect; the first that holds is reported
    ready: tuple[Any, ...] | None = None  # the values this version can carry out; None: all
    cuda_only: str = ""  # what it does on CUDA, where it has an effect on CUDA alone
    no_counterpart: str = ""  # why it has no effect on any device we know

    @property
    def why(self) -> str:
        """What it does on CUDA alone, or why it can do nothing."""
        return self.no_counterpart or self.cuda_only

    @property
    def support(self) -> Support:
        if self.no_counterpart:
            return Support.NOWHERE
        return Support.CUDA if self.cuda_only else Support.HERE


class Details(TypedDict, total=False):
    """What a declaration may say: the fields of `Limit` and `Declaration`."""

    at_least: float
    above: float
    at_most: float
    between: tuple[float, float]  # at least, at most
    choices: tuple[str, ...]
    also: tuple[str, ...]
    env: str
    free: bool
    jointly: bool
    fixed: str
    momentary: bool
    excludes: Exclusion
    idle: Condition | tuple[Condition, ...]
    ready: tuple[Any, ...]
    cuda_only: str
    no_counterpart: str


def option(default: Any, help: str, **details: Unpack[Details]) -> Any:
    """Declare an option."""
    rest: dict[str, Any] = {**details}
    if "between" in rest:
        rest["at_least"], rest["at_most"] = rest.pop("between")
    limits = {one.name for one in fields(Limit)} & rest.keys()
    limit = Limit(**{name: rest.pop(name) for name in limits})
    if callable(idle := rest.get("idle")):  # a single condition
        rest["idle"] = (idle,)
    return field(default=default, metadata={"option": Declaration(help, limit, **rest)})


free_option = partial(option, free=True)  # no bit of the weights depends on it


@dataclass(frozen=True)
class Option:
    """One row of the option table."""

    name: str
    section: str
    kind: ValueType
    default: Any
    declared: Declaration

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def unset(self) -> Any:
        """Its value where an option that it excludes is set instead."""
        return None if self.kind.optional else self.default

    @property
    def pending(self) -> bool:
        """Whether some of its values are not available in this version."""
        return self.declared.ready is not None

    @property
    def does_something(self) -> bool:
        """Whether this version, on the device at hand, honors any value but the default."""
        others = set(self.declared.ready or ()) - {self.default}
        return self.declared.support is Support.HERE and (not self.pending or bool(others))

    def unsupported(self, device: str) -> str | None:
        """Why no device, or not this one, can honor it; None: it does something."""
        if self.declared.no_counterpart:
            return f"off the IPU: {self.declared.no_counterpart}"
        if self.declared.cuda_only and device != "cuda":
            where = "unless the device is CUDA" if device == "auto" else f"with --device {device}"
            return f"{where}; on CUDA it {self.declared.cuda_only}"
        return None

    def is_ready(self, value: Any) -> bool:
        """Whether this version can carry out the value."""
        return self.declared.ready is None or value in self.declared.ready

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value of the right type, or None."""
        if value is None:
            return None
        each = value if self.kind.many else (value,)
        return next((text for one in each if (text := self.declared.limit.problem(one))), None)


def options_of(section: str, declared: type) -> list[Option]:
    """The rows that a section of the configuration declares."""
    hints = get_type_hints(declared)
    return [
        # A default goes through the same door as a value of a file: 5 epochs become 5.0.
        Option(one.name, section, kind, kind.check(one.default), one.metadata["option"])
        for one in fields(declared)
        if (kind := ValueType.of(hints[one.name]))
    ]
