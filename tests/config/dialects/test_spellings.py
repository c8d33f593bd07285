"""Every word of the reference applications is known, and something comes of it."""

import pytest
from reference_spellings import PREFIXES, README_ROWS, ROWS, TOOLS, Row, Tool, all_spellings
from spoken_words import meant, parser_of, read

from convoy.config.dialects.all import DIALECTS
from convoy.config.dialects.dialect import Flag
from convoy.config.dialects.speech import TARGET
from convoy.config.spelling import spell_out
from convoy.errors import ConfigError

OWN = {"--help", "-h", "--config", "--config-path"}  # of the programs, not of the dialects
NAMES = ("tensorflow", "pytorch", "popart")

# A value for each spelling whose option does not tell one.
VALUES = {
    "--model": "resnet",
    "--model-size": "50",
    "--dataset": "cifar-10",
    "--optimiser": "RMSprop",
    "--lr-schedule": "cosine",
    "--stochastic-rounding": "OFF",
    "--size": "50",
    "--mode": "mean",
    "--gc-profile": "IPU_PROFILE",
    "--recompute-mode": "auto",
    "--discard-last": "0",
    "--cutmix-lambda": "0.5",
}
POPART_VALUES = {"--mode": "eval", "--precision": "32", "--norm-type": "GROUP"}


def words_of(flag: Flag, dialect: str) -> str:
    """A spelling with a value that suits it."""
    special = {**VALUES, **(POPART_VALUES if dialect == "popart" else {})}
    row = flag.option
    if flag.means is not None:
        return flag.spelling
    if flag.spelling in special and not (dialect == "pytorch" and flag.spelling == "--model"):
        return f"{flag.spelling} {special[flag.spelling]}"
    if row is None:
        return f"{flag.spelling} 1"
    if row.declared.limit.choices:
        return f"{flag.spelling} {row.declared.limit.choices[-1]}"
    if row.name == "model":
        return f"{flag.spelling} resnet50"
    return f"{flag.spelling} 1"


CASES = [(name, row) for name in NAMES for row in (*ROWS, *README_ROWS) if row.spelled(name)]


@pytest.mark.parametrize(
    ("dialect", "row"), CASES, ids=[f"{name}-{row.number}" for name, row in CASES]
)
def test_every_spelling_of_a_row_is_known_to_its_dialect(dialect: str, row: Row) -> None:
    known = {*DIALECTS[dialect]().by_spelling, *OWN}

    assert set(row.spelled(dialect)) - known == set()


@pytest.mark.parametrize(
    ("dialect", "words"), [("tensorflow", 170), ("pytorch", 91), ("popart", 41)]
)
def test_no_word_is_missing_from_the_list(dialect: str, words: int) -> None:
    assert len(all_spellings(dialect)) == words


@pytest.mark.parametrize("dialect", ["tensorflow", "popart"])
def test_a_dialect_knows_no_word_that_its_application_never_had(dialect: str) -> None:
    of_tools = {word for tool in TOOLS if tool.dialect == dialect for word in tool.words.split()}
    cut_short = set(PREFIXES.get(dialect, ()))
    known = set(DIALECTS[dialect]().by_spelling)

    assert known - all_spellings(dialect) - of_tools - cut_short == set()


@pytest.mark.parametrize(
    ("dialect", "short", "whole"),
    [(name, *pair) for name, pairs in PREFIXES.items() for pair in pairs.items()],
)
def test_what_the_readmes_cut_short_means_the_whole_word(
    dialect: str, short: str, whole: str
) -> None:
    value = [] if short == "--eight-bit" else ["1"]

    assert read(dialect, " ".join([short, *value])).given == (
        read(dialect, " ".join([whole, *value])).given
    )


@pytest.mark.parametrize("short", ["--eight-bit", "--pipeline-split"])
def test_a_unique_prefix_is_spelled_out(short: str) -> None:
    (word,) = spell_out([short], parser_of("tensorflow"))

    assert word.partition("=")[0] == PREFIXES["tensorflow"][short]


