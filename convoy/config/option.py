"""option() declares a field of a section: its help, its limits, what it excludes, when it has no
effect, and what is supported. Option is such a field as the table has it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypedDict, Unpack, get_type_hints

from convoy.config.inactive import Condition, unless, without
from convoy.config.values import ValueType, spelled
from convoy.registry import suggest
from convoy.text import shown


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
    only_with: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    needs: tuple[str, ...] = ()  # options without which it has no effect
    idle: tuple[Condition, ...] = ()  # other conditions under which it has no effect
    ready: tuple[Any, ...] | None = None  # the values this version can carry out; None: all
    cuda_only: str = ""  # what it does on CUDA, where it has an effect on CUDA alone
    no_counterpart: str = ""  # why it has no effect on any device we know

    @property
    def inactive(self) -> tuple[Condition, ...]:
        """Every condition under which it has no effect; the first that holds is reported."""
        simple = [unless(name, *values) for name, values in self.only_with.items()]
        return (*simple, *map(without, self.needs), *self.idle)

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
    choices: tuple[str, ...]
    also: tuple[str, ...]
    env: str
    free: bool
    jointly: bool
    fixed: str
    momentary: bool
    excludes: Exclusion
    only_with: Mapping[str, tuple[Any, ...]]
    needs: str | tuple[str, ...]
    idle: Condition | tuple[Condition, ...]
    ready: tuple[Any, ...]
    cuda_only: str
    no_counterpart: str


def option(default: Any, help: str, **details: Unpack[Details]) -> Any:
    """Declare an option."""
    return _field(default, help, dict(details))


def free_option(default: Any, help: str, **details: Unpack[Details]) -> Any:
    """Declare an option on which no bit of the weights depends."""
    return _field(default, help, {**details, "free": True})


def _field(default: Any, help: str, details: dict[str, Any]) -> Any:
    limits = {one.name for one in fields(Limit)} & details.keys()
    limit = Limit(**{name: details.pop(name) for name in limits})
    for name in {"needs", "idle"} & details.keys():
        if not isinstance(details[name], tuple):  # one of them alone
            details[name] = (details[name],)
    return field(default=default, metadata={"option": Declaration(help, limit, **details)})


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
    kinds = {
        name: ValueType.of(annotation) for name, annotation in get_type_hints(declared).items()
    }
    return [
        # A default goes through the same door as a value of a file: 5 epochs become 5.0.
        Option(one.name, section, kind, kind.check(one.default), one.metadata["option"])
        for one, kind in ((one, kinds[one.name]) for one in fields(declared))
    ]
