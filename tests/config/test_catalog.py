"""The catalog and the option table agree with each other."""

from typing import Any

import pytest

from convoy.config.catalog import DATA, MODELS
from convoy.config.schema import option_table

BROUGHT = [
    *((f"model {name}", MODELS[name].defaults) for name in MODELS),
    *((f"data {name}", DATA[name].defaults) for name in DATA),
]


@pytest.mark.parametrize(("who", "defaults"), BROUGHT, ids=lambda one: str(one)[:20])
def test_what_an_entry_brings_are_options_within_limits(who: str, defaults: dict[str, Any]) -> None:
    rows = option_table()
    checked = {name: rows[name].kind.check(value) for name, value in defaults.items()}

    assert checked == defaults, who
    assert all(type(checked[name]) is type(value) for name, value in defaults.items())
    assert [rows[name].problem(value) for name, value in defaults.items()] == [None] * len(defaults)


def test_the_data_sets_of_the_catalog_are_the_choices_of_the_option() -> None:
    assert option_table()["data"].declared.limit.choices == tuple(DATA)


def test_the_default_model_and_data_set_are_in_the_catalog() -> None:
    assert option_table()["model"].default in MODELS
    assert option_table()["data"].default in DATA


def test_small_networks_are_made_for_small_images() -> None:
    assert {MODELS[name].image_size for name in MODELS if MODELS[name].small} == {32}
    assert {MODELS[name].image_size for name in MODELS if not MODELS[name].small} == {224}


def test_files_on_disk_decide_their_own_sizes() -> None:
    on_disk = [DATA[name] for name in DATA if DATA[name].on_disk]

    assert all(one.classes and one.train and one.validation for one in on_disk)
