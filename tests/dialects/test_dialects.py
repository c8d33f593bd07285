"""The flags of all dialects: complete, unique, and suggested to users of another dialect."""

import pytest
from support.dialect_words import interpret_command, parser_of, problems, read
from support.reference_spellings import PREFIXES, README_ROWS, ROWS, TOOLS, Tool, all_spellings

from convoy.config.command_line import expand_prefixes
from convoy.config.flags import TARGET, Flag
from convoy.dialects import DIALECTS, find_in_other_dialects
from convoy.errors import ConfigError

OF_TENSORFLOW = "is an option of the tensorflow dialect"
OF_POPART = "is an option of the popart dialect"
OF_PYTORCH = "is an option of the pytorch dialect"
OF_CONVOY = "is an option of the convoy dialect"


@pytest.mark.parametrize(
    ("dialect", "word", "message"),
    [
        # the same option under another name
        ("pytorch", "--abs-learning-rate", f"{OF_TENSORFLOW}; use --lr"),
        ("pytorch", "--optimiser-momentum", None),
        ("tensorflow", "--lr", f"{OF_CONVOY}; use --abs-learning-rate"),
        ("tensorflow", "--checkpoint-output-dir", f"{OF_PYTORCH}; use --logs-path"),
        ("popart", "--replicas", f"{OF_CONVOY}; use --replication-factor"),
        ("popart", "--loss-scaling", OF_CONVOY),
        ("tensorflow", "--replication-factor", f"{OF_POPART}; use --replicas"),
        ("popart", "--no-stochastic-rounding", f"{OF_TENSORFLOW}; use --no-prng"),
        (
            "tensorflow",
            "--prng",  # not the switch that turns it off
            f"{OF_POPART}; use --stochastic-rounding (`--enable-stochastic-rounding`, unless OFF; "
            "replicas stay in sync)",
        ),
        # the same option in another unit
        (
            "pytorch",
            "--BN-decay",
            f"{OF_TENSORFLOW}; use `--batchnorm-momentum`: 1 − decay, so 0.97 is 0.03; "
            "0 means 0.97",
        ),
        (
            "tensorflow",
            "--batchnorm-momentum",
            f"{OF_CONVOY}; use --BN-decay (`--batchnorm-momentum`: 1 − decay, so 0.97 "
            "is 0.03; 0 means 0.97)",
        ),
        (
            "popart",
            "--lr",
            f"{OF_CONVOY}; use --base-learning-rate (`--lr`: 2^N × `--batch-size`, "
            "without accumulation)",
        ),
        # flags that are combined into one option here
        ("convoy", "--model-size", f"{OF_TENSORFLOW}; use `--model`, with the family"),
        (
            "pytorch",
            "--num-ipus",
            f"{OF_POPART}; use `--shards` × replicas: the total number of devices",
        ),
        (
            "convoy",
            "--iterations",
            f"{OF_PYTORCH}; use `--samples` of generated data: loader steps × samples per step",
        ),
        # an option that is a combined flag or a switch here
        ("tensorflow", "--norm-type", f"{OF_CONVOY}; use --batch-norm (`--norm-type batch`)"),
        (
            "tensorflow",
            "--optimizer",
            f"{OF_CONVOY}; use --optimiser (`--optimizer` and `--momentum`: SGD has no momentum, "
            "momentum is sgd_combined, RMSprop is rmsprop_tf)",
        ),
        # no counterpart here
        ("pytorch", "--standard-imagenet", OF_TENSORFLOW),
        ("popart", "--iterations", OF_PYTORCH),
        ("tensorflow", "--num-ipus", OF_POPART),
        # unknown in every dialect
        ("pytorch", "--lrr", None),
        ("tensorflow", "--pipeline-splitz", None),
        ("popart", "-x", None),
    ],
)
def test_a_flag_of_another_dialect_is_reported_with_its_counterpart(
    dialect: str, word: str, message: str | None
) -> None:
    result = find_in_other_dialects(word, DIALECTS[dialect]())

    assert result == message


def flags_of_other_dialects(dialect: str) -> set[str]:
    others = [other() for name, other in DIALECTS.items() if name != dialect]
    return {word for other in others for word in other.by_spelling}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_flag_of_another_dialect_is_found(dialect: str) -> None:
    current = DIALECTS[dialect]()
    foreign = flags_of_other_dialects(dialect) - set(current.by_spelling)

    assert foreign
    assert [word for word in foreign if find_in_other_dialects(word, current) is None] == []


