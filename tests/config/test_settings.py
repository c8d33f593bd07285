"""Settings are written and read back; digests and changes cover the options that affect weights."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from support import option_values

from convoy.config.named_configs import read_settings
from convoy.config.resolve import resolve
from convoy.config.schema import (
    Problem,
    RequestedOptions,
    RunConfig,
    Setting,
    build_config,
    config_digest,
    flatten_config,
    option_table,
    raise_problems,
    settings_as_yaml,
    settings_from,
    training_changes,
)
from convoy.errors import ConfigError


def round_trip(settings: dict[str, Setting], folder: Path) -> dict[str, Setting]:
    path = folder / "config.yaml"
    path.write_text(settings_as_yaml(settings), encoding="utf-8")
    read, problems = read_settings(path)
    assert problems == []
    return read


def config_of(settings: dict[str, Setting]) -> RunConfig:
    return build_config({name: setting.value for name, setting in settings.items()})


def test_the_defaults_round_trip(tmp_path: Path) -> None:
    settings = settings_from("default", flatten_config(RunConfig()))

    assert config_of(round_trip(settings, tmp_path)) == RunConfig()


@option_values.LIGHT
@given(option_values.values())
def test_every_value_of_every_option_round_trips(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    settings = settings_from("hypothesis", values)
    read = round_trip(settings, tmp_path_factory.mktemp("written", numbered=True))

    assert config_of(read) == build_config(values)
    assert config_digest(read) == config_digest(settings)


def test_the_digest_is_the_same_after_a_round_trip(tmp_path: Path) -> None:
    settings = resolve(RequestedOptions(environment={})).settings

    assert config_digest(round_trip(settings, tmp_path)) == config_digest(settings)


def test_every_line_contains_its_source() -> None:
    settings = {
        "lr": Setting(0.1, "command line"),
        "pipeline_splits": Setting(("a", "b"), "x.yaml"),
    }

    assert settings_as_yaml(settings).splitlines()[1:] == [
        "lr: 0.1  # command line",
        'pipeline_splits: ["a", "b"]  # x.yaml',
    ]


@pytest.mark.parametrize("source", ["two\nlines", "bell\x07", "a\u2028b", "lone\udcff", "# x: [1"])
def test_the_file_is_valid_for_every_source(tmp_path: Path, source: str) -> None:
    assert round_trip({"lr": Setting(0.5, source)}, tmp_path)["lr"].value == 0.5


@pytest.mark.parametrize(
    "text", ["no", "null", "1e3", "010", "a: b", "# a", "'", '"', "é\n\t", "~"]
)
def test_text_that_looks_like_another_type_stays_text(tmp_path: Path, text: str) -> None:
    assert round_trip({"name": Setting(text, "command line")}, tmp_path)["name"].value == text


# The sections that define the network, its training and its arithmetic.
TRAINING_SECTIONS = [
    "network",
    "family",
    "mixing",
    "learning_rate",
    "optimizer",
    "loss",
    "precision",
]
WITHOUT_EFFECT_ON_WEIGHTS = {
    *("proxy_recompute", "hostside_image_mixing"),  # the same bits, computed elsewhere
    # Whether a run continues after a non-finite value.
    *("on_nonfinite", "max_skipped", "enable_fp_exceptions"),
}


def test_the_digest_covers_every_option_of_the_training() -> None:
    settings = resolve(RequestedOptions(environment={})).settings
    names = [name for name, row in option_table().items() if row.section in TRAINING_SECTIONS]
    covered = {
        name
        for name in names
        if config_digest(settings | {name: Setting("x", "y")}) != config_digest(settings)
    }

    assert set(names) - covered == WITHOUT_EFFECT_ON_WEIGHTS


@pytest.mark.parametrize(
    "name", ["shards", "enable_recompute", "dataloader_worker", "keep_last", "log_dir"]
)
def test_the_digest_ignores_layout_loader_and_outputs(name: str) -> None:
    settings = resolve(RequestedOptions(environment={})).settings
    changed = config_digest(settings | {name: Setting("x", "y")})

    assert changed == config_digest(settings)


def test_the_digest_depends_on_the_value_but_not_on_its_source() -> None:
    settings = resolve(RequestedOptions(environment={})).settings

    assert config_digest(settings | {"lr": Setting(0.3, "y")}) != config_digest(settings)
    assert config_digest(settings | {"lr": Setting(0.1, "y")}) == config_digest(settings)


def test_changes_cover_the_options_that_affect_the_weights() -> None:
    before = settings_from("file", {"lr": 0.1, "updates": None, "name": "a", "seed": 3})
    after = settings_from(
        "line", {"lr": 0.25, "updates": 7, "name": "b", "seed": 3, "momentum": 0.5}
    )

    assert training_changes(before, after) == ["--lr was 0.1, now 0.25", "--updates was –, now 7"]


def batch_settings(accumulation: int, replicas: int, span: int = 1) -> dict[str, Setting]:
    values = {"gradient_accumulation": accumulation, "replicas": replicas, "bn_span": span}
    return settings_from("line", values)


def test_an_update_may_be_divided_among_any_number_of_replicas() -> None:
    assert training_changes(batch_settings(8, 1), batch_settings(2, 4)) == []
    assert config_digest(batch_settings(8, 1)) == config_digest(batch_settings(2, 4))


def test_another_number_of_micro_batches_changes_the_training() -> None:
    assert training_changes(batch_settings(8, 1), batch_settings(8, 2)) == [
        "--gradient-accumulation × --replicas was 8, now 16"
    ]
    assert config_digest(batch_settings(8, 1)) != config_digest(batch_settings(8, 2))


def test_with_bn_span_another_number_of_replicas_changes_the_training() -> None:
    assert training_changes(batch_settings(4, 2, span=2), batch_settings(2, 4, span=2)) == [
        "--replicas (with --bn-span) was 2, now 4"
    ]
    assert config_digest(batch_settings(4, 2, span=2)) != config_digest(
        batch_settings(2, 4, span=2)
    )


def half_res_settings(
    accumulation: int, replicas: int, half_res: bool = True
) -> dict[str, Setting]:
    values = {"half_res_training": half_res, "fine_tune_gradient_accumulation": accumulation}
    return batch_settings(8 // replicas, replicas) | settings_from("line", values)


def test_a_fine_tuning_update_may_be_divided_among_any_number_of_replicas() -> None:
    assert training_changes(half_res_settings(4, 1), half_res_settings(2, 2)) == []
    assert config_digest(half_res_settings(4, 1)) == config_digest(half_res_settings(2, 2))


def test_another_number_of_fine_tuning_micro_batches_changes_the_training() -> None:
    assert training_changes(half_res_settings(4, 1), half_res_settings(4, 2)) == [
        "--fine-tune-gradient-accumulation × --replicas was 4, now 8"
    ]
    assert config_digest(half_res_settings(4, 1)) != config_digest(half_res_settings(4, 2))


def test_without_fine_tuning_its_micro_batches_may_change() -> None:
    assert (
        training_changes(
            half_res_settings(4, 1, half_res=False), half_res_settings(4, 2, half_res=False)
        )
        == []
    )
    assert config_digest(half_res_settings(4, 1, half_res=False)) == config_digest(
        half_res_settings(4, 2, half_res=False)
    )


def test_settings_from_a_source_all_have_this_source() -> None:
    assert settings_from("default", {"lr": 0.1, "seed": 0}) == {
        "lr": Setting(0.1, "default"),
        "seed": Setting(0, "default"),
    }


def test_problems_are_the_lines_of_one_error() -> None:
    with pytest.raises(ConfigError) as error:
        raise_problems(
            [Problem("--lr", "is odd"), Problem("", "so is this"), Problem("--lr", "is odd")]
        )

    assert str(error.value) == "--lr is odd\nso is this"


def test_without_problems_no_error_is_raised() -> None:
    raise_problems([])
