"""Flags and the options they set: what all dialects share, and the canonical flags."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from convoy.config.option import Option, OptionTypeError, ValueType, describe_value, to_cli_words
from convoy.config.schema import (
    DroppedWord,
    Problem,
    Setting,
    Settings,
    option_table,
    settings_from,
)
from convoy.text import quote_shortened

CANONICAL = "convoy"  # the name of the dialect of convoy itself
TARGET = "target"  # the run or checkpoint that a command works on; not an option
DATA_BENCH_NOTE = "`convoy data bench`: data loading without training"


@dataclass(frozen=True)
class MappedWord:
    """An argument, and the option or note it is mapped to."""

    word: str
    mapped_to: str


@dataclass
class Translation:
    """The settings collected so far, on top of a named configuration.

    Until all flags are combined, the source of a setting is the argument itself.
    """

    settings: Settings
    base: Mapping[str, Setting] = field(default_factory=dict)
    set_by_launcher: frozenset[str] = frozenset()  # options set by a launcher
    mapped: list[MappedWord] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    dropped: list[DroppedWord] = field(default_factory=list)

    def pop(self, name: str) -> Setting | None:
        """Remove and return a setting that a combiner uses."""
        return self.settings.pop(name, None)

    def set_option(self, name: str, value: Any, *origins: Setting | None) -> None:
        """Set a canonical option on behalf of the settings it results from."""
        sources = [origin.source for origin in origins if origin is not None]
        assert sources, f"{name} is set without a source"
        self.mapped += [MappedWord(source, name) for source in sources]
        self.settings[name] = Setting(value, sources[0])

    def set_default(self, name: str, value: Any, *origins: Setting | None) -> None:
        """Set a canonical option unless it was given directly."""
        if name not in self.settings:
            self.set_option(name, value, *origins)

    def add_note(self, origin: Setting, text: str) -> None:
        """Record the effect of an argument that does not set an option."""
        self.mapped.append(MappedWord(origin.source, text))

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an option, from the settings so far or the named configuration."""
        for layer in (self.settings, self.base):
            if name in layer and layer[name].value is not None:
                return layer[name].value
        return default

    def add_problem(self, spelling: str, text: str) -> None:
        self.problems.append(Problem(spelling, text))

    def add_dropped(self, word: str, reason: str) -> None:
        self.dropped.append(DroppedWord(word, reason))


# Sets options from several flags at once; may raise OptionTypeError with names of its dialect.
Combiner = Callable[[Translation], None]


def _replicas_per_instance(translation: Translation) -> None:
    """If a launcher sets only the instances, the given replicas are those of each instance."""
    instances = translation.settings.get("instances")
    is_fixed = {name: name in translation.set_by_launcher for name in ("instances", "replicas")}
    if instances is not None and is_fixed["instances"] and not is_fixed["replicas"]:
        total = translation.get("replicas", 1) * instances.value
        translation.set_option("replicas", total, instances, translation.settings.get("replicas"))


def combine_settings(translation: Translation, combiners: Iterable[Combiner]) -> Settings:
    """Run all combiners and return the canonical settings; add problems to `translation`."""
    for combine in (_replicas_per_instance, *combiners):
        try:
            combine(translation)
        except OptionTypeError as error:
            translation.add_problem("", str(error))
    settings = {
        name: setting for name, setting in translation.settings.items() if name in option_table()
    }
    unused = [name for name in translation.settings if name not in settings and name != TARGET]
    assert translation.problems or not unused, f"no combiner uses {unused}"
    return settings


Defaults = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # of the values chosen so far


@dataclass(frozen=True)
class Flag:
    """A flag that sets a canonical option, or a part of a value that a combiner completes.

    With `const` it is a switch: it takes no value and sets this one. With `dropped` it has
    no effect.
    """

    spelling: str
    option_name: str = ""
    parser: Callable[[list[str]], Any] | None = None
    const: Any = None
    yaml_key: str = ""  # key in a file, if it differs from the spelling
    is_list: bool = False  # takes several words, for a part without an option
    value_if_bare: Any = None  # makes the value optional
    deprecated: bool = False  # not listed in help
    dropped: str = ""

    @property
    def name(self) -> str:
        """The key in a configuration file."""
        return self.yaml_key or self.spelling.lstrip("-").replace("-", "_")

    @property
    def option(self) -> Option | None:
        """The option this flag sets; None for a part of a value."""
        return option_table().get(self.option_name)

    @property
    def takes_list(self) -> bool:
        sets_list = self.option is not None and self.option.value_type.is_list
        return self.const is None and (self.is_list or sets_list)

    def parse(self, words: list[str]) -> Any:
        """Parse the words after the flag; a switch without a value gets `true`."""
        if self.const is not None:
            return self._parse_switch(words[0])
        if self.value_if_bare is not None and words == [""]:
            return self.value_if_bare
        return self._parse(words)

    def parse_yaml_value(self, value: Any) -> Any:
        """Parse a value from YAML; None sets nothing."""
        if self.const is not None:
            return self._parse_yaml_switch(value)
        if value is None or (isinstance(value, list) and not value):
            return self.option.value_type.check(value) if self.option else None
        if isinstance(value, list) and len(value) > 1 and not self.takes_list:
            raise OptionTypeError(f"expects one value, got {len(value)}")
        if self.parser is not None or self.option is None:
            if isinstance(value, dict):
                raise OptionTypeError("expects a value, got a mapping")
            return self._parse(to_cli_words(tuple(value) if isinstance(value, list) else value))
        if self.option.limit.choices and type(value) in (int, float):
            value = to_cli_words(value)[0]  # `precision: 16.16` is text that looks like a number
        return self.option.value_type.check(value)

    def _parse(self, words: list[str]) -> Any:
        if self.parser is not None and words == [""]:
            raise OptionTypeError("needs a value")
        value_type = self.option.value_type if self.option else ValueType(str, is_list=self.is_list)
        value = value_type.parse(words) if self.parser is None else self.parser(words)
        # An option accepts an empty list; a flag that sets only part of an option does not.
        if self.is_list and not value:
            raise OptionTypeError("needs a value")
        return value

    def _parse_switch(self, word: str) -> Any:
        if word.lower() == "true":
            return self.const
        if not isinstance(self.const, bool):
            raise OptionTypeError(f"takes no value, got {quote_shortened(word)}")
        if word.lower() != "false":
            raise OptionTypeError(
                f"takes no value except true or false, got {quote_shortened(word)}"
            )
        return not self.const

    def _parse_yaml_switch(self, value: Any) -> Any:
        if value is None and self.option is not None and self.option.value_type.optional:
            return None
        if not isinstance(value, bool):
            raise OptionTypeError(f"expects true or false, got {describe_value(value)}")
        if self.yaml_key:
            return value  # the key names the option, not the switch
        if value:
            return self.const
        return not self.const if isinstance(self.const, bool) else None


