"""convoy options: the table of options, single options, and JSON."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from jsonschema import Draft7Validator
from support import unavailable_options
from support.run_convoy import convoy

from convoy.config import option_docs
from convoy.config.schema import option_table

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "convoy.schema.json"


@pytest.fixture
def restricted_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make --lr work on CUDA only, --seed nowhere, and two options with some values only."""
    for module in (option_docs, import_module("convoy.cli.options")):
        monkeypatch.setattr(
            module, "option_table", unavailable_options.table_with_unavailable_options
        )


def row_of(flag: str, out: str) -> list[str]:
    (line,) = [line for line in out.splitlines() if line.startswith(f"{flag} ")]
    return line.split()


def test_the_table_has_a_line_for_every_option() -> None:
    result = convoy("options")
    flags = [line.split()[0] for line in result.out.splitlines() if line.startswith("--")]

    assert (result.code, result.err) == (0, "")
    assert flags == [row.shown_flag for row in option_table().values()]


def test_the_table_ends_with_the_summary() -> None:
    assert convoy("options").out.splitlines()[-1] == f"{option_docs.options_summary()} (*)"


@pytest.mark.usefixtures("restricted_options")
def test_the_table_shows_where_each_option_works() -> None:
    out = convoy("options").out

    assert row_of("--momentum", out)[1:3] == ["any", "0.9"]
    assert row_of("--lr", out)[1:3] == ["CUDA", "0.1"]
    assert row_of("--seed", out)[1:5] == ["none", "(IPU", "only)", "0"]
    assert row_of("--pipeline-schedule", out)[1] == "any*"


def test_the_json_list_contains_every_field_of_an_option() -> None:
    rows = {row["name"]: row for row in json.loads(convoy("options", "--json").out)}

    assert list(rows) == list(option_table())
    assert rows["data_dir"] == {
        "name": "data_dir",
        "flag": "--data-dir",
        "section": "data",
        "type": "string",
        "limits": "",
        "default": None,
        "default_text": "–",
        "aliases": ["--imagenet-data-path"],
        "environment": "DATA_DIR",
        "help": "Folder of the dataset.",
        "support": "any device",
        "support_reason": None,
        "unavailable_values": None,
        "available_values": None,
        "changeable_on_resume": True,
    }
    assert (rows["lr"]["limits"], rows["lr"]["default_text"]) == ("≥ 0, ≤ 1e+30", "0.1")
    assert rows["lr"]["changeable_on_resume"] is False
    assert rows["lr_epoch_decay"]["type"] == "list of numbers"


@pytest.mark.usefixtures("restricted_options")
def test_the_json_list_shows_where_each_option_works() -> None:
    words = ("options", "--json", "lr", "seed", "pipeline_schedule", "samples")
    lr, seed, schedule, samples = json.loads(convoy(*words).out)

    assert (lr["support"], lr["support_reason"]) == ("CUDA only", "replays kernels in one go")
    assert (seed["support"], seed["support_reason"]) == ("no effect", "no device here has tiles.")
    assert schedule["unavailable_values"] == [option_table()["pipeline_schedule"].limit.choices[0]]
    assert (samples["unavailable_values"], samples["available_values"]) == (True, [None, 5])


def test_one_option_is_shown_in_full() -> None:
    result = convoy("options", "data_dir")

    assert (result.code, result.err) == (0, "")
    lines = [line.split() for line in result.out.splitlines()]
    assert lines[0] == ["--data-dir"]
    assert lines[2:7] == [
        ["default", "–"],
        ["type", "string"],
        ["also", "--imagenet-data-path"],
        ["environment", "DATA_DIR"],
        ["YAML", "key", "data_dir"],
    ]
    assert lines[-1][-2:] == ["be", "changed"]


@pytest.mark.usefixtures("restricted_options")
def test_a_restriction_of_an_option_is_shown_with_the_reason() -> None:
    lr, schedule = convoy("options", "lr", "pipeline-schedule").out.split("\n\n")

    assert "On CUDA only: replays kernels in one go." in lr
    assert "Not available in this version: grouped." in schedule


@pytest.mark.parametrize(
    ("typed", "flag"),
    [
        ("--lr", "--lr"),
        ("lr", "--lr"),
        ("--micro-batch-size", "--micro-batch-size"),
        ("micro_batch_size", "--micro-batch-size"),
        ("--batch-size", "--micro-batch-size"),
        ("BN_span", "--bn-span"),
        ("--no-augment", "--augment"),
    ],
)
def test_an_option_is_found_under_any_of_its_spellings(typed: str, flag: str) -> None:
    assert convoy("options", typed).out.startswith(f"{flag}\n")


def test_several_options_are_shown_in_the_given_order() -> None:
    blocks = convoy("options", "--seed", "lr").out.split("\n\n")

    assert [block.splitlines()[0] for block in blocks] == ["--seed", "--lr"]


def test_unknown_names_are_reported_together_with_near_names() -> None:
    result = convoy("options", "weight_decai", "--pipeline-shedule", "lr", "zzz")
    first, second, third = result.err.splitlines()

    assert (result.code, result.out) == (2, "")
    assert "weight_decai" in first and "--weight-decay" in first
    assert "pipeline-shedule" in second and "--pipeline-schedule" in second
    assert "zzz" in third and "`convoy options`" in third


def test_other_words_search_names_and_help() -> None:
    by_name = convoy("options", "LABEL-SMOOTH").out.splitlines()
    by_help = convoy("options", "Beta(").out.splitlines()

    assert [line.split()[0] for line in by_name] == ["--label-smoothing", "--label-smoothing-over"]
    assert "--mixup-alpha" in [line.split()[0] for line in by_help]


def test_the_schema_is_printed_as_it_is_shipped() -> None:
    result = convoy("options", "--schema")

    assert (result.code, result.err) == (0, "")
    assert result.out == SCHEMA_FILE.read_text(encoding="utf-8")
    Draft7Validator.check_schema(json.loads(result.out))


def test_the_schema_of_some_options_is_refused() -> None:
    result = convoy("options", "lr", "--schema")

    assert result.code == 2
    assert "--schema" in result.err


def test_an_option_that_a_resumed_run_rejects_is_marked() -> None:
    assert "on resume cannot be set" in " ".join(convoy("options", "output").out.split())
    assert "on resume changes need --override" in " ".join(convoy("options", "lr").out.split())