FLAGS = [
    (name, DIALECTS[name]().by_spelling[word])
    for name in NAMES
    for word in sorted(all_spellings(name) - OWN)
]
FLAG_IDS = [f"{name} {flag.spelling}" for name, flag in FLAGS]


@pytest.mark.parametrize(("dialect", "flag"), FLAGS, ids=FLAG_IDS)
def test_a_flag_sets_an_option_or_is_a_part_or_tells_why_not(dialect: str, flag: Flag) -> None:
    kinds = [flag.option is not None, bool(flag.to) and flag.option is None, bool(flag.why)]

    assert kinds.count(True) == 1, dialect


@pytest.mark.parametrize(("dialect", "flag"), FLAGS, ids=FLAG_IDS)
def test_something_comes_of_every_word(dialect: str, flag: Flag) -> None:
    words = words_of(flag, dialect)
    found = read(dialect, words)
    told = [
        *(one.word for one in found.became),
        *(one.word for one in found.dropped),
        *(str(problem) for problem in found.problems),
        *([words] if found.target else []),
    ]

    assert any(flag.spelling in one for one in told)


@pytest.mark.parametrize(
    ("dialect", "options", "parts", "dropped"),
    [("tensorflow", 127, 30, 10), ("pytorch", 83, 5, 0), ("popart", 27, 6, 6)],
)
def test_how_many_words_set_options_how_many_are_parts_and_how_many_do_nothing(
    dialect: str, options: int, parts: int, dropped: int
) -> None:
    found = [flag for name, flag in FLAGS if name == dialect]
    direct = [flag for flag in found if flag.option is not None]
    idle = [flag for flag in found if flag.why]

    assert (len(direct), len(found) - len(direct) - len(idle), len(idle)) == (
        options,
        parts,
        dropped,
    )


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_part_is_explained(dialect: str) -> None:
    spoken = DIALECTS[dialect]()
    parts = {flag.spelling for flag in spoken.flags if flag.option is None and not flag.why}

    assert parts - set(spoken.says) == set()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_explanation_is_of_a_flag(dialect: str) -> None:
    spoken = DIALECTS[dialect]()

    assert set(spoken.says) - set(spoken.by_spelling) == set()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_no_spelling_stands_twice_in_a_dialect(dialect: str) -> None:
    spoken = DIALECTS[dialect]()

    assert len(spoken.by_spelling) == len(spoken.flags)


@pytest.mark.parametrize("dialect", ["tensorflow", "popart"])
def test_a_switch_that_chooses_a_word_is_explained(dialect: str) -> None:
    """`--hostside-norm` sets `--normalization-location`: nobody could guess its value."""
    spoken = DIALECTS[dialect]()
    choosing = {flag.spelling for flag in spoken.flags if isinstance(flag.means, str)}

    assert choosing - set(spoken.says) == set()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_worked_on_is_no_option_of_a_run(dialect: str) -> None:
    flags = [flag for flag in DIALECTS[dialect]().flags if flag.to == TARGET]

    assert all(flag.option is None for flag in flags)
    assert (dialect in ("convoy", "popart")) == (flags == [])


KNOWN_TOOLS = {180, 182, 188}  # their words are those of training


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.program)
def test_the_words_of_a_tool_are_known_or_the_tool_is_refused_as_a_whole(tool: Tool) -> None:
    missing = set(tool.words.split()) - set(DIALECTS[tool.dialect]().by_spelling)

    assert (missing == set()) == (tool.number in KNOWN_TOOLS)


@pytest.mark.parametrize(
    "tool",
    [tool for tool in TOOLS if tool.number not in (180, 188, 189)],
    ids=lambda tool: tool.program,
)
def test_a_tool_that_is_not_built_says_so(tool: Tool) -> None:
    with pytest.raises(ConfigError, match=r"is not available in this version"):
        meant(f"python3 {tool.program}")
