"""A dialect: which spellings there are, the option each one sets, and how its value is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from convoy.config.fields import Option
from convoy.config.layers import Setting, from_source
from convoy.config.schema import option_table
from convoy.config.values import Kind, WrongType
from convoy.config.yaml_limits import shown

Given = dict[str, Setting]
Join = Callable[[Given], Given]  # raises WrongType, in the words of its dialect


@dataclass(frozen=True)
class Flag:
    """A spelling → a canonical option, or a part of a value that a join puts together.

    With `means` it is a switch: it takes no value and stands for that one.
    """

    spelling: str
    to: str
    read: Callable[[list[str]], Any] | None = None
    means: Any = None

    @property
    def option(self) -> Option | None:
        """The row of the option table this spelling sets; a part has none."""
        return option_table().get(self.to)

    @property
    def many(self) -> bool:
        """Whether several words may follow."""
        return self.means is None and self.option is not None and self.option.kind.many

    def value(self, words: list[str]) -> Any:
        """What the words behind this spelling say; a bare switch stands for `true`."""
        if self.means is not None:
            return self._switched(words[0])
        if self.read is None:
            return (self.option.kind if self.option else Kind(str)).read(words)
        if words == [""]:
            raise WrongType("needs a value")
        return self.read(words)

    def _switched(self, word: str) -> Any:
        if word.lower() == "true":
            return self.means
        if not isinstance(self.means, bool):
            raise WrongType(f"takes no value, got {shown(word)}")
        if word.lower() != "false":
            raise WrongType(f"takes no value, or true or false, got {shown(word)}")
        return not self.means


@dataclass(frozen=True)
class Dialect:
    """A table of spellings, the defaults its users rely on, and values made of several words."""

    name: str
    flags: tuple[Flag, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    joins: tuple[Join, ...] = ()

    def settings(self) -> Given:
        """Its defaults as a layer."""
        return from_source(f"dialect {self.name}", self.defaults)
