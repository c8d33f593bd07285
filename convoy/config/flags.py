"""Flags of a command line and the options they set: the mechanism of every dialect, and the
canonical flags.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from convoy.config.option import Option, ValueType, WrongType, as_words, named
from convoy.config.schema import option_table
from convoy.config.settings import Dropped, Problem, Setting, from_source
from convoy.text import shown

Given = dict[str, Setting]

TARGET = "target"  # the run or checkpoint that a verb works on; no option of a run
MEASURES_DATA = "`convoy data bench`: no training, its data alone"  # what came of such a word


@dataclass(frozen=True)
class MappedWord:
    """A word, and the option or note it is mapped to."""

    word: str
    to: str


@dataclass
class Translation:
    """What has been said so far, above what a named configuration says.

    The source of what was typed is the words themselves, until all is put together.
    """

    given: Given
    under: Mapping[str, Setting] = field(default_factory=dict)
    launched: frozenset[str] = frozenset()  # options that a launcher has decided
    mapped: list[MappedWord] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)

    def take(self, name: str) -> Setting | None:
        """A part that was said, which is spent then."""
        return self.given.pop(name, None)

    def put(self, name: str, value: Any, *like: Setting | None) -> None:
        """Set a canonical option because of something that was said."""
        sources = [one.source for one in like if one is not None]
        assert sources, f"nobody has asked for {name}"
        self.mapped += [MappedWord(source, name) for source in sources]
        self.given[name] = Setting(value, sources[0])

    def fill(self, name: str, value: Any, *like: Setting | None) -> None:
        """The same, unless the option itself was said."""
        if name not in self.given:
            self.put(name, value, *like)

    def note(self, like: Setting, text: str) -> None:
        """Say what a word did that sets no option by itself."""
        self.mapped.append(MappedWord(like.source, text))

    def value(self, name: str, default: Any = None) -> Any:
        """What an option will be, as far as anybody has said."""
        for layer in (self.given, self.under):
            if name in layer and layer[name].value is not None:
                return layer[name].value
        return default

    def refuse(self, spelling: str, text: str) -> None:
        self.problems.append(Problem(spelling, text))

    def drop(self, word: str, reason: str) -> None:
        self.dropped.append(Dropped(word, reason))


# Makes options out of several flags at once; may raise WrongType, in the words of its dialect.
Combiner = Callable[[Translation], None]


def _copies_of_instances(translation: Translation) -> None:
    """A launcher that starts instances alone gives each of them the replicas that were said."""
    instances, each = translation.given.get("instances"), translation.given.get("replicas")
    if instances is not None and {"instances"} == translation.launched & {"instances", "replicas"}:
        total = translation.value("replicas", 1) * instances.value
        translation.put("replicas", total, instances, each)


def put_together(translation: Translation, combiners: Iterable[Combiner]) -> Given:
    """The canonical settings that come of it; problems and a target are kept in the translation."""
    for combine in (_copies_of_instances, *combiners):
        try:
            combine(translation)
        except WrongType as wrong:
            translation.refuse("", str(wrong))
    settings = {name: one for name, one in translation.given.items() if name in option_table()}
    left = [name for name in translation.given if name not in settings and name != TARGET]
    assert translation.problems or not left, f"no combiner has taken {left}"
    return settings


Defaults = Callable[[Mapping[str, Any]], Mapping[str, Any]]  # of what has been chosen so far


@dataclass(frozen=True)
class Flag:
    """A spelling → a canonical option, or a part of a value that a combiner puts together.

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
        return self.key or self.spelling.lstrip("-").replace("-", "_")

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
        return self.bare if self.bare is not None and words == [""] else self._read(words)

    def value_in_file(self, value: Any) -> Any:
        """What a value of YAML says; None: nothing."""
        if self.means is not None:
            return self._switched_in_file(value)
        if value is None or (isinstance(value, list) and not value):
            return self._kind.check(value) if self.option else None
        if isinstance(value, list) and len(value) > 1 and not self.many:
            raise WrongType(f"expects one value, got {len(value)}")
        if self.read is not None or self.option is None:
            if isinstance(value, dict):
                raise WrongType("expects a value, got several with names")
            return self._read(as_words(tuple(value) if isinstance(value, list) else value))
        if self.option.declared.limit.choices and type(value) in (int, float):
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
    def _kind(self) -> ValueType:
        return self.option.kind if self.option else ValueType(str, many=self.several)

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


