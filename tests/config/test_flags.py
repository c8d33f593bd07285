"""Flags and dialects: the canonical flags, and a dialect with every kind of flag."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from convoy.config.command_line import (
    ConfigArgumentParser,
    FlagOccurrence,
    add_flags,
    expand_prefixes,
    parse_flags,
)
from convoy.config.flags import Dialect, Flag, Translation, canonical
from convoy.config.option import OptionTypeError
from convoy.config.resolve import ResolvedConfig, resolve
from convoy.config.schema import (
    DroppedWord,
    RequestedOptions,
    Setting,
    option_table,
    raise_problems,
    setting_values,
)
from convoy.errors import ConfigError


def test_every_option_has_its_flag() -> None:
    targets = {flag.spelling: flag.option_name for flag in canonical().flags}

    assert {row.flag: row.name for row in option_table().values()}.items() <= targets.items()


def test_no_spelling_occurs_twice() -> None:
    counts = Counter(flag.spelling for flag in canonical().flags)

    assert [spelling for spelling, count in counts.items() if count > 1] == []


def test_exactly_the_boolean_options_can_be_turned_off() -> None:
    switches = {row.name for row in option_table().values() if row.value_type.base is bool}
    with_no_flag = {
        flag.option_name for flag in canonical().flags if flag.spelling.startswith("--no-")
    }

    assert with_no_flag == switches
    assert {flag.option_name for flag in canonical().flags if flag.const is not None} == switches


def test_aliases_set_the_same_option() -> None:
    targets = {flag.spelling: flag.option_name for flag in canonical().flags}

    assert targets["--output"] == "checkpoint_output_path"
    assert targets["--imagenet-data-path"] == "data_dir"
    assert all(
        targets[spelling] == row.name for row in option_table().values() for spelling in row.aliases
    )


def test_the_canonical_dialect_has_no_extra_defaults() -> None:
    assert canonical().default_settings({}) == {}


def model_from_size(words: list[str]) -> str:
    if not words[0].isdigit():
        raise OptionTypeError(f"expects a depth, got {words[0]!r}")
    return f"resnet{words[0]}"


def combine_global_batch(translation: Translation) -> None:
    """`--all-samples` is the number of samples in one pass of all replicas."""
    samples = translation.pop("all_samples")
    if samples is None:
        return
    total, replicas = int(samples.value), translation.get("replicas", 1)
    if total % replicas:
        raise OptionTypeError(f"--all-samples {total} does not divide by --num-replicas {replicas}")
    translation.set_option("micro_batch_size", total // replicas, samples)


def defaults(chosen: Mapping[str, Any]) -> Mapping[str, Any]:
    is_group_norm = chosen.get("norm_type") == "group"
    return {"lr": 0.5, "updates": 80 if is_group_norm else 40, "norm_num_groups": 4}


EXAMPLE_DIALECT = Dialect(
    "example",
    flags=(
        Flag("--size", option_name="model", parser=model_from_size),
        Flag("--num-replicas", option_name="replicas"),
        Flag("--all-samples", option_name="all_samples"),
        Flag("--no-crop", option_name="augment", const=False),
        Flag("--groups", option_name="norm_type", const="group"),
        Flag("--batches", option_name="norm_type", const="batch"),
        Flag("--splits-at", option_name="pipeline_splits"),
        Flag("--rate", option_name="lr"),
        Flag("--zero-norm", option_name="zero_init_last_norm"),
        Flag("--tiles", dropped="devices have no tiles"),
        Flag("--tiled", const=True, dropped="devices have no tiles"),
        Flag("--depth", option_name="accumulates", value_if_bare=True),
        Flag("--labels", option_name="labels", is_list=True),
        Flag("--unchecked", option_name="validates", const=False, yaml_key="validation"),
    ),
    defaults=defaults,
    combiners=(combine_global_batch, lambda translation: combine_parts(translation)),
)


def combine_parts(translation: Translation) -> None:
    """Store the parts in the option `name`, where the tests can check them."""
    for part in ("accumulates", "labels", "validates"):
        setting = translation.pop(part)
        if setting is not None:
            translation.set_option("name", str(setting.value), setting)


def make_parser() -> ConfigArgumentParser:
    parser = ConfigArgumentParser(prog="example", allow_abbrev=False)
    add_flags(parser, EXAMPLE_DIALECT)
    return parser


def occurrences(line: str) -> list[FlagOccurrence]:
    parser = make_parser()
    flags: list[FlagOccurrence] = parser.parse_args(
        expand_prefixes(line.split(), parser)
    ).flag_occurrences
    return flags


def parse(line: str) -> tuple[dict[str, Any], list[str]]:
    parsed = parse_flags(occurrences(line), EXAMPLE_DIALECT)
    return setting_values(parsed.settings), [*map(str, parsed.problems)]


def resolved(line: str) -> ResolvedConfig:
    parsed = parse_flags(occurrences(line), EXAMPLE_DIALECT)
    raise_problems(parsed.problems)
    defaults = EXAMPLE_DIALECT.default_settings(setting_values(parsed.settings))
    return resolve(RequestedOptions(parsed.settings, environment={}, dialect_defaults=defaults))


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("--size 50", {"model": "resnet50"}),
        ("--num-replicas=4", {"replicas": 4}),
        ("--no-crop", {"augment": False}),
        ("--no-crop=false", {"augment": True}),
        ("--groups", {"norm_type": "group"}),
        ("--groups --batches", {"norm_type": "batch"}),
        ("--splits-at a b", {"pipeline_splits": ("a", "b")}),
        ("--zero-norm false", {"zero_init_last_norm": False}),
        ("--all-samples 32", {"micro_batch_size": 32}),
        ("--all 32 --num-replicas 4", {"replicas": 4, "micro_batch_size": 8}),
        ("--depth", {"name": "True"}),
        ("--depth 3", {"name": "3"}),
        ("--labels a b,c", {"name": "('a', 'b', 'c')"}),
        ("--tiles 3 --tiled", {}),
        ("--unchecked", {"name": "False"}),
    ],
)
def test_every_kind_of_flag_sets_its_option(line: str, values: dict[str, Any]) -> None:
    assert parse(line) == (values, [])


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--size big", "--size expects a depth, got 'big'"),
        ("--size", "--size needs a value"),
        ("--all-samples", "--all-samples needs a value"),
        ("--groups=4", "--groups takes no value, got '4'"),
        ("--groups=false", "--groups takes no value, got 'false'"),
        (
            "--all-samples 30 --num-replicas 4",
            "--all-samples 30 does not divide by --num-replicas 4",
        ),
        ("--rate -1", "--rate must be at least 0, got -1"),
        ("--all-samples 0", "--micro-batch-size must be at least 1, got 0"),
        ("--num-replicas 0", "--num-replicas must be at least 1, got 0"),
    ],
)
def test_a_problem_is_reported_with_the_flag_of_the_dialect(line: str, text: str) -> None:
    assert parse(line)[1] == [text]


def test_a_part_that_no_combiner_uses_is_an_error() -> None:
    with pytest.raises(AssertionError, match="no combiner"):
        parse_flags(occurrences("--all-samples=8"), Dialect("bare", EXAMPLE_DIALECT.flags))


def test_an_argument_without_an_effect_is_listed_with_its_reason() -> None:
    assert parse_flags(occurrences("--tiles 3 --tiled"), EXAMPLE_DIALECT).dropped == [
        DroppedWord("--tiles 3", "devices have no tiles"),
        DroppedWord("--tiled", "devices have no tiles"),
    ]


def test_combiners_read_the_named_configuration_and_the_launcher() -> None:
    flags = occurrences("--all-samples 8 --num-replicas 8")
    settings = {"replicas": Setting(4, "launcher")}

    assert parse_flags(flags[:1], EXAMPLE_DIALECT, named_config=settings).settings == {
        "micro_batch_size": Setting(2, "command line")
    }
    assert parse_flags(flags, EXAMPLE_DIALECT, launcher=settings).settings == {
        "replicas": Setting(4, "launcher"),
        "micro_batch_size": Setting(2, "command line"),
    }


@pytest.mark.parametrize(
    ("key", "value", "parsed"),
    [
        ("size", 50, "resnet50"),
        ("num_replicas", 4, 4),
        ("no_crop", True, False),
        ("no_crop", False, True),
        ("groups", True, "group"),
        ("groups", False, None),
        ("splits_at", ["a", "b"], ("a", "b")),
        ("splits_at", None, ()),
        ("all_samples", 8, "8"),
        ("validation", False, False),
        ("labels", ["a", "b"], ("a", "b")),
        ("labels", [], None),
    ],
)
def test_a_file_uses_the_name_of_the_flag_as_key(key: str, value: Any, parsed: Any) -> None:
    assert EXAMPLE_DIALECT.by_name[key].parse_yaml_value(value) == parsed


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("no_crop", 3, "expects true or false, got 3"),
        ("num_replicas", "many", "expects an integer, got 'many'"),
        ("size", "big", "expects a depth, got 'big'"),
        ("all_samples", {"a": 1}, "expects a value, got a mapping"),
    ],
)
def test_a_wrong_value_in_a_file_is_refused(key: str, value: Any, text: str) -> None:
    with pytest.raises(OptionTypeError, match=text):
        EXAMPLE_DIALECT.by_name[key].parse_yaml_value(value)


def test_defaults_may_depend_on_chosen_values() -> None:
    assert resolved("--groups").config.length.updates == 80


def test_defaults_of_a_dialect_override_canonical_and_model_defaults() -> None:
    settings = resolved("").settings

    assert settings["lr"] == Setting(0.5, "dialect example")
    assert settings["norm_num_groups"] == Setting(4, "dialect example")
    assert settings["seed"] == Setting(0, "default")


def test_the_command_line_overrides_the_defaults_of_its_dialect() -> None:
    assert resolved("--rate 0.2").settings["lr"] == Setting(0.2, "command line")


def test_a_default_length_of_the_dialect_replaces_the_canonical_one() -> None:
    length = resolved("").config.length

    assert (length.epoch, length.updates) == (None, 40)


def test_the_model_of_a_dialect_sets_its_own_defaults() -> None:
    resolved = resolve(
        RequestedOptions(
            environment={}, dialect_defaults={"model": Setting("resnet50", "dialect x")}
        )
    )

    assert resolved.settings["norm_num_groups"] == Setting(32, "model resnet50")


def test_rules_also_apply_to_a_dialect() -> None:
    with pytest.raises(ConfigError, match="'resnet51' is unknown; did you mean"):
        resolved("--size 51")


def test_the_help_shows_the_defaults_of_the_dialect() -> None:
    text = " ".join(make_parser().format_help().split())

    assert "--rate X Base learning rate, which warm-up and the schedule scale. [0.5]" in text
    assert "--zero-norm true|false" in text
    assert "--groups Normalization" in text and "--batches Normalization" in text
    assert "--all-samples TEXT see all samples" in text
