"""The public API does not change unnoticed."""

import ast
from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path
from typing import Any

import pytest
from support import public_api

import convoy

ROOT = Path(__file__).parents[2]


def test_the_public_api_is_the_recorded_one() -> None:
    recorded = public_api.GOLDEN.read_text(encoding="utf-8")
    described = public_api.describe()
    difference = unified_diff(
        recorded.splitlines(), described.splitlines(), "recorded", "now", lineterm="", n=4
    )

    assert recorded == described, (
        "The public API has changed:\n\n"
        + "\n".join(difference)
        + "\n\nUsers' scripts may rely on "
        f"it. If the change is intended, run\n\n    {public_api.UPDATE}\n\nand commit the file."
    )


def _with_more_arguments(source: Any, *, device: str = "cpu", more: int = 1) -> None:
    """A function with another signature than `convoy.load`."""


class _Event:
    """A class without the fields of `convoy.Prediction`."""


@pytest.mark.parametrize(
    ("name", "replacement", "line"),
    [
        ("load", _with_more_arguments, "keyword more: int = 1"),
        ("Prediction", _Event, "field probabilities: tuple[float, ...]"),
    ],
)
def test_a_change_of_a_signature_changes_the_description(
    monkeypatch: pytest.MonkeyPatch, name: str, replacement: Callable[..., Any], line: str
) -> None:
    before = public_api.describe().splitlines()
    monkeypatch.setattr(convoy, name, replacement)
    after = public_api.describe().splitlines()

    changed = [text for text in unified_diff(before, after, n=0) if line in text]
    assert len(changed) == 1


def test_every_public_signature_has_types() -> None:
    assert "empty" not in public_api.describe()


def test_editors_and_mypy_see_the_names_that_can_be_imported() -> None:
    """The imports for type checkers are a second list of the names."""
    tree = ast.parse((ROOT / "convoy" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert typed.keys() == set(convoy.__all__) - {"__version__"}
    assert {name: getattr(convoy, name).__module__ for name in typed} == typed