@dataclass(frozen=True)
class Dialect:
    """A table of spellings, the defaults its users rely on, and values made of several words."""

    name: str
    flags: tuple[Flag, ...]
    defaults: Defaults = lambda _: {}  # it relies on ours
    combiners: tuple[Combiner, ...] = ()
    says: Mapping[str, str] = field(default_factory=dict)  # what becomes of words, for people

    def settings(self, chosen: Mapping[str, Any]) -> dict[str, Setting]:
        """Its defaults as a layer."""
        return from_source(f"dialect {self.name}", self.defaults(chosen))

    @cached_property
    def by_name(self) -> dict[str, Flag]:
        """Its flags by the names that a configuration file uses, and as they are spelled."""
        plain = [replace(flag, key="") for flag in self.flags if flag.key]
        return {flag.name: flag for flag in (*plain, *reversed(self.flags))}

    @cached_property
    def by_spelling(self) -> dict[str, Flag]:
        return {flag.spelling: flag for flag in self.flags}


# What other dialects make of a flag that this one does not know; None: nothing.
OtherDialects = Callable[[str], str | None]


def no_other_dialects(_: str) -> None:
    """Where only the canonical words are expected."""


def one_of(
    values: Iterable[str], normalize: Callable[[str], str] = str, named: str = ""
) -> Callable[[list[str]], Any]:
    """A reader of a word out of a closed list, or of the value it stands for in a mapping."""
    known = values if isinstance(values, Mapping) else {value: value for value in values}

    def read(words: list[str]) -> Any:
        word = normalize(words[0])
        if word not in known:
            raise WrongType(f"is {named or 'one of ' + ', '.join(known)}, got {words[0]!r}")
        return known[word]

    return read


@cache
def canonical() -> Dialect:
    """Every option under its own name, `--no-…` for the boolean ones, and older spellings."""
    flags = tuple(flag for row in option_table().values() for flag in _flags(row))
    return Dialect("convoy", (*flags, *_OLDER), combiners=(_recompute,), says=SAYS)


def _flags(row: Option) -> Iterator[Flag]:
    for spelling in (row.flag, *row.declared.also):
        if row.kind.base is bool:
            yield Flag(spelling, row.name, means=True)
            yield Flag("--no-" + spelling.removeprefix("--"), row.name, means=False)
        else:
            yield Flag(spelling, row.name, _READERS.get(row.name), bare=_BARE.get(row.name))


def _location(words: list[str]) -> str:
    """The device was an IPU there."""
    return "device" if words[0].lower() == "ipu" else words[0]


def _recompute(translation: Translation) -> None:
    """Several stages recompute in any mode; `auto` and `manual` make a single one do so too."""
    mode = translation.take("recompute_mode")
    if mode is not None:
        translation.fill("enable_recompute", None if mode.value == "none" else True, mode)
        if mode.value == "none":
            translation.note(mode, "the number of stages decides")


_READERS = {"normalization_location": _location}
_BARE = {"pretrained": "published"}
SAYS = {
    "--recompute-mode": (
        "`--enable-recompute` for auto and manual; none leaves it to the number of stages"
    ),
}
_OLDER = (
    Flag(
        "--recompute-mode",
        "recompute_mode",
        read=one_of(("none", "auto", "manual"), named="none, auto or manual"),
        older=True,
    ),
    Flag("--disable-stable-batchnorm", "stable_norm", means=False, older=True),
)


def same(spellings: str) -> Iterator[Flag]:
    """Flags with the spelling and the meaning they have in the canonical dialect."""
    return (canonical().by_spelling[spelling] for spelling in spellings.split())


def lower_case(words: list[str]) -> str:
    """Case does not matter there."""
    return words[0].lower()
