"""option(): a dataclass field with help and limits. Option: such a field as the table sees it."""

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, get_type_hints

from convoy.config.user_text import shown
from convoy.config.values import Kind, spelled
from convoy.registry import suggest


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


ANY = Limit()


def at_least(bound: float, at_most: float | None = None) -> Limit:
    """`bound` and upwards."""
    return Limit(at_least=bound, at_most=at_most)


def above(bound: float, at_most: float | None = None) -> Limit:
    """More than `bound`."""
    return Limit(above=bound, at_most=at_most)


def one_of(*choices: str) -> Limit:
    """One of these words."""
    return Limit(choices=choices)


class Reach(StrEnum):
    """Where an option does anything."""

    HERE = "works here"
    CUDA = "works on CUDA only"
    NOWHERE = "no counterpart"


@dataclass(frozen=True)
class Declaration:
    """What `option()` says beside type and default, which the field itself holds."""

    help: str
    limit: Limit
    also: tuple[str, ...]
    env: str | None
    free: bool  # may change between two parts of a run without changing a bit of its weights
    ready: tuple[Any, ...] | None = None  # the values this version can carry out; None: all
    reach: Reach = Reach.HERE
    why: str = ""  # what it does on CUDA, or why it can do nothing


def option(
    default: Any,
    help: str,
    limit: Limit = ANY,
    also: tuple[str, ...] = (),
    env: str | None = None,
    free: bool = False,
) -> Any:
    """Declare an option: its default, its meaning, its limits, older spellings, its variable."""
    return field(default=default, metadata={"option": Declaration(help, limit, also, env, free)})


def not_yet(declared: Any, *ready: Any) -> Any:
    """An option of which this version can carry out only these values, or only its default."""
    entry = replace(declared.metadata["option"], ready=ready or (declared.default,))
    return field(default=declared.default, metadata={"option": entry})


def cuda_only(declared: Any, does: str) -> Any:
    """An option that does something on CUDA alone."""
    return _reaching(declared, Reach.CUDA, does)


def no_counterpart(declared: Any, why: str) -> Any:
    """An option that is taken and recorded, and can do nothing on any device we know."""
    return _reaching(declared, Reach.NOWHERE, why)


def _reaching(declared: Any, reach: Reach, why: str) -> Any:
    entry = replace(declared.metadata["option"], reach=reach, why=why)
    return field(default=declared.default, metadata={"option": entry})


@dataclass(frozen=True)
class Option:
    """One row of the option table."""

    name: str
    section: str
    kind: Kind
    default: Any
    declared: Declaration

    @property
    def flag(self) -> str:
        """The spelling on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def pending(self) -> bool:
        """Whether some of its values are not available in this version."""
        return self.declared.ready is not None

    @property
    def does_something(self) -> bool:
        """Whether this version, on the device at hand, honors any value but the default."""
        others = set(self.declared.ready or ()) - {self.default}
        return self.declared.reach is Reach.HERE and (not self.pending or bool(others))

    def out_of_reach(self, device: str) -> str | None:
        """Why no device, or not this one, can honor it; None: it does something."""
        reach, why = self.declared.reach, self.declared.why
        if reach is Reach.NOWHERE:
            return f"off the IPU: {why}"
        if reach is Reach.CUDA and device != "cuda":
            where = "unless the device is CUDA" if device == "auto" else f"with --device {device}"
            return f"{where}; on CUDA it {why}"
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
    kinds = {name: Kind.of(annotation) for name, annotation in get_type_hints(declared).items()}
    return [
        # A default goes through the same door as a value of a file: 5 epochs become 5.0.
        Option(one.name, section, kind, kind.check(one.default), one.metadata["option"])
        for one, kind in ((one, kinds[one.name]) for one in fields(declared))
    ]
