"""A dialect: which spellings there are, the option each one sets, and how its value is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from convoy.config.dialects.speech import Join
from convoy.config.fields import Option
from convoy.config.layers import Setting, from_source
from convoy.config.schema import option_table
from convoy.config.user_text import shown
from convoy.config.values import Kind, WrongType, as_words, named

Defaults = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # of what has been chosen so far

_NUMBERS = (int, float)


def no_defaults(chosen: Mapping[str, Any]) -> Mapping[str, Any]:
    """A dialect that relies on ours."""
    del chosen
    return {}


@dataclass(frozen=True)
class Flag:
    """A spelling → a canonical option, or a part of a value that a join puts together.

    With `means` it is a switch: it takes no value and stands for that one. With `why` nothing
    comes of it, and that is the reason.
    """

    spelling: str
    to: str = ""
    read: Callable[[list[str]], Any] | None = None
    means: Any = None
    key: str = ""  # its name in a file, where that is not the spelling
    several: bool = False  # a part made of several words
    bare: Any = None  # what it says without a value, which may be left out then
    older: bool = False  # help does not speak of it
    why: str = ""

    @property
    def name(self) -> str:
        """What a configuration file calls it."""
        return self.key or self.plain_name

    @property
    def plain_name(self) -> str:
        """Its spelling as a key."""
        return self.spelling.lstrip("-").replace("-", "_")

    @property
    def option(self) -> Option | None:
        """The row of the option table this spelling sets; a part has none."""
        return option_table().get(self.to)

    @property
    def many(self) -> bool:
        """Whether several words may follow."""
        of_option = self.option is not None and self.option.kind.many
        return self.means is None and (self.several or of_option)

    def value(self, words: list[str]) -> Any:
        """What the words behind this spelling say; a bare switch stands for `true`."""
        if self.means is not None:
            return self._switched(words[0])
        if self.bare is not None and words == [""]:
            return self.bare
        return self._read(words)

    def value_in_file(self, value: Any) -> Any:
        """What a value of YAML says; None: nothing."""
        if self.means is not None:
            return self._switched_in_file(value)
        if value is None or (isinstance(value, list) and not value):
            return self._kind.check(value) if self.option else None
        if isinstance(value, list) and len(value) > 1 and not self.many:
            raise WrongType(f"expects one value, got {len(value)}")
        if self.read is not None or self.option is None:
            return self._read(_words(value))
        if self.option.declared.limit.choices and type(value) in _NUMBERS:
            value = as_words(value)[0]  # `precision: 16.16` is meant as it is written
        return self.option.kind.check(value)

    def _read(self, words: list[str]) -> Any:
        if self.read is not None and words == [""]:
            raise WrongType("needs a value")
        value = self._kind.read(words) if self.read is None else self.read(words)
        # An option may be an empty list; a part of a value cannot be nothing.
        if self.several and not value:
            raise WrongType("needs a value")
        return value

    @property
    def _kind(self) -> Kind:
        return self.option.kind if self.option else Kind(str, many=self.several)

    def _switched(self, word: str) -> Any:
        if word.lower() == "true":
            return self.means
        if not isinstance(self.means, bool):
            raise WrongType(f"takes no value, got {shown(word)}")
        if word.lower() != "false":
            raise WrongType(f"takes no value, or true or false, got {shown(word)}")
        return not self.means

    def _switched_in_file(self, value: Any) -> Any:
        if value is None and self.option is not None and self.option.kind.optional:
            return None
        if not isinstance(value, bool):
            raise WrongType(f"expects true or false, got {named(value)}")
        if self.key:
            return value  # the file names what the switch decides, not the switch
        if value:
            return self.means
        return not self.means if isinstance(self.means, bool) else None


def _words(value: Any) -> list[str]:
    """A value of YAML as a command line would spell it."""
    if isinstance(value, dict):
        raise WrongType("expects a value, got several with names")
    return as_words(tuple(value) if isinstance(value, list) else value)


@dataclass(frozen=True)
class Dialect:
    """A table of spellings, the defaults its users rely on, and values made of several words."""

    name: str
    flags: tuple[Flag, ...]
    defaults: Defaults = no_defaults
    joins: tuple[Join, ...] = ()
    says: Mapping[str, str] = field(default_factory=dict)  # what becomes of words, for people

    def settings(self, chosen: Mapping[str, Any]) -> dict[str, Setting]:
        """Its defaults as a layer."""
        return from_source(f"dialect {self.name}", self.defaults(chosen))

    @cached_property
    def by_name(self) -> dict[str, Flag]:
        """Its flags by the names that a configuration file uses, and as they are spelled."""
        plain = {one.plain_name: replace(one, key="") for one in self.flags if one.key}
        return plain | {flag.name: flag for flag in reversed(self.flags)}

    @cached_property
    def by_spelling(self) -> dict[str, Flag]:
        return {flag.spelling: flag for flag in self.flags}
