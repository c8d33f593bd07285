"""option(): a dataclass field with help and limits. Option: such a field as the table sees it."""

from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from convoy.config.values import Kind, spelled
from convoy.config.yaml_limits import shown
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


@dataclass(frozen=True)
class Declaration:
    """What `option()` says beside type and default, which the field itself holds."""

    help: str
    limit: Limit
    also: tuple[str, ...]
    env: str | None
    free: bool  # may change between two parts of a run without changing a bit of its weights


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
