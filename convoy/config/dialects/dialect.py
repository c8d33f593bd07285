"""A dialect: which spellings there are, the option each one sets, and how its value is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from convoy.config.fields import Option
from convoy.config.layers import Setting
from convoy.config.schema import option_table

Given = dict[str, Setting]


@dataclass(frozen=True)
class Flag:
    """A spelling → a canonical option. With `means` it takes no value and stands for that one."""

    spelling: str
    to: str
    read: Callable[[list[str]], Any] | None = None
    means: Any = None

    @property
    def option(self) -> Option:
        """The row of the option table this spelling sets."""
        return option_table()[self.to]

    def value(self, words: list[str]) -> Any:
        """What the words behind this spelling say."""
        if self.means is not None:
            return self.means
        return self.read(words) if self.read else self.option.kind.read(words)


@dataclass(frozen=True)
class Dialect:
    """A table of spellings, the defaults its users rely on, and values made of several words."""

    name: str
    flags: tuple[Flag, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    joins: tuple[Callable[[Given], Given], ...] = ()
