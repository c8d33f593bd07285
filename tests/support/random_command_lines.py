"""For tests: words of command lines at random, right ones and wrong ones, made from the tables."""

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from convoy.config.flags import Dialect, Flag
from convoy.config.named_configs import shipped_config_names
from convoy.config.option import Option, to_cli_words
from convoy.config.schema import option_table
from convoy.config.sections.network import MODELS
from support import option_values

ROWS = list(option_table().values())

# A plan lists every action of every stage, so what is drawn stays small.
MOST = {
    "gradient_accumulation": 64,
    "replicas": 16,
    "bn_span": 16,
    "instances": 16,
    "hosts": 8,
    "shards": 12,
    "stages_per_device": 4,
    "image_size": 64,
    "micro_batch_size": 64,
    "norm_num_groups": 64,
}
_SPLITS = ("layer1", "layer2", "layer3/0", "layer1/0/relu", "b1/0/relu", "block2a", "fc", "list")
_PATTERNS = ("layer1/0", r"layer\d/\d+", "add_1", ".*", "(", "*", "nothing")
_NAMES = {
    "model": st.sampled_from(list(MODELS)),
    "pipeline_splits": st.sampled_from(_SPLITS),
    "recompute_checkpoints": st.sampled_from(_PATTERNS),
}
# Of no type but text, or of none at all.
_NONSENSE = (
    "fast",
    "1.5.1",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "9" * 400,
    "0x10",
    "é",
    "\x00",
    "\udcff",
)
_STRAY = ("", "-", "--", "=", "--=", "---", "-x", "-hosts", "@x", "\n", "\ud800", "-1", "x" * 5000)
_OWN = (
    *(("--explain",), ("--json=yes",), ("--config",), ("--config=--",), ("--config", "")),
    *(("--config-path", "none.yaml"), ("--config-path", "."), ("--config-path=",)),
    *(
        ("--config-path", "\ud800"),
        ("--config-path", "a\x00"),
        ("--dialect",),
        ("--dialect", "ipu"),
    ),
)


@dataclass(frozen=True)
class Phrase:
    """Words that belong together, and what is known of them."""

    words: tuple[str, ...]
    option: str = ""  # that they set
    value: Any = None
    wrong: str = ""  # the line must be refused and name this
    loose: bool = False  # what they come to depends on the rest of the line


def values_of(row: Option) -> SearchStrategy[Any]:
    """Values within the limits, small ones where a plan would grow with them."""
    if row.name in _NAMES:
        item = _NAMES[row.name]
        return st.lists(item, max_size=3).map(tuple) if row.value_type.is_list else item
    limit = row.limit
    if row.name in MOST:
        limit = replace(limit, at_most=MOST[row.name])
    value = option_values.value(replace(row, limit=limit))
    return value.filter(lambda item: item is not None) if row.value_type.optional else value


def _right(row: Option) -> SearchStrategy[Phrase]:
    def say(value: Any, attached: bool) -> Phrase:
        words = row.to_cli_args(value)
        if attached and len(words) == 2:
            words = ["=".join(words)]
        return Phrase(tuple(words), row.name, value)

    return st.builds(say, values_of(row), st.booleans())


def _attached(row: Option, word: str) -> Phrase:
    return Phrase((f"{row.flag}={word}",), row.name, wrong=row.flag)


def _beyond(row: Option) -> SearchStrategy[Phrase]:
    """Just outside the limits."""
    limit = row.limit
    outside: list[Any] = ["none of these"] if limit.choices else []
    outside += [limit.at_least - 1] if limit.at_least is not None else []
    outside += [limit.above] if limit.above is not None else []
    outside += [2 * limit.at_most] if limit.at_most is not None else []
    words = [to_cli_words(row.value_type.base(item))[0] for item in outside]
    return st.sampled_from([_attached(row, word) for word in words])