@dataclass(frozen=True)
class Dialect:
    """The flags of an application, its defaults, and its values that combine several flags."""

    name: str
    flags: tuple[Flag, ...]
    defaults: Defaults = lambda _: {}  # the canonical defaults
    combiners: tuple[Combiner, ...] = ()
    help_texts: Mapping[str, str] = field(default_factory=dict)  # by spelling

    def default_settings(self, chosen: Mapping[str, Any]) -> dict[str, Setting]:
        return settings_from(f"dialect {self.name}", self.defaults(chosen))

    @cached_property
    def by_name(self) -> dict[str, Flag]:
        """The flags by their keys in a configuration file, and by their spellings."""
        spelled = [replace(flag, yaml_key="") for flag in self.flags if flag.yaml_key]
        return {flag.name: flag for flag in (*spelled, *reversed(self.flags))}

    @property
    def is_canonical(self) -> bool:
        return self.name == CANONICAL

    @cached_property
    def off_switches(self) -> dict[str, str]:
        """The spelling that switches a boolean option off, by option."""
        switches = [flag for flag in reversed(self.flags) if flag.const is False]
        return {flag.option_name: flag.spelling for flag in switches}

    @cached_property
    def by_spelling(self) -> dict[str, Flag]:
        return {flag.spelling: flag for flag in self.flags}


# Describes how other dialects use a flag that this one does not have; None if they do not.
DialectLookup = Callable[[str], str | None]


def choice_parser(
    values: Iterable[str], normalize: Callable[[str], str] = str, expected: str = ""
) -> Callable[[list[str]], Any]:
    """Return a parser of words from a closed list, or of the keys of a mapping to its values."""
    known = values if isinstance(values, Mapping) else {value: value for value in values}

    def parse(words: list[str]) -> Any:
        word = normalize(words[0])
        if word not in known:
            choices = expected or f"one of {', '.join(known)}"
            raise OptionTypeError(f"must be {choices}, got {words[0]!r}")
        return known[word]

    return parse


@cache
def canonical() -> Dialect:
    """The dialect of convoy: every option by its name, `--no-…` for booleans, and aliases."""
    flags = (flag for row in option_table().values() for flag in _flags(row))
    recompute = "`--enable-recompute` for auto and manual; none recomputes only with several stages"
    return Dialect(
        CANONICAL,
        (*flags, *_DEPRECATED_FLAGS),
        combiners=(_combine_recompute_mode,),
        help_texts={"--recompute-mode": recompute},
    )


def _flags(row: Option) -> Iterator[Flag]:
    name, parser, bare = row.name, _PARSERS.get(row.name), _VALUE_IF_BARE.get(row.name)
    for spelling in (row.flag, *row.aliases):
        if row.value_type.base is bool:
            yield Flag(spelling, name, const=True)
            yield Flag("--no-" + spelling.removeprefix("--"), name, const=False)
        else:
            yield Flag(spelling, name, parser, value_if_bare=bare)


def _parse_normalization_location(words: list[str]) -> str:
    """Accept `ipu` for the device."""
    return "device" if words[0].lower() == "ipu" else words[0]


def _combine_recompute_mode(translation: Translation) -> None:
    """Several stages recompute in any mode, a single stage only with `auto` and `manual`."""
    mode = translation.pop("recompute_mode")
    if mode is not None:
        translation.set_default("enable_recompute", None if mode.value == "none" else True, mode)
        if mode.value == "none":
            translation.add_note(mode, "recompute only with several stages")


_PARSERS = {"normalization_location": _parse_normalization_location}
_VALUE_IF_BARE = {"pretrained": "published"}
_DEPRECATED_FLAGS = (
    Flag(
        "--recompute-mode",
        "recompute_mode",
        parser=choice_parser(("none", "auto", "manual"), expected="none, auto or manual"),
        deprecated=True,
    ),
    Flag("--disable-stable-batchnorm", "stable_norm", const=False, deprecated=True),
)


def canonical_flags(spellings: str) -> Iterator[Flag]:
    """Flags that are the same in the canonical dialect."""
    return (canonical().by_spelling[spelling] for spelling in spellings.split())


def lower_case(words: list[str]) -> str:
    """Parse a word, ignoring case."""
    return words[0].lower()
