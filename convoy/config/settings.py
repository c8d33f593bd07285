"""Values with their sources: in layers, where later sources win, and as a YAML file or a digest.
Problems are gathered and reported together.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from convoy.config.option import spelled
from convoy.config.schema import option_table
from convoy.errors import ConfigError
from convoy.text import printable

COMMAND_LINE = "command line"  # the source of what was typed


@dataclass(frozen=True)
class Setting:
    """A value and who set it."""

    value: Any
    source: str


def from_source(source: str, values: Mapping[str, Any]) -> dict[str, Setting]:
    """A layer whose values all come from one place."""
    return {name: Setting(value, source) for name, value in values.items()}


def layer(*layers: Mapping[str, Setting]) -> dict[str, Setting]:
    """All layers as one; a later layer wins over an earlier one."""
    return {name: setting for one in layers for name, setting in one.items()}


def values_of(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The values alone."""
    return {name: setting.value for name, setting in settings.items()}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in the words the user typed."""

    subject: str  # an option as spelled, a key with its file and line
    text: str

    def __str__(self) -> str:
        return f"{self.subject} {self.text}" if self.subject else self.text


def beyond_limits(
    settings: Mapping[str, Setting], subject: Callable[[str, Setting], str]
) -> Iterator[Problem]:
    """What is wrong with values of the right type; `subject` names each in the user's words."""
    for name, setting in settings.items():
        if (text := option_table()[name].problem(setting.value)) is not None:
            yield Problem(subject(name, setting), text)


@dataclass(frozen=True)
class Dropped:
    """A word that nothing comes of, as typed, and why."""

    word: str
    reason: str


def refuse(problems: Iterable[Problem]) -> None:
    """Raise one error that lists every problem; pass if there is none."""
    listed = list(dict.fromkeys(str(problem) for problem in problems))
    if listed:
        raise ConfigError("\n".join(listed))


def settings_as_yaml(settings: Mapping[str, Setting]) -> str:
    """One line an option. JSON values are YAML values, and quote themselves."""
    lines = ["# What this run was asked for. `convoy resume` reads it back."]
    for name, setting in settings.items():
        value = json.dumps(setting.value, ensure_ascii=False)
        lines.append(f"{name}: {value}  # {printable(setting.source)}")
    return "\n".join(lines) + "\n"


def binding_values(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Every value that the weights depend on, alone or with others, as JSON holds it."""
    values = {name: one.value for name, one in settings.items() if _binds(name) or _jointly(name)}
    return {name: list(one) if isinstance(one, tuple) else one for name, one in values.items()}


def digest(settings: Mapping[str, Setting]) -> str:
    """SHA-256 of every value that the weights depend on."""
    values = {name: one for name, one in binding_values(settings).items() if _binds(name)}
    content = json.dumps(values | _joint(settings), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def changed(before: Mapping[str, Setting], now: Mapping[str, Setting]) -> list[str]:
    """`--lr was 0.1, now 0.2` for each option that the weights depend on and that differs."""
    alone = [
        f"{option_table()[name].flag} was {spelled(before[name].value)}, "
        f"now {spelled(now[name].value)}"
        for name in now
        if _binds(name) and name in before and before[name].value != now[name].value
    ]
    old, new = _joint(before), _joint(now)
    both = [name for name in old if name in new and old[name] != new[name]]
    return alone + [f"{name} was {old[name]}, now {new[name]}" for name in both]


def _joint(settings: Mapping[str, Setting]) -> dict[str, int]:
    """What the layout may not change: the micro-batches of an update, and who shares statistics."""
    values = values_of(settings)
    counts = {name: int(value) for name, value in values.items() if _jointly(name)}
    replicas = counts.pop("replicas", 0)
    if not values.get("half_res_training"):  # there is no second phase
        counts.pop("fine_tune_gradient_accumulation", None)
    joint = {
        f"{option_table()[name].flag} × --replicas": count * replicas
        for name, count in counts.items()
        if replicas
    }
    shares = values.get("bn_span", 1) > 1
    return joint | ({"--replicas (with --bn-span)": replicas} if joint and shares else {})


def _binds(name: str) -> bool:
    return not option_table()[name].declared.free


def _jointly(name: str) -> bool:
    """An update's micro-batches may be shared out in any way; only their number matters."""
    return option_table()[name].declared.jointly
