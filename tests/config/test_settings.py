"""Layers of settings, problems, and a resolved configuration that is written and read back."""

from pathlib import Path
from typing import Any

import option_values
import pytest
from hypothesis import given

from convoy.config.named import read_settings
from convoy.config.resolve import RequestedOptions, resolve
from convoy.config.schema import RunConfig, build_config, flat_values, option_table
from convoy.config.settings import (
    Problem,
    Setting,
    changed,
    digest,
    from_source,
    layer,
    refuse,
    settings_as_yaml,
)
from convoy.errors import ConfigError


def back(settings: dict[str, Setting], folder: Path) -> dict[str, Setting]:
    path = folder / "config.yaml"
    path.write_text(settings_as_yaml(settings), encoding="utf-8")
    read, problems = read_settings(path)
    assert problems == []
    return read


def config_of(settings: dict[str, Setting]) -> RunConfig:
    return build_config({name: one.value for name, one in settings.items()})


def test_the_defaults_come_back(tmp_path: Path) -> None:
    settings = from_source("default", flat_values(RunConfig()))

    assert config_of(back(settings, tmp_path)) == RunConfig()


@option_values.LIGHT
@given(option_values.values())
def test_every_value_of_every_option_comes_back(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    settings = from_source("hypothesis", values)
    read = back(settings, tmp_path_factory.mktemp("written", numbered=True))

    assert config_of(read) == build_config(values)
    assert digest(read) == digest(settings)


def test_a_resolved_run_has_the_same_digest_when_it_is_read_back(tmp_path: Path) -> None:
    settings = resolve(RequestedOptions(environment={})).settings

    assert digest(back(settings, tmp_path)) == digest(settings)


def test_every_line_names_its_source() -> None:
    settings = {
        "lr": Setting(0.1, "command line"),
        "pipeline_splits": Setting(("a", "b"), "x.yaml"),
    }

    assert settings_as_yaml(settings).splitlines()[1:] == [
        "lr: 0.1  # command line",
        'pipeline_splits: ["a", "b"]  # x.yaml',
    ]


@pytest.mark.parametrize("source", ["two\nlines", "bell\x07", "a\u2028b", "lone\udcff", "# x: [1"])
def test_no_source_can_break_the_file(tmp_path: Path, source: str) -> None:
    assert back({"lr": Setting(0.5, source)}, tmp_path)["lr"].value == 0.5


@pytest.mark.parametrize(
    "text", ["no", "null", "1e3", "010", "a: b", "# a", "'", '"', "é\n\t", "~"]
)
def test_a_text_that_looks_like_something_else_stays_a_text(tmp_path: Path, text: str) -> None:
    assert back({"name": Setting(text, "command line")}, tmp_path)["name"].value == text


def test_the_digest_is_of_what_the_weights_depend_on() -> None:
    settings = resolve(RequestedOptions(environment={})).settings
    jointly = ("replicas", "gradient_accumulation", "fine_tune_gradient_accumulation")
    free = [name for name, row in option_table().items() if row.declared.free]
    alone = [name for name in free if name not in jointly]

    assert all(digest(settings | {name: Setting("x", "y")}) == digest(settings) for name in alone)
    assert digest(settings | {"lr": Setting(0.3, "y")}) != digest(settings)
    assert digest(settings | {"lr": Setting(0.1, "y")}) == digest(settings)


def test_changes_are_told_for_what_the_weights_depend_on() -> None:
    before = from_source("file", {"lr": 0.1, "updates": None, "name": "a", "seed": 3})
    now = from_source("line", {"lr": 0.25, "updates": 7, "name": "b", "seed": 3, "momentum": 0.5})

    assert changed(before, now) == ["--lr was 0.1, now 0.25", "--updates was –, now 7"]


def shared(accumulation: int, replicas: int, span: int = 1) -> dict[str, Setting]:
    values = {"gradient_accumulation": accumulation, "replicas": replicas, "bn_span": span}
    return from_source("line", values)


def test_an_update_may_be_shared_out_in_any_way() -> None:
    assert changed(shared(8, 1), shared(2, 4)) == []
    assert digest(shared(8, 1)) == digest(shared(2, 4))


def test_an_update_of_other_samples_is_another_training() -> None:
    assert changed(shared(8, 1), shared(8, 2)) == [
        "--gradient-accumulation × --replicas was 8, now 16"
    ]
    assert digest(shared(8, 1)) != digest(shared(8, 2))


def test_who_shares_statistics_is_part_of_the_training() -> None:
    assert changed(shared(4, 2, span=2), shared(2, 4, span=2)) == [
        "--replicas (with --bn-span) was 2, now 4"
    ]
    assert digest(shared(4, 2, span=2)) != digest(shared(2, 4, span=2))


def halves(tuned: int, replicas: int, halved: bool = True) -> dict[str, Setting]:
    values = {"half_res_training": halved, "fine_tune_gradient_accumulation": tuned}
    return shared(8 // replicas, replicas) | from_source("line", values)


def test_an_update_of_fine_tuning_may_be_shared_out_in_any_way_too() -> None:
    assert changed(halves(4, 1), halves(2, 2)) == []
    assert digest(halves(4, 1)) == digest(halves(2, 2))


def test_an_update_of_fine_tuning_of_other_samples_is_another_training() -> None:
    assert changed(halves(4, 1), halves(4, 2)) == [
        "--fine-tune-gradient-accumulation × --replicas was 4, now 8"
    ]
    assert digest(halves(4, 1)) != digest(halves(4, 2))


def test_without_fine_tuning_nothing_is_shared_out() -> None:
    assert changed(halves(4, 1, halved=False), halves(4, 2, halved=False)) == []
    assert digest(halves(4, 1, halved=False)) == digest(halves(4, 2, halved=False))


def test_a_layer_names_its_source_on_every_value() -> None:
    assert from_source("default", {"lr": 0.1, "seed": 0}) == {
        "lr": Setting(0.1, "default"),
        "seed": Setting(0, "default"),
    }


def test_a_later_layer_wins_and_the_rest_stays() -> None:
    low = from_source("default", {"lr": 0.1, "seed": 0})
    high = from_source("command line", {"lr": 0.2})

    assert layer(low, high) == {"lr": Setting(0.2, "command line"), "seed": Setting(0, "default")}
    assert layer(high, low)["lr"] == Setting(0.1, "default")


def test_the_order_of_names_is_that_of_the_first_layer() -> None:
    low = from_source("default", {"a": 1, "b": 2, "c": 3})

    assert list(layer(low, from_source("x", {"c": 4, "a": 5}))) == ["a", "b", "c"]


def test_no_layers_are_an_empty_layer() -> None:
    assert layer() == {}


def test_every_problem_is_a_line_of_one_error() -> None:
    with pytest.raises(ConfigError) as error:
        refuse([Problem("--lr", "is odd"), Problem("", "so is this"), Problem("--lr", "is odd")])

    assert str(error.value) == "--lr is odd\nso is this"


def test_no_problem_passes() -> None:
    refuse([])