@pytest.mark.parametrize("dialect", ["tensorflow", "popart", "pytorch"])
def test_a_flag_of_one_dialect_is_not_found_in_another(dialect: str) -> None:
    current = DIALECTS[dialect]()
    unique = set(current.by_spelling) - flags_of_other_dialects(dialect)

    assert unique
    assert [word for word in unique if find_in_other_dialects(word, current) is not None] == []


@pytest.mark.parametrize(
    ("dialect", "line", "message"),
    [
        ("tensorflow", "--modle resnet", "unknown option --modle; did you mean --mode, --model"),
        ("pytorch", "--optimzer sgd", "unknown option --optimzer; did you mean --optimizer"),
        ("popart", "--num-ipu 4", None),  # a unique prefix
        ("popart", "--num-gpus 4", "unknown option --num-gpus; did you mean --num-ipus"),
        ("pytorch", "--BN-decay 0.97", f"--BN-decay {OF_TENSORFLOW}; use `--batchnorm-momentum`"),
        (
            "tensorflow",
            "--lr 0.1",
            "option --lr is ambiguous: it could be --lr-schedule, --lr-drops, --lr-decay-rate; "
            f"--lr itself {OF_CONVOY}; use --abs-learning-rate",
        ),
        ("tensorflow", "--momentun 0.1", "unknown option --momentun; did you mean --momentum"),
        ("tensorflow", "--norm-type group", f"--norm-type {OF_CONVOY}; use --batch-norm"),
        ("pytorch", "--size 50", f"--size {OF_POPART}; use `--model`: 50 is resnet50"),
        ("tensorflow", "--pipeline-s 2", "option --pipeline-s is ambiguous: it could be"),
    ],
)
def test_an_unknown_argument_is_reported_with_a_suggestion(
    dialect: str, line: str, message: str | None
) -> None:
    result = problems(dialect, line)

    assert (result == []) == (message is None)
    assert message is None or result[0].startswith(message)


PROGRAM_FLAGS = {"--help", "-h", "--config", "--config-path"}  # options that every program has
NAMES = ("tensorflow", "pytorch", "popart")

# A valid value for each flag for which 1 or the last choice is not valid.
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


def example_words(flag: Flag, dialect: str) -> str:
    """A flag with a valid value."""
    special = {**VALUES, **(POPART_VALUES if dialect == "popart" else {})}
    row = flag.option
    if flag.const is not None:
        return flag.spelling
    if flag.spelling in special and not (dialect == "pytorch" and flag.spelling == "--model"):
        return f"{flag.spelling} {special[flag.spelling]}"
    if row is None:
        return f"{flag.spelling} 1"
    if row.limit.choices:
        return f"{flag.spelling} {row.limit.choices[-1]}"
    if row.name == "model":
        return f"{flag.spelling} resnet50"
    return f"{flag.spelling} 1"


CASES = [(name, row) for name in NAMES for row in (*ROWS, *README_ROWS) if row.spelled(name)]


def test_every_documented_spelling_is_known_to_its_dialect() -> None:
    known = {name: {*DIALECTS[name]().by_spelling, *PROGRAM_FLAGS} for name in NAMES}
    unknown = [(name, row.number, set(row.spelled(name)) - known[name]) for name, row in CASES]

    assert {name for name, _ in CASES} == set(NAMES)
    assert [case for case in unknown if case[2]] == []


@pytest.mark.parametrize(
    ("dialect", "words"), [("tensorflow", 170), ("pytorch", 91), ("popart", 41)]
)
def test_the_number_of_spellings_of_each_application(dialect: str, words: int) -> None:
    assert len(all_spellings(dialect)) == words


@pytest.mark.parametrize("dialect", ["tensorflow", "popart"])
def test_a_dialect_has_only_flags_of_its_application(dialect: str) -> None:
    tool_flags = {word for tool in TOOLS if tool.dialect == dialect for word in tool.words.split()}
    prefixes = set(PREFIXES.get(dialect, ()))
    known = set(DIALECTS[dialect]().by_spelling)

    assert known - all_spellings(dialect) - tool_flags - prefixes == set()


@pytest.mark.parametrize(
    ("dialect", "prefix", "full"),
    [(name, *pair) for name, pairs in PREFIXES.items() for pair in pairs.items()],
)
def test_prefixes_in_the_readmes_mean_the_full_option(dialect: str, prefix: str, full: str) -> None:
    value = [] if prefix == "--eight-bit" else ["1"]

    assert read(dialect, " ".join([prefix, *value])).settings == (
        read(dialect, " ".join([full, *value])).settings
    )


