"""Random command lines, valid and invalid, generated from the option table."""

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

# Upper limits: a plan lists every action of every stage.
MAX_VALUES = {
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
# Not valid for any type but text.
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
_OTHER_ARGUMENTS = (
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
    """Arguments that belong together, and their expected result."""

    words: tuple[str, ...]
    option: str = ""  # the option that they set
    value: Any = None
    wrong: str = ""  # the error message must contain this
    unchecked: bool = False  # the result depends on the rest of the line


def values_of(row: Option) -> SearchStrategy[Any]:
    """Values within the limits; small ones for options that make a plan longer."""
    if row.name in _NAMES:
        item = _NAMES[row.name]
        return st.lists(item, max_size=3).map(tuple) if row.value_type.is_list else item
    limit = row.limit
    if row.name in MAX_VALUES:
        limit = replace(limit, at_most=MAX_VALUES[row.name])
    value = option_values.value(replace(row, limit=limit))
    return value.filter(lambda item: item is not None) if row.value_type.optional else value


def _valid(row: Option) -> SearchStrategy[Phrase]:
    def phrase(value: Any, attached: bool) -> Phrase:
        words = row.to_cli_args(value)
        if attached and len(words) == 2:
            words = ["=".join(words)]
        return Phrase(tuple(words), row.name, value)

    return st.builds(phrase, values_of(row), st.booleans())


def _attached(row: Option, word: str) -> Phrase:
    return Phrase((f"{row.flag}={word}",), row.name, wrong=row.flag)


def _out_of_range(row: Option) -> SearchStrategy[Phrase]:
    """Values just outside the limits."""
    limit = row.limit
    outside: list[Any] = ["none of these"] if limit.choices else []
    outside += [limit.at_least - 1] if limit.at_least is not None else []
    outside += [limit.above] if limit.above is not None else []
    outside += [2 * limit.at_most] if limit.at_most is not None else []
    words = [to_cli_words(row.value_type.base(item))[0] for item in outside]
    return st.sampled_from([_attached(row, word) for word in words])


def _nonsense(row: Option) -> SearchStrategy[Phrase]:
    return st.sampled_from([_attached(row, word) for word in _NONSENSE])


def _misspelled(row: Option, index: int) -> Phrase:
    """No option name contains the inserted letters."""
    flag = row.flag[: 3 + index] + "zq" + row.flag[3 + index :]
    return Phrase((flag,), wrong=flag)


def _shortened(row: Option, length: int) -> Phrase:
    return Phrase((row.flag[: 2 + length],), unchecked=True)


def _without_value(row: Option) -> Phrase:
    return Phrase((row.flag,), unchecked=True)


_LIMITED = [row for row in ROWS if str(row.limit)]
_TYPED = [row for row in ROWS if row.value_type.base is not str]
_ROW = st.sampled_from(ROWS)

VALID: SearchStrategy[Phrase] = _ROW.flatmap(_valid)
INVALID: SearchStrategy[Phrase] = st.one_of(
    st.sampled_from(_LIMITED).flatmap(_out_of_range),
    st.sampled_from(_TYPED).flatmap(_nonsense),
    st.builds(_misspelled, _ROW, st.integers(0, 8)),
)
UNCHECKED: SearchStrategy[Phrase] = st.one_of(
    st.builds(_shortened, _ROW, st.integers(0, 30)),
    st.builds(_without_value, _ROW),
    st.sampled_from([Phrase((word,), unchecked=True) for word in _STRAY]),
    st.sampled_from([Phrase(words, unchecked=True) for words in _OTHER_ARGUMENTS]),
)
CONFIG = st.sampled_from([Phrase(("--config", name)) for name in (*shipped_config_names(), "none")])
JSON = st.just(Phrase(("--json",)))


def lines() -> SearchStrategy[list[Phrase]]:
    """Valid lines, lines with invalid arguments, and lines without an expected result."""
    valid = st.lists(VALID | CONFIG | JSON, max_size=5)
    invalid = st.lists(st.one_of(VALID, VALID, INVALID, CONFIG, JSON), max_size=8)
    unchecked = st.lists(
        st.one_of(VALID, VALID, INVALID, UNCHECKED, UNCHECKED, CONFIG, JSON), max_size=8
    )
    return st.one_of(valid, invalid, unchecked)


_WORDS = (
    *("imagenet", "cifar-10", "resnet", "resnext", "efficientnet", "50", "B0", "14", "x50", "8"),
    *("0.1", "-11", "0", "1", "2", "0.5,0.75", "16.32", "16", "momentum", "RMSprop", "Grouped"),
    *("cosine", "stepped", "ON", "AUTO", "mean", "train", "", "nan", "1e999", "-1", "é", "9" * 30),
)


def flag_arguments(flag: Flag) -> SearchStrategy[tuple[str, ...]]:
    """A flag of a dialect with a valid value or any word."""
    if flag.const is not None:
        return st.just((flag.spelling,))
    max_size = 3 if flag.takes_list else 1
    words = st.lists(st.sampled_from(_WORDS), min_size=flag.takes_list < 1, max_size=max_size)
    any_word = words.map(lambda values: (flag.spelling, *values))
    if flag.option is None or flag.parser is not None:
        return any_word
    valid = values_of(flag.option).map(lambda value: _flag_with_value(flag, value))
    return st.one_of(valid, valid, valid, any_word)


def _flag_with_value(flag: Flag, value: Any) -> tuple[str, ...]:
    words = to_cli_words(value)
    if any(word.startswith("-") for word in words):
        return (f"{flag.spelling}={','.join(words)}",)
    return (flag.spelling, *words)


def dialect_arguments(dialect: Dialect) -> SearchStrategy[list[str]]:
    """The arguments of a program of a dialect."""
    phrase = st.sampled_from(dialect.flags).flatmap(flag_arguments)
    named = st.sampled_from(shipped_config_names()).map(lambda name: ("--config", name))
    several = st.lists(st.one_of(phrase, phrase, phrase, phrase, named), max_size=6)
    return several.map(lambda phrases: [word for item in phrases for word in item])