def _nonsense(row: Option) -> SearchStrategy[Phrase]:
    return st.sampled_from([_attached(row, word) for word in _NONSENSE])


def _misspelt(row: Option, place: int) -> Phrase:
    """No spelling has these two letters."""
    flag = row.flag[: 3 + place] + "zq" + row.flag[3 + place :]
    return Phrase((flag,), wrong=flag)


def _cut(row: Option, length: int) -> Phrase:
    return Phrase((row.flag[: 2 + length],), loose=True)


def _bare(row: Option) -> Phrase:
    return Phrase((row.flag,), loose=True)


_LIMITED = [row for row in ROWS if str(row.limit)]
_TYPED = [row for row in ROWS if row.value_type.base is not str]
_ROW = st.sampled_from(ROWS)

RIGHT: SearchStrategy[Phrase] = _ROW.flatmap(_right)
WRONG: SearchStrategy[Phrase] = st.one_of(
    st.sampled_from(_LIMITED).flatmap(_beyond),
    st.sampled_from(_TYPED).flatmap(_nonsense),
    st.builds(_misspelt, _ROW, st.integers(0, 8)),
)
LOOSE: SearchStrategy[Phrase] = st.one_of(
    st.builds(_cut, _ROW, st.integers(0, 30)),
    st.builds(_bare, _ROW),
    st.sampled_from([Phrase((word,), loose=True) for word in _STRAY]),
    st.sampled_from([Phrase(words, loose=True) for words in _OWN]),
)
CONFIG = st.sampled_from([Phrase(("--config", name)) for name in (*shipped_config_names(), "none")])
JSON = st.just(Phrase(("--json",)))


def lines() -> SearchStrategy[list[Phrase]]:
    """Right ones, right and wrong ones, and those of which nothing is known beforehand."""
    right = st.lists(RIGHT | CONFIG | JSON, max_size=5)
    wrong = st.lists(st.one_of(RIGHT, RIGHT, WRONG, CONFIG, JSON), max_size=8)
    loose = st.lists(st.one_of(RIGHT, RIGHT, WRONG, LOOSE, LOOSE, CONFIG, JSON), max_size=8)
    return st.one_of(right, wrong, loose)


_WORDS = (
    *("imagenet", "cifar-10", "resnet", "resnext", "efficientnet", "50", "B0", "14", "x50", "8"),
    *("0.1", "-11", "0", "1", "2", "0.5,0.75", "16.32", "16", "momentum", "RMSprop", "Grouped"),
    *("cosine", "stepped", "ON", "AUTO", "mean", "train", "", "nan", "1e999", "-1", "é", "9" * 30),
)


def spoken(flag: Flag) -> SearchStrategy[tuple[str, ...]]:
    """A spelling of a dialect with a value that it could have, or with any word."""
    if flag.const is not None:
        return st.just((flag.spelling,))
    most = 3 if flag.takes_list else 1
    words = st.lists(st.sampled_from(_WORDS), min_size=flag.takes_list < 1, max_size=most)
    any_word = words.map(lambda some: (flag.spelling, *some))
    if flag.option is None or flag.parser is not None:
        return any_word
    fitting = values_of(flag.option).map(lambda value: _said(flag, value))
    return st.one_of(fitting, fitting, fitting, any_word)


def _said(flag: Flag, value: Any) -> tuple[str, ...]:
    words = to_cli_words(value)
    if any(word.startswith("-") for word in words):
        return (f"{flag.spelling}={','.join(words)}",)
    return (flag.spelling, *words)


def speeches(dialect: Dialect) -> SearchStrategy[list[str]]:
    """The words behind a program that speaks a dialect."""
    phrase = st.sampled_from(dialect.flags).flatmap(spoken)
    named = st.sampled_from(shipped_config_names()).map(lambda name: ("--config", name))
    several = st.lists(st.one_of(phrase, phrase, phrase, phrase, named), max_size=6)
    return several.map(lambda phrases: [word for item in phrases for word in item])
