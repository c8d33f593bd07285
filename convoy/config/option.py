"""Declare and describe options.

`option()` declares a field of a section: its help, limits, exclusions, the conditions under which
it has no effect, and where it is supported. `Option` is the row of the option table for such a
field. `ValueType` parses its value from command line arguments or YAML.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from convoy.registry import suggest
from convoy.text import MAX_DIGITS, control_character, one_line, quote_shortened

_COMMA = re.compile(r"(?<!\\),")  # not escaped


class OptionTypeError(ValueError):
    """A value does not have the type of its option; the message gives the expected type."""


@dataclass(frozen=True)
class ValueType:
    """The type of an option: a base type or a list of it, possibly optional."""

    base: type
    is_list: bool = False
    optional: bool = False

    @staticmethod
    def from_annotation(annotation: Any) -> "ValueType":
        """Convert the annotation of a field: `int`, `int | None` or `tuple[str, ...]`."""
        if get_origin(annotation) in (UnionType, Union):
            (inner,) = (arg for arg in get_args(annotation) if arg is not NoneType)
            return replace(ValueType.from_annotation(inner), optional=True)
        if get_origin(annotation) is tuple:
            return ValueType(get_args(annotation)[0], is_list=True)
        return ValueType(annotation)

    def parse(self, words: list[str]) -> Any:
        """Parse the words of a command line or an environment variable."""
        if self.is_list:
            items = (item for word in words for item in _split_items(word))
            return tuple(_check_item(_parse_word(self.base, item)) for item in items)
        return _parse_word(self.base, words[0])

    def check(self, value: Any) -> Any:
        """Return a value from YAML if it has this type; raise OptionTypeError otherwise."""
        if value is None and (self.optional or self.is_list):
            return () if self.is_list else None
        if self.is_list:
            items = value if isinstance(value, list | tuple) else [value]
            return tuple(_check_item(_check_value(self.base, item)) for item in items)
        return _check_value(self.base, value)

    def __str__(self) -> str:
        word = {int: "integer", float: "number", bool: "true or false", str: "string"}[self.base]
        if self.base is bool or not self.is_list:
            return word
        return f"list of {word}s"


def to_cli_words(value: Any) -> list[str]:
    """The exact spelling of a value on a command line."""
    if isinstance(value, tuple):
        return [word.replace(",", "\\,") for item in value for word in to_cli_words(item)]
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, float):
        short = f"{value:g}"
        return [short if float(short) == value else repr(value)]
    return [str(value)]


def format_value(value: Any) -> str:
    """A value on one line, with control characters escaped; a dash if it is unset."""
    return "–" if value in (None, ()) else one_line(" ".join(to_cli_words(value)))


def _split_items(word: str) -> list[str]:
    """`a,b` and `a b` are the same list; `a\\,b` is one item with a comma in it."""
    return [item.replace("\\,", ",") for item in _COMMA.split(word) if item]


def _check_item(item: Any) -> Any:
    """Return an item of a list unless it would escape the comma after it."""
    if isinstance(item, str) and item.endswith("\\"):
        raise OptionTypeError(
            f"cannot contain {quote_shortened(item)}: an item of a list cannot end with a backslash"
        )
    return item


def _parse_word(base: type, word: str) -> Any:
    if not word:
        raise OptionTypeError("needs a value")
    try:
        value = {"true": True, "false": False}[word.lower()] if base is bool else base(word)
    except (ValueError, KeyError):
        raise _type_error(base, quote_shortened(word)) from None
    return _check_storable(value)


def _check_value(base: type, value: Any) -> Any:
    if base is float and type(value) is int:
        return float(value)
    if type(value) is not base:  # isinstance would take true for an integer
        raise _type_error(base, describe_value(value))
    return _check_storable(value)


def _check_storable(value: Any) -> Any:
    """Return a value if the `config.yaml` of a run can store and restore it."""
    match value:
        case float() if not math.isfinite(value):
            raise OptionTypeError(f"expects a finite number, got {value}")
        case int() if abs(value) >= 10**MAX_DIGITS:
            raise OptionTypeError(f"expects an integer of at most {MAX_DIGITS} digits")
        case "":
            raise OptionTypeError("needs a value")
        case "--":
            raise OptionTypeError("cannot be '--', which marks the end of the options")
        case str() if match := control_character(value):
            raise OptionTypeError(f"contains the control character U+{ord(match[0]):04X}")
    return value


def _type_error(base: type, received: str) -> OptionTypeError:
    article = {int: "an ", float: "a ", str: "a "}.get(base, "")
    return OptionTypeError(f"expects {article}{ValueType(base)}, got {received}")


def describe_value(value: Any) -> str:
    """Describe a value from YAML in a message."""
    if value is None:
        return "nothing"
    if isinstance(value, list | dict):
        return "several values"
    return quote_shortened(value) if isinstance(value, str) else str(value).lower()


# A condition returns the rest of the sentence `--option has no effect …`, or None if the option is
# active. Run is the RunConfig, which is made of the sections and cannot be imported here.
Run = Any
Condition = Callable[[Run], str | None]


def condition(predicate: Callable[[Run], Any], reason: str) -> Condition:
    """No effect if the predicate is true; the reason may use values such as `{run.data.data}`."""
    return lambda run: reason.format(run=run) if predicate(run) else None


def option_is_unset(name: str) -> Condition:
    """No effect unless another option is set."""
    return condition(lambda run: not _value(run, name), f"without {_flag(name)}")


def option_is(name: str, *values: Any, reason: str = "", negate: bool = False) -> Condition:
    """No effect if another option has one of these values."""

    def inactive_reason(run: Run) -> str | None:
        value = _value(run, name)
        if (value in values) is negate:
            return None
        words = f"{_flag(name)} {format_value(value)}"
        if isinstance(value, bool):
            words = _flag(name) if value else _flag(f"no_{name}")
        return f"with {words}: {reason}" if reason else f"with {words}"

    return inactive_reason


option_is_not = partial(option_is, negate=True)  # no effect unless it has one of these values


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
    or_import_path: bool = False  # `module:function` is allowed besides the choices

    def problem(self, value: Any) -> str | None:
        """What is wrong with a single value, or None."""
        is_import_path = self.or_import_path and ":" in value
        if self.choices and value not in self.choices and not is_import_path:
            return f"cannot be {quote_shortened(value)}; {suggest(value, self.choices)}"
        if self.at_least is not None and value < self.at_least:
            return f"must be at least {self.at_least:g}, got {format_value(value)}"
        if self.above is not None and value <= self.above:
            return f"must be greater than {self.above:g}, got {format_value(value)}"
        if self.at_most is not None and value > self.at_most:
            return f"must be at most {self.at_most:g}, got {format_value(value)}"
        return None

    def __str__(self) -> str:
        bounds = [("≥", self.at_least), (">", self.above), ("≤", self.at_most)]
        return " or ".join(self.choices) or ", ".join(
            f"{sign} {bound:g}" for sign, bound in bounds if bound is not None
        )


@dataclass(frozen=True)
class Exclusion:
    """Another option that sets the same thing: the one from the higher source applies."""

    other: str
    conflict: str = ""  # what both would set; if empty, one source may give both
    required: bool = False  # one of the two must be set


class Support(StrEnum):
    """Where an option has an effect."""

    EVERYWHERE = "any device"
    CUDA_ONLY = "CUDA only"
    UNSUPPORTED = "no effect"


def option(default: Any, help: str, **details: Any) -> Any:
    """Declare an option; the details are fields of `Limit` and `Option`."""
    if "between" in details:
        details["at_least"], details["at_most"] = details.pop("between")
    limits = {limit.name for limit in fields(Limit)} & details.keys()
    limit = Limit(**{name: details.pop(name) for name in limits})
    if callable(single := details.get("inactive_when")):
        details["inactive_when"] = (single,)
    return field(default=default, metadata={"help": help, "limit": limit, **details})


runtime_option = partial(option, changeable_on_resume=True)  # does not affect the weights


@dataclass(frozen=True)
class Option:
    """A row of the option table: a field of a section with what `option()` declares."""

    name: str
    section: str
    value_type: ValueType
    default: Any
    help: str
    limit: Limit = Limit()
    aliases: tuple[str, ...] = ()  # other spellings of the flag
    help_flag: str = ""  # the alias that help shows, if users know it better
    metavar: str = ""  # describes the value in help; default: its type
    env_var: str | None = None  # environment variable that sets it
    changeable_on_resume: bool = False  # the weights do not depend on it
    scaled_by_replicas: bool = False  # the weights depend only on its product with --replicas
    fixed_reason: str = ""  # why it cannot be given to a resumed run
    not_resumed: bool = False  # applies until the run stops, not to a resumed run
    excludes: Exclusion | None = None
    inactive_when: tuple[Condition, ...] = ()  # the first that applies is reported
    available_values: tuple[Any, ...] | None = None  # in this version; None: all
    cuda_effect: str = ""  # what it does on CUDA, if it works on CUDA only
    no_counterpart: str = ""  # why it has no effect on any device but an IPU

    @property
    def flag(self) -> str:
        return _flag(self.name)

    @property
    def shown_flag(self) -> str:
        """The spelling that help shows first."""
        return self.help_flag or self.flag

    @property
    def unset_value(self) -> Any:
        """The value if an excluding option is set instead."""
        return None if self.value_type.optional else self.default

    @property
    def support(self) -> Support:
        if self.no_counterpart:
            return Support.UNSUPPORTED
        return Support.CUDA_ONLY if self.cuda_effect else Support.EVERYWHERE

    @property
    def has_effect(self) -> bool:
        """Whether this version supports any value other than the default, on every device."""
        values = self.available_values
        has_choice = values is None or bool({*values} - {self.default})
        return self.support is Support.EVERYWHERE and has_choice

    def unsupported_reason(self, device: str) -> str | None:
        """Why the option has no effect on this device, or None."""
        if self.no_counterpart:
            return f"without an IPU: {self.no_counterpart}"
        if self.cuda_effect and device != "cuda":
            words = "unless the device is CUDA" if device == "auto" else f"with --device {device}"
            return f"{words}; on CUDA it {self.cuda_effect}"
        return None

    def is_available(self, value: Any) -> bool:
        """Whether this version supports the value."""
        return self.available_values is None or value in self.available_values

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value of the right type, or None."""
        if value is None:
            return None
        problems = map(self.limit.problem, value if self.value_type.is_list else (value,))
        return next(filter(None, problems), None)

    def to_cli_args(self, value: Any) -> list[str]:
        """The arguments of a canonical command line for this value; none if it is unset."""
        if value is None:
            return []
        if self.value_type.base is bool:
            return [self.flag if value else _flag(f"no_{self.name}")]
        words = to_cli_words(value)
        if self.value_type.base is str and any(word.startswith("-") for word in words):
            # After a space, argparse would take it for a flag. Negative numbers are no problem.
            return [f"{self.flag}={','.join(words)}"]
        return [self.flag, *words]


def section_options(section: str, declared: type) -> list[Option]:
    hints = get_type_hints(declared)
    return [
        # Defaults are checked like values from a file: 5 epochs become 5.0.
        Option(row.name, section, value_type, value_type.check(row.default), **row.metadata)
        for row in fields(declared)
        if (value_type := ValueType.from_annotation(hints[row.name]))
    ]
