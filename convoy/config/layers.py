"""Values in layers: later sources win, and every value keeps the name of its source."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
