"""Descriptions of options: where they work, which values are unavailable, and the summary."""

import re

import pytest
from support import unavailable_options

from convoy.config import option_docs
from convoy.config.option import Option
from convoy.config.option_docs import (
    availability_as_text,
    choices,
    default_as_text,
    full_help,
    options_summary,
    support_as_text,
    unavailable_choices,
)
from convoy.config.schema import option_table
from convoy.config.sections.network import MODELS

ROWS = unavailable_options.example_options()


@pytest.mark.parametrize(
    ("name", "missing", "text"),
    [
        ("plain", None, ""),
        ("ready", None, ""),
        ("shape", ["flat", "odd"], "Not available in this version: flat, odd."),
        ("switch", [True], "Not available in this version: true."),
        ("length", True, "Available in this version: unset, 5."),
        ("splits", True, "Available in this version: unset."),
    ],
)
def test_missing_or_available_values_are_listed(name: str, missing: object, text: str) -> None:
    assert unavailable_choices(ROWS[name]) == missing
    assert availability_as_text(ROWS[name]) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", ""),
        ("graphs", "On CUDA only: replays kernels in one go."),
        ("tiles", "No effect: no device here has tiles."),
    ],
)
def test_support_is_described_with_its_reason(name: str, text: str) -> None:
    assert support_as_text(ROWS[name]) == text


def test_the_full_help_contains_support_and_availability() -> None:
    assert full_help(ROWS["plain"]) == "Plain."
    assert full_help(ROWS["tiles"]) == "Tiles. No effect: no device here has tiles."
    assert full_help(ROWS["switch"]) == "Switch. Not available in this version: true."


def test_the_choices_of_the_model_option_are_all_models() -> None:
    assert choices(option_table()["model"]) == tuple(MODELS)
    assert choices(ROWS["shape"]) == ("round", "flat", "odd")
    assert choices(ROWS["plain"]) == ()


def test_the_summary_counts_options_by_support(monkeypatch: pytest.MonkeyPatch) -> None:
    def table() -> dict[str, Option]:
        return ROWS

    monkeypatch.setattr(option_docs, "option_table", table)

    numbers = [int(number) for number in re.findall(r"\d+", options_summary())]

    # All options, on any device, on CUDA only, without an effect, with unavailable values.
    assert numbers == [9, 7, 1, 1, 4]


def test_the_default_includes_those_of_datasets_and_models() -> None:
    table = option_table()

    assert default_as_text(table["epoch"]) == "5; shapes: 3; cifar10, cifar100: 20"
    assert default_as_text(table["norm_num_groups"]) == "depends on --model"
    assert default_as_text(table["lr"]) == "0.1"
    assert default_as_text(table["name"]) == "–"
