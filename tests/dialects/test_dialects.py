"""The tables of all dialects: every word is known, and one of another dialect is named."""

import pytest
from reference_spellings import PREFIXES, README_ROWS, ROWS, TOOLS, Tool, all_spellings
from spoken_words import meant, parser_of, problems, read

from convoy.config.command_line import spell_out
from convoy.config.flags import TARGET, Flag
from convoy.dialects import DIALECTS, elsewhere
from convoy.errors import ConfigError

TF = "is an option of the tensorflow dialect"
PA = "is an option of the popart dialect"
PT = "is an option of the pytorch dialect"
OURS = "is an option of the convoy dialect"


@pytest.mark.parametrize(
    ("here", "word", "told"),
    [
        # the same option under another name
        ("pytorch", "--abs-learning-rate", f"{TF}; here it is --lr"),
        ("pytorch", "--optimiser-momentum", None),
        ("tensorflow", "--lr", f"{OURS}; here it is --abs-learning-rate"),
        ("tensorflow", "--checkpoint-output-dir", f"{PT}; here it is --logs-path"),
        ("popart", "--replicas", f"{OURS}; here it is --replication-factor"),
        ("popart", "--loss-scaling", OURS),
        ("tensorflow", "--replication-factor", f"{PA}; here it is --replicas"),
        ("popart", "--no-stochastic-rounding", f"{TF}; here it is --no-prng"),
        (
            "tensorflow",
            "--prng",  # and not the switch that says the opposite
            f"{PA}; here it is --stochastic-rounding (`--enable-stochastic-rounding`, off for OFF; "
            "replicas agree in any mode)",
        ),
        # the same option, counted in another way
        (
            "pytorch",
            "--BN-decay",
            f"{TF}; here it is `--batchnorm-momentum`: 1 − the share kept, so 0.97 is 0.03; "
            "0 means 0.97",
        ),
        (
            "tensorflow",
            "--batchnorm-momentum",
            f"{OURS}; here it is --BN-decay (`--batchnorm-momentum`: 1 − the share kept, so 0.97 "
            "is 0.03; 0 means 0.97)",
        ),
        (
            "popart",
            "--lr",
            f"{OURS}; here it is --base-learning-rate (`--lr`: 2^N × `--batch-size`, "
            "accumulation left out)",
        ),
        # a part of what is one option here
        ("convoy", "--model-size", f"{TF}; here it is `--model`, with the family"),
        ("pytorch", "--num-ipus", f"{PA}; here it is `--shards` × replicas: all devices together"),
        (
            "convoy",
            "--iterations",
            f"{PT}; here it is `--samples` of made data: loader steps × all samples of one",
        ),
        # one option there, a part or a switch here
        ("tensorflow", "--norm-type", f"{OURS}; here it is --batch-norm (`--norm-type batch`)"),
        (
            "tensorflow",
            "--optimizer",
            f"{OURS}; here it is --optimiser (`--optimizer` and `--momentum`: SGD has none, "
            "momentum is sgd_combined, RMSprop is rmsprop_tf)",
        ),
        # nothing like it here
        ("pytorch", "--standard-imagenet", TF),
        ("popart", "--iterations", PT),
        ("tensorflow", "--num-ipus", PA),
        # nobody's
        ("pytorch", "--lrr", None),
        ("tensorflow", "--pipeline-splitz", None),
        ("popart", "-x", None),
    ],
)
def test_another_dialect_is_named_with_the_way_it_is_said_here(
    here: str, word: str, told: str | None
) -> None:
    found = elsewhere(word, DIALECTS[here]())

    assert found == told


def words_of_others(dialect: str) -> set[str]:
    others = [other() for name, other in DIALECTS.items() if name != dialect]
    return {word for other in others for word in other.by_spelling}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_foreign_word_is_sent_where_it_belongs(dialect: str) -> None:
    spoken = DIALECTS[dialect]()
    foreign = words_of_others(dialect) - set(spoken.by_spelling)

    assert foreign
    assert [word for word in foreign if elsewhere(word, spoken) is None] == []


@pytest.mark.parametrize("dialect", ["tensorflow", "popart", "pytorch"])
def test_no_dialect_sends_its_own_words_elsewhere(dialect: str) -> None:
    spoken = DIALECTS[dialect]()
    own = set(spoken.by_spelling) - words_of_others(dialect)

    assert own
    assert [word for word in own if elsewhere(word, spoken) is not None] == []


@pytest.mark.parametrize(
    ("dialect", "line", "told"),
    [
        ("tensorflow", "--modle resnet", "unknown option --modle; did you mean --mode, --model"),
        ("pytorch", "--optimzer sgd", "unknown option --optimzer; did you mean --optimizer"),
        ("popart", "--num-ipu 4", None),  # a unique prefix
        ("popart", "--num-gpus 4", "unknown option --num-gpus; did you mean --num-ipus"),
        ("pytorch", "--BN-decay 0.97", f"--BN-decay {TF}; here it is `--batchnorm-momentum`"),
        (
            "tensorflow",
            "--lr 0.1",
            "option --lr is ambiguous: it could be --lr-schedule, --lr-decay-rate, --lr-drops; "
            f"--lr itself {OURS}; here it is --abs-learning-rate",
        ),
        ("tensorflow", "--momentun 0.1", "unknown option --momentun; did you mean --momentum"),
        ("tensorflow", "--norm-type group", f"--norm-type {OURS}; here it is --batch-norm"),
        ("pytorch", "--size 50", f"--size {PA}; here it is `--model`: 50 is resnet50"),
        ("tensorflow", "--pipeline-s 2", "option --pipeline-s is ambiguous: it could be"),
    ],
)
def test_an_unknown_word_is_told_with_a_way_out(dialect: str, line: str, told: str | None) -> None:
    found = problems(dialect, line)

    assert (found == []) == (told is None)
    assert told is None or found[0].startswith(told)


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


def test_every_spelling_of_a_row_is_known_to_its_dialect() -> None:
    known = {name: {*DIALECTS[name]().by_spelling, *OWN} for name in NAMES}
    unknown = [(name, row.number, set(row.spelled(name)) - known[name]) for name, row in CASES]

    assert len(CASES) == 278
    assert [case for case in unknown if case[2]] == []


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


def is_one_of_three(flag: Flag) -> bool:
    kinds = [flag.option is not None, bool(flag.to) and flag.option is None, bool(flag.why)]
    return kinds.count(True) == 1


def test_a_flag_sets_an_option_or_is_a_part_or_tells_why_not() -> None:
    assert [(name, flag.spelling) for name, flag in FLAGS if not is_one_of_three(flag)] == []


def does_something(dialect: str, flag: Flag) -> bool:
    """Whether a word sets an option, is dropped with a reason, is wrong, or names a target."""
    words = words_of(flag, dialect)
    found = read(dialect, words)
    told = [
        *(one.word for one in found.mapped),
        *(one.word for one in found.dropped),
        *(str(problem) for problem in found.problems),
        *([words] if found.target else []),
    ]

    return any(flag.spelling in one for one in told)


def test_something_comes_of_every_word() -> None:
    assert len(FLAGS) == 294
    assert [(name, flag.spelling) for name, flag in FLAGS if not does_something(name, flag)] == []


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
