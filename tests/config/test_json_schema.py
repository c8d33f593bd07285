"""The schema for editors: it takes what convoy takes and refuses what convoy refuses."""

from typing import Any

import option_values
import pretended
import pytest
from hypothesis import given
from jsonschema import Draft7Validator

from convoy.config import support as schema_file
from convoy.config.catalog import MODELS
from convoy.config.named import shipped, shipped_names
from convoy.config.option import Option, WrongType
from convoy.config.schema import option_table
from convoy.config.support import json_schema
from convoy.config.yaml_reader import parse_yaml, read_yaml

SCHEMA = Draft7Validator(json_schema())
ROWS = list(option_table().values())

# No float without a fraction: to JSON it is a whole number.
SAMPLES = [
    *(None, True, False, -2, -1, 0, 1, 70_000, -0.5, 0.5, 1.5, 10**17),
    *("", "word", "auto", "cifar10", "resnet20"),
    *([], [1], [-1], [0.5], ["word"], [True], [None], [1, "word"], [[1]], {}, {"lr": 1}),
]


def faults(text: str) -> list[str]:
    """What is wrong with a file, in the validator's words."""
    values = {key: entry.plain() for key, entry in parse_yaml(text, "file").items()}
    return [fault.message for fault in SCHEMA.iter_errors(values)]


def accepted(row: Option, value: object) -> bool:
    """Whether convoy takes the value from a file."""
    try:
        checked = row.kind.check(value)
    except WrongType:
        return False
    return row.problem(checked) is None and (row.name != "model" or checked in MODELS)


def as_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def test_it_is_a_schema_of_its_draft() -> None:
    Draft7Validator.check_schema(json_schema())

    assert json_schema()["$schema"] == Draft7Validator.META_SCHEMA["$id"]


@pytest.mark.parametrize("name", shipped_names())
def test_the_shipped_configurations_are_valid(name: str) -> None:
    entries = read_yaml(shipped()[name])

    assert list(SCHEMA.iter_errors({key: one.plain() for key, one in entries.items()})) == []


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
def test_one_configuration_and_several_by_name_are_valid(text: str) -> None:
    assert faults(text) == []


@pytest.mark.parametrize("parents", [{"lr": 0.5}, [{"lr": 0.5}, {"epoch": 3}]])
def test_a_merge_key_that_was_not_resolved_is_allowed(parents: object) -> None:
    wrong = {"<<": {"lrr": 0.5}, "epoch": 3}

    assert SCHEMA.is_valid({"<<": parents, "epoch": 3})
    assert not SCHEMA.is_valid(wrong)


@pytest.mark.parametrize(
    ("text", "named"),
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
def test_what_is_wrong_is_named(text: str, named: str) -> None:
    messages = faults(text)

    assert len(messages) == 1 and named in messages[0]


def test_a_list_at_the_top_is_no_configuration() -> None:
    assert not SCHEMA.is_valid([{"lr": 1}])
    assert SCHEMA.is_valid(None)  # an empty file


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_it_takes_of_an_option_what_convoy_takes(row: Option) -> None:
    # Beside another option: were every value a mapping, it would be several configurations.
    beside = {"lr": 1} if row.name == "seed" else {"seed": 1}
    differ = [
        sample
        for sample in SAMPLES
        if SCHEMA.is_valid({row.name: sample, **beside}) != accepted(row, sample)
    ]

    assert differ == []


@option_values.LIGHT
@given(option_values.values())
def test_values_within_limits_are_valid(values: dict[str, Any]) -> None:
    as_written = {name: as_json(value) for name, value in values.items()}

    assert SCHEMA.is_valid(as_written | {"model": "resnet20"})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_an_editor_can_show_help_and_default(row: Option) -> None:
    told = json_schema()["definitions"]["configuration"]["properties"][row.name]

    assert told["description"].startswith(row.declared.help)
    assert told["default"] == row.default


def test_an_editor_is_told_what_restricts_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_file, "option_table", pretended.pretended_rows)
    told = json_schema()["definitions"]["configuration"]["properties"]

    assert told["driver"] == {
        "description": "Who drives.",
        "default": None,
        "enum": ["ann", "bob", None],
    }
    assert told["shape"]["description"] == "Shape. Not available in this version: flat, odd."
    assert told["tiles"]["description"] == "Tiles. No counterpart: no device here has tiles."
