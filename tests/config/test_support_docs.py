"""What is told of an option: where it works, which of its values do not, how many there are."""

import pretended
import pytest

from convoy.config import support as described
from convoy.config.catalog import MODELS
from convoy.config.option import Option
from convoy.config.schema import option_table
from convoy.config.support import (
    availability_as_text,
    choices,
    meaning,
    not_available,
    summary,
    support_as_text,
)

ROWS = pretended.pretended_rows()


@pytest.mark.parametrize(
    ("name", "missing", "text"),
    [
        ("plain", None, ""),
        ("ready", None, ""),
        ("shape", ["flat", "odd"], "Not available in this version: flat, odd."),
        ("switch", [True], "Not available in this version: true."),
        ("length", True, "In this version only: unset, 5."),
        ("splits", True, "In this version only: unset."),
    ],
)
def test_what_is_missing_is_listed_or_what_is_there(name: str, missing: object, text: str) -> None:
    assert not_available(ROWS[name]) == missing
    assert availability_as_text(ROWS[name]) == text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plain", ""),
        ("graphs", "On CUDA only: replays kernels in one go."),
        ("tiles", "No counterpart: no device here has tiles."),
    ],
)
def test_where_an_option_works_is_a_sentence_with_its_reason(name: str, text: str) -> None:
    assert support_as_text(ROWS[name]) == text


def test_the_meaning_holds_help_reach_and_what_is_missing() -> None:
    assert meaning(ROWS["plain"]) == "Plain."
    assert meaning(ROWS["tiles"]) == "Tiles. No counterpart: no device here has tiles."
    assert meaning(ROWS["switch"]) == "Switch. Not available in this version: true."


def test_the_choices_of_the_model_are_the_catalog() -> None:
    assert choices(option_table()["model"]) == tuple(MODELS)
    assert choices(ROWS["shape"]) == ("round", "flat", "odd")
    assert choices(ROWS["plain"]) == ()


def test_the_summary_counts_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def table() -> dict[str, Option]:
        return ROWS

    monkeypatch.setattr(described, "option_table", table)

    assert summary() == (
        "9 options: 7 work here, 1 on CUDA only, 1 without a counterpart; "
        "4 with values that are not available in this version"
    )