@pytest.mark.parametrize("prefix", ["--eight-bit", "--pipeline-split"])
def test_a_unique_prefix_is_spelled_out(prefix: str) -> None:
    (word,) = expand_prefixes([prefix], parser_of("tensorflow"))

    assert word.partition("=")[0] == PREFIXES["tensorflow"][prefix]


FLAGS = [
    (name, DIALECTS[name]().by_spelling[word])
    for name in NAMES
    for word in sorted(all_spellings(name) - PROGRAM_FLAGS)
]


def has_one_kind(flag: Flag) -> bool:
    kinds = [
        flag.option is not None,
        bool(flag.option_name) and flag.option is None,
        bool(flag.dropped),
    ]
    return kinds.count(True) == 1


def test_a_flag_sets_an_option_or_is_combined_or_is_dropped() -> None:
    assert [(name, flag.spelling) for name, flag in FLAGS if not has_one_kind(flag)] == []


def is_reported(dialect: str, flag: Flag) -> bool:
    """Whether a flag is reported as mapped, dropped or refused, or sets the target."""
    words = example_words(flag, dialect)
    result = read(dialect, words)
    reported = [
        *(word.word for word in result.mapped),
        *(word.word for word in result.dropped),
        *(str(problem) for problem in result.problems),
        *([words] if result.target else []),
    ]

    return any(flag.spelling in text for text in reported)


def test_every_flag_is_reported() -> None:
    assert {name for name, _ in FLAGS} == set(NAMES)
    assert [(name, flag.spelling) for name, flag in FLAGS if not is_reported(name, flag)] == []


@pytest.mark.parametrize(
    ("dialect", "words"),
    [
        (
            "tensorflow",
            "--standard-imagenet --identical-replica-seeding --syncs-per-epoch --epochs-per-sync "
            "--ckpt-all-instances --log-all-instances --filename --inference --total-batch-size "
            "--on-demand",
        ),
        ("pytorch", ""),
        (
            "popart",
            "--auto-sharding --ckpt --valid-per-epoch --get-reports --syncless-collectives "
            "--convolution-options --use-zero-values --save-graph --tensor-tile-mapping "
            "--report-hw-cycle-count",
        ),
    ],
)
def test_only_these_flags_of_an_application_have_no_effect(dialect: str, words: str) -> None:
    dropped = {flag.spelling for flag in DIALECTS[dialect]().flags if flag.dropped}

    assert dropped == set(words.split())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_combined_flag_has_a_help_text(dialect: str) -> None:
    current = DIALECTS[dialect]()
    parts = {flag.spelling for flag in current.flags if flag.option is None and not flag.dropped}

    assert parts - set(current.help_texts) == set()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_help_text_belongs_to_a_flag(dialect: str) -> None:
    current = DIALECTS[dialect]()

    assert set(current.help_texts) - set(current.by_spelling) == set()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_spellings_are_unique_in_a_dialect(dialect: str) -> None:
    current = DIALECTS[dialect]()

    assert len(current.by_spelling) == len(current.flags)


@pytest.mark.parametrize("dialect", ["tensorflow", "popart"])
def test_a_switch_that_selects_a_value_has_a_help_text(dialect: str) -> None:
    """`--hostside-norm` sets `--normalization-location`, to a value that is not obvious."""
    current = DIALECTS[dialect]()
    selecting = {flag.spelling for flag in current.flags if isinstance(flag.const, str)}

    assert selecting - set(current.help_texts) == set()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_target_is_not_an_option_of_a_run(dialect: str) -> None:
    flags = [flag for flag in DIALECTS[dialect]().flags if flag.option_name == TARGET]

    assert all(flag.option is None for flag in flags)
    assert (dialect in ("convoy", "popart")) == (flags == [])


KNOWN_TOOLS = {180, 182, 188}  # tools with the flags of training


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.program)
def test_the_options_of_a_tool_are_known_or_the_tool_is_refused(tool: Tool) -> None:
    missing = set(tool.words.split()) - set(DIALECTS[tool.dialect]().by_spelling)

    assert (missing == set()) == (tool.number in KNOWN_TOOLS)


@pytest.mark.parametrize(
    "tool",
    [tool for tool in TOOLS if tool.number not in (180, 188, 189)],
    ids=lambda tool: tool.program,
)
def test_an_unavailable_tool_is_reported(tool: Tool) -> None:
    with pytest.raises(ConfigError, match=r"is not available in this version"):
        interpret_command(f"python3 {tool.program}")
