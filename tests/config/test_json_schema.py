"""The JSON Schema accepts what convoy accepts and rejects what convoy rejects."""

from typing import Any

import pytest
from hypothesis import given
from jsonschema import Draft7Validator
from support import option_values, unavailable_options
from support.sweeps import sweep

from convoy.config import option_docs
from convoy.config.named_configs import shipped_config_names, shipped_configs
from convoy.config.option import Option, OptionTypeError
from convoy.config.option_docs import json_schema
from convoy.config.schema import option_table
from convoy.config.sections.network import MODELS
from convoy.config.yaml_reader import parse_yaml, read_yaml

SCHEMA = Draft7Validator(json_schema())
ROWS = list(option_table().values())

# Without floats such as 1.0, which JSON Schema accepts as integers.
SAMPLES = [
    *(None, True, False, -2, -1, 0, 1, 70_000, -0.5, 0.5, 1.5, 10**17),
    *("", "word", "auto", "cifar10", "resnet20"),
    *([], [1], [-1], [0.5], ["word"], [True], [None], [1, "word"], [[1]], {}, {"lr": 1}),
]


def schema_errors(text: str) -> list[str]:
    """The messages of the validator for a file."""
    values = {key: entry.to_python() for key, entry in parse_yaml(text.encode(), "file").items()}
    return [error.message for error in SCHEMA.iter_errors(values)]


def is_accepted(row: Option, value: object) -> bool:
    """Whether convoy accepts the value from a file."""
    try:
        checked = row.value_type.check(value)
    except OptionTypeError:
        return False
    return row.problem(checked) is None and (row.name != "model" or checked in MODELS)


def as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_the_schema_is_valid() -> None:
    Draft7Validator.check_schema(json_schema())

    assert json_schema()["$schema"] == Draft7Validator.META_SCHEMA["$id"]


@sweep("name", shipped_config_names())
def test_the_shipped_configurations_are_valid(name: str) -> None:
    entries = read_yaml(shipped_configs()[name])

    assert (
        list(SCHEMA.iter_errors({key: entry.to_python() for key, entry in entries.items()})) == []
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "lr: 1",
        "pipeline_splits: layer2/0",
        "pipeline_splits: [layer2/0, layer3/0]",
        "shards: null\npipeline_splits: ~",
        "wide: {replicas: 4}\nlong: {epoch: 100, lr: 0.5}",
        "wide: &wide\n  replicas: 4\nboth:\n  <<: *wide\n  lr: 0.5",
    ],
)
def test_one_and_several_named_configurations_are_valid(text: str) -> None:
    assert schema_errors(text) == []


@pytest.mark.parametrize("parents", [{"lr": 0.5}, [{"lr": 0.5}, {"epoch": 3}]])
def test_an_unresolved_merge_key_is_allowed(parents: object) -> None:
    wrong = {"<<": {"lrr": 0.5}, "epoch": 3}

    assert SCHEMA.is_valid({"<<": parents, "epoch": 3})
    assert not SCHEMA.is_valid(wrong)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("micro_bach_size: 32", "micro_bach_size"),
        ("micro-batch-size: 32", "micro-batch-size"),
        ("lr: fast", "fast"),
        ("augment: yes", "yes"),
        ("replicas: 1.5", "1.5"),
        ("micro_batch_size: 0", "0"),
        ("momentum: 1.5", "1.5"),
        ("norm_eps: 0", "0"),
        ("pipeline_schedule: grouping", "grouping"),
        ("model: resnet21", "resnet21"),
        ("epoch: 3\nmine: {lr: 1}", "mine"),
        ("wide: {replicas: 4}\nlong: {epochs: 100}", "epochs"),
        ("wide: {replicas: many}", "many"),
    ],
)
def test_the_error_names_the_wrong_key_or_value(text: str, expected: str) -> None:
    messages = schema_errors(text)

    assert len(messages) == 1 and expected in messages[0]


def test_a_list_at_the_top_level_is_rejected() -> None:
    assert not SCHEMA.is_valid([{"lr": 1}])
    assert SCHEMA.is_valid(None)  # an empty file


@sweep("row", ROWS)
def test_the_schema_accepts_the_same_values_as_convoy(row: Option) -> None:
    # A second option, because a file with only mappings contains named configurations.
    extra = {"lr": 1} if row.name == "seed" else {"seed": 1}
    different = [
        sample
        for sample in SAMPLES
        if SCHEMA.is_valid({row.name: sample, **extra}) != is_accepted(row, sample)
    ]

    assert different == []


@option_values.LIGHT
@given(option_values.values())
def test_values_within_limits_are_valid(values: dict[str, Any]) -> None:
    as_written = {name: as_json(value) for name, value in values.items()}

    assert SCHEMA.is_valid(as_written | {"model": "resnet20"})


@sweep("row", ROWS)
def test_the_schema_contains_help_and_default(row: Option) -> None:
    entry = json_schema()["definitions"]["configuration"]["properties"][row.name]

    assert entry["description"].startswith(row.help)
    assert entry["default"] == row.default


def test_the_schema_describes_the_restrictions_of_an_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(option_docs, "option_table", unavailable_options.example_options)
    entries = json_schema()["definitions"]["configuration"]["properties"]

    assert entries["driver"] == {
        "description": "Who drives.",
        "default": None,
        "enum": ["ann", "bob", None],
    }
    assert entries["shape"]["description"] == "Shape. Not available in this version: flat, odd."
    assert entries["tiles"]["description"] == "Tiles. No effect: no device here has tiles."
