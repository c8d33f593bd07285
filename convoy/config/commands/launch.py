"""What launchers and variables ask of a run, and which of their words have no counterpart."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from convoy.config.layers import Setting
from convoy.config.problems import Dropped, Problem
from convoy.config.values import spelled

Given = dict[str, Setting]


@dataclass(frozen=True)
class Launch:
    """Values with their sources, variables for the run, and what was dropped.

    `given` holds what was asked for out of: hosts, instances, replicas (of all instances
    together), devices_per_replica, executable_cache_path, profile_dir, synthetic_data, verbosity.
    """

    given: Given = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[Dropped, ...] = ()


@dataclass
class Heard:
    """What one launcher or variable has said so far."""

    source: str
    given: Given = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def give(self, name: str, value: Any) -> None:
        """Ask for a value."""
        self.given[name] = Setting(value, self.source)

    def drop(self, words: Sequence[str], reason: str) -> None:
        """Tell that words do nothing here."""
        self.dropped.append(Dropped(" ".join(words), reason))


def together(heard: Sequence[Heard]) -> Launch:
    """All that was heard as one; the last one wins."""
    return Launch(
        {name: setting for one in heard for name, setting in one.given.items()},
        {name: value for one in heard for name, value in one.environment.items()},
        tuple(dropped for one in heard for dropped in one.dropped),
    )


def contradictions(sources: Iterable[Given]) -> list[Problem]:
    """Every value that two sources give differently."""
    first: Given = {}
    problems = []
    for given in sources:
        for name, setting in given.items():
            before = first.setdefault(name, setting)
            if before.value != setting.value:
                says = f"{before.source} says {spelled(before.value)}"
                other = f"{setting.source} {spelled(setting.value)}"
                what = name.replace("_", " ")
                problems.append(Problem("", f"{what}: {says} and {other}; make them agree"))
    return list(dict.fromkeys(problems))
