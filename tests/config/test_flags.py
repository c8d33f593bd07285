"""Flags and dialects: the canonical table, and one of differences."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from convoy.config.command_line import Parser, add_flags, read_flags, spell_out
from convoy.config.flags import Dialect, Flag, Translation, canonical
from convoy.config.option import WrongType
from convoy.config.resolve import RequestedOptions, Resolved, resolve
from convoy.config.schema import option_table
from convoy.config.settings import Dropped, Setting, refuse, values_of
from convoy.errors import ConfigError


def test_every_option_is_reached_by_its_own_flag() -> None:
    reached = {flag.spelling: flag.to for flag in canonical().flags}

    assert {row.flag: row.name for row in option_table().values()}.items() <= reached.items()


def test_no_spelling_stands_twice() -> None:
    counts = Counter(flag.spelling for flag in canonical().flags)

    assert [spelling for spelling, count in counts.items() if count > 1] == []


def test_every_switch_can_be_turned_off_and_nothing_else_takes_no_value() -> None:
    switches = {row.name for row in option_table().values() if row.kind.base is bool}
    off = {flag.to for flag in canonical().flags if flag.spelling.startswith("--no-")}

    assert off == switches
    assert {flag.to for flag in canonical().flags if flag.means is not None} == switches


def test_older_spellings_set_the_same_option() -> None:
    reached = {flag.spelling: flag.to for flag in canonical().flags}

    assert reached["--output"] == "checkpoint_output_path"
    assert reached["--imagenet-data-path"] == "data_dir"
    assert all(
        reached[spelling] == row.name
        for row in option_table().values()
        for spelling in row.declared.also
    )


def test_it_brings_no_defaults_of_its_own() -> None:
    assert canonical().settings({}) == {}


def model_from_size(words: list[str]) -> str:
    if not words[0].isdigit():
        raise WrongType(f"expects a depth, got {words[0]!r}")
    return f"resnet{words[0]}"


def micro_from_all(translation: Translation) -> None:
    """`--all-samples` is one pass of every replica together."""
    samples = translation.take("all_samples")
    if samples is None:
        return
    total, replicas = int(samples.value), translation.value("replicas", 1)
    if total % replicas:
        raise WrongType(f"--all-samples {total} does not divide by --copies {replicas}")
    translation.put("micro_batch_size", total // replicas, samples)


def defaults(chosen: Mapping[str, Any]) -> Mapping[str, Any]:
    fast = chosen.get("norm_type") == "group"
    return {"lr": 0.5, "updates": 80 if fast else 40, "norm_num_groups": 4}


HARBOR = Dialect(
    "harbor",
    flags=(
        Flag("--size", to="model", read=model_from_size),
        Flag("--copies", to="replicas"),
        Flag("--all-samples", to="all_samples"),
        Flag("--calm", to="augment", means=False),
        Flag("--groups", to="norm_type", means="group"),
        Flag("--batches", to="norm_type", means="batch"),
        Flag("--cuts", to="pipeline_splits"),
        Flag("--speed", to="lr"),
        Flag("--mirrored", to="zero_init_last_norm"),
        Flag("--tiles", why="there are none"),
        Flag("--tiled", means=True, why="there are none"),
        Flag("--depth", to="accumulates", bare=True),
        Flag("--sails", to="sails", several=True),
        Flag("--unchecked", to="validates", means=False, key="validation"),
    ),
    defaults=defaults,
    combiners=(micro_from_all, lambda translation: put_parts_away(translation)),
)


def put_parts_away(translation: Translation) -> None:
    """What the parts were shows in the name of the run."""
    for part in ("accumulates", "sails", "validates"):
        found = translation.take(part)
        if found is not None:
            translation.put("name", str(found.value), found)


def parser() -> Parser:
    made = Parser(prog="harbor", allow_abbrev=False)
    add_flags(made, HARBOR)
    return made


def read(line: str) -> tuple[dict[str, Any], list[str]]:
    made = parser()
    typed = made.parse_args(spell_out(line.split(), made)).typed
    found = read_flags(typed, HARBOR)
    return values_of(found.given), [*map(str, found.problems)]


def resolved(line: str) -> Resolved:
    made = parser()
    found = read_flags(made.parse_args(spell_out(line.split(), made)).typed, HARBOR)
    refuse(found.problems)
    unsaid = HARBOR.settings(values_of(found.given))
    return resolve(RequestedOptions(found.given, environment={}, dialect=unsaid))


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("--size 50", {"model": "resnet50"}),
        ("--copies=4", {"replicas": 4}),
        ("--calm", {"augment": False}),
        ("--calm=false", {"augment": True}),
        ("--groups", {"norm_type": "group"}),
        ("--groups --batches", {"norm_type": "batch"}),
        ("--cuts a b", {"pipeline_splits": ("a", "b")}),
        ("--mirrored false", {"zero_init_last_norm": False}),
        ("--all-samples 32", {"micro_batch_size": 32}),
        ("--all 32 --copies 4", {"replicas": 4, "micro_batch_size": 8}),
        ("--depth", {"name": "True"}),
        ("--depth 3", {"name": "3"}),
        ("--sails a b,c", {"name": "('a', 'b', 'c')"}),
        ("--tiles 3 --tiled", {}),
        ("--unchecked", {"name": "False"}),
    ],
)
def test_a_spelling_sets_its_option_in_its_own_way(line: str, values: dict[str, Any]) -> None:
    assert read(line) == (values, [])


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--size big", "--size expects a depth, got 'big'"),
        ("--size", "--size needs a value"),
        ("--all-samples", "--all-samples needs a value"),
        ("--groups=4", "--groups takes no value, got '4'"),
        ("--groups=false", "--groups takes no value, got 'false'"),
        ("--all-samples 30 --copies 4", "--all-samples 30 does not divide by --copies 4"),
        ("--speed -1", "--speed must be at least 0, got -1"),
        ("--all-samples 0", "--micro-batch-size must be at least 1, got 0"),
        ("--copies 0", "--copies must be at least 1, got 0"),
    ],
)
def test_a_problem_is_told_in_the_words_of_the_dialect(line: str, text: str) -> None:
    assert read(line)[1] == [text]


def test_a_part_that_no_combiner_takes_is_a_fault_of_the_table() -> None:
    made = parser()
    typed = made.parse_args(["--all-samples=8"]).typed

    with pytest.raises(AssertionError, match="no combiner"):
        read_flags(typed, Dialect("bare", HARBOR.flags))


def test_a_word_that_nothing_comes_of_is_kept_with_its_reason() -> None:
    made = parser()
    typed = made.parse_args(spell_out(["--tiles", "3", "--tiled"], made)).typed

    assert read_flags(typed, HARBOR).dropped == [
        Dropped("--tiles 3", "there are none"),
        Dropped("--tiled", "there are none"),
    ]


def test_combiners_see_the_configuration_beneath_and_the_launcher_above() -> None:
    made = parser()
    typed = made.parse_args(spell_out(["--all-samples", "8", "--copies", "8"], made)).typed
    above = {"replicas": Setting(4, "launcher")}

    assert read_flags(typed[:1], HARBOR, under=above).given == {
        "micro_batch_size": Setting(2, "command line")
    }
    assert read_flags(typed, HARBOR, above=above).given == {
        "replicas": Setting(4, "launcher"),
        "micro_batch_size": Setting(2, "command line"),
    }


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("size", 50, "resnet50"),
        ("copies", 4, 4),
        ("calm", True, False),
        ("calm", False, True),
        ("groups", True, "group"),
        ("groups", False, None),
        ("cuts", ["a", "b"], ("a", "b")),
        ("cuts", None, ()),
        ("all_samples", 8, "8"),
        ("validation", False, False),
        ("sails", ["a", "b"], ("a", "b")),
        ("sails", [], None),
    ],
)
def test_a_file_says_it_under_the_name_of_the_flag(key: str, value: Any, said: Any) -> None:
    assert HARBOR.by_name[key].value_in_file(value) == said


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("calm", 3, "expects true or false, got 3"),
        ("copies", "many", "expects a whole number, got 'many'"),
        ("size", "big", "expects a depth, got 'big'"),
        ("all_samples", {"a": 1}, "expects a value, got several with names"),
    ],
)
def test_a_wrong_value_of_a_file_is_told(key: str, value: Any, text: str) -> None:
    with pytest.raises(WrongType, match=text):
        HARBOR.by_name[key].value_in_file(value)


def test_defaults_may_follow_what_was_chosen() -> None:
    assert resolved("--groups").config.length.updates == 80


def test_defaults_of_a_dialect_stand_above_ours_and_the_models() -> None:
    settings = resolved("").settings

    assert settings["lr"] == Setting(0.5, "dialect harbor")
    assert settings["norm_num_groups"] == Setting(4, "dialect harbor")
    assert settings["seed"] == Setting(0, "default")


def test_a_command_line_wins_over_the_defaults_of_its_dialect() -> None:
    assert resolved("--speed 0.2").settings["lr"] == Setting(0.2, "command line")


def test_a_length_of_the_dialect_replaces_our_default_one() -> None:
    length = resolved("").config.length

    assert (length.epoch, length.updates) == (None, 40)


def test_a_model_of_the_dialect_brings_its_own_values() -> None:
    found = resolve(
        RequestedOptions(environment={}, dialect={"model": Setting("resnet50", "dialect x")})
    )

    assert found.settings["norm_num_groups"] == Setting(32, "model resnet50")


def test_rules_are_heard_for_a_dialect_too() -> None:
    with pytest.raises(ConfigError, match="'resnet51' is unknown; did you mean"):
        resolved("--size 51")


def test_the_help_shows_the_defaults_of_the_dialect() -> None:
    text = " ".join(parser().format_help().split())

    assert "--speed X Learning rate. [0.5]" in text
    assert "--mirrored true|false" in text
    assert "--groups Normalization" in text and "--batches Normalization" in text
    assert "--all-samples TEXT see all samples" in text
