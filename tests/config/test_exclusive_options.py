"""Exclusive options: the source with higher precedence applies, and no source may set both."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.run_convoy import convoy

from convoy.config.resolve import ResolvedConfig, read_run_settings, resolve, resolve_resumed
from convoy.config.schema import (
    RequestedOptions,
    Setting,
    config_digest,
    exclusive_pairs,
    option_table,
    settings_as_yaml,
    settings_from,
)
from convoy.errors import ConfigError
from convoy.planning.plan import plan_run

# A value other than the default for each option.
VALUES: dict[str, Any] = {
    "epoch": 7.0,
    "updates": 9,
    "lr": 0.3,
    "base_learning_rate_exponent": -8.0,
    "lr_scheduler_freq": 2.0,
    "lr_drops": 4,
    "lr_epoch_decay": (1.0, 2.0),
    "lr_share_decay": (0.5, 0.75),
    "poly_lr_end_ratio": 0.25,
    "abs_end_learning_rate": 0.01,
    "rmsprop_decay": 0.5,
    "rmsprop_base_decay_exp": -14.0,
    "logs_per_epoch": 2,
    "log_freq": 5,
}
COMBINABLE = ("lr_epoch_decay", "lr_share_decay")
ORDERED_PAIRS = [pair for a, b in exclusive_pairs() for pair in ((a, b), (b, a))]
LAYERS = ("dialect_defaults", "named_config", "command_line")


def resolve_layers(**layers: dict[str, Any]) -> ResolvedConfig:
    settings = {layer: settings_from(layer, values) for layer, values in layers.items()}
    return resolve(RequestedOptions(**settings, environment={}))


def unset_value(name: str) -> Any:
    row = option_table()[name]
    return None if row.value_type.optional else row.default


def test_every_exclusive_option_is_tested() -> None:
    assert {name for pair in exclusive_pairs() for name in pair} == set(VALUES)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize(("winner", "loser"), ORDERED_PAIRS)
def test_the_source_with_higher_precedence_unsets_the_other_option(
    winner: str, loser: str, low: int, high: int
) -> None:
    high_layer, low_layer = LAYERS[high], LAYERS[low]
    settings = resolve_layers(
        **{high_layer: {winner: VALUES[winner]}, low_layer: {loser: VALUES[loser]}}
    ).settings

    assert settings[winner] == Setting(VALUES[winner], high_layer)
    assert settings[loser] == Setting(unset_value(loser), high_layer)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("first", "second"), [pair for pair in exclusive_pairs() if pair != COMBINABLE]
)
def test_a_source_that_sets_both_is_refused(first: str, second: str, layer: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_layers(**{layer: {first: VALUES[first], second: VALUES[second]}})

    (line,) = str(error.value).splitlines()
    assert option_table()[first].flag in line and option_table()[second].flag in line
    assert " both " in line


def test_drops_by_epoch_and_by_fraction_can_be_combined() -> None:
    rate = resolve_layers(
        command_line={name: VALUES[name] for name in COMBINABLE}
    ).config.learning_rate

    assert (rate.lr_epoch_decay, rate.lr_share_decay) == ((1.0, 2.0), (0.5, 0.75))


@pytest.mark.parametrize(("drops", "rates"), [((), 1), ((0.5,), 2), ((0.5, 0.75), 3)])
def test_there_is_one_more_multiplier_than_drops(drops: tuple[float, ...], rates: int) -> None:
    for count in range(1, 5):
        values = {"lr_share_decay": drops, "lr_multipliers": (1.0,) * count}
        if count == rates:
            assert resolve_layers(command_line=values).config.learning_rate.lr_share_decay == drops
            continue
        with pytest.raises(ConfigError) as error:
            resolve_layers(command_line=values)
        assert re.match(
            rf"--lr-multipliers needs {rates} .* {len(drops)} milestones?, got {count}$",
            str(error.value),
        )


def test_an_unset_learning_rate_is_refused() -> None:
    with pytest.raises(ConfigError, match="--lr or --base-learning-rate-exponent must set"):
        resolve_layers(named_config={"lr": None})


def test_in_tensorflow_an_absolute_final_rate_overrides_a_fraction() -> None:
    words = ("--lr-schedule", "polynomial_decay_lr", "--poly-lr-end-ratio", "0.5")
    command = ("train.py", "--dataset=imagenet", *words, "--abs-end-learning-rate", "0.01")
    description = json.loads(convoy("run", "--dry-run", "--", "python3", *command).out)

    assert description["plan"]["options"]["abs_end_learning_rate"]["value"] == 0.01
    assert description["dropped"] == [
        {"word": "--poly-lr-end-ratio 0.5", "reason": "--abs-end-learning-rate takes precedence"}
    ]


EXPONENT = {"base_learning_rate_exponent": -8.0}
STEP = {"lr_schedule": "step", "lr_share_decay": (0.5, 0.75)}
POLYNOMIAL = {"lr_schedule": "polynomial", "abs_end_learning_rate": 0.01}


@pytest.mark.parametrize(
    "values",
    [
        EXPONENT,
        {**EXPONENT, **STEP, "lr_multipliers": (1.0, 0.5, 0.1)},
        {**STEP, "lr_decay": 0.1, "lr_drops": 7},
        {"lr_schedule": "exponential", "lr_drops": 5, "lr_decay": 0.97},
        POLYNOMIAL,
        {**EXPONENT, **POLYNOMIAL, "updates": 77},
    ],
)
def test_a_resumed_run_keeps_its_learning_rates(values: dict[str, Any], tmp_path: Path) -> None:
    started = resolve_layers(command_line=values)
    path = tmp_path / "config.yaml"
    path.write_text(settings_as_yaml(started.settings))
    resumed = resolve_resumed(read_run_settings(path), {}, [], override=False)
    before, after = (plan_run(resolved.config).loop for resolved in (started, resumed))

    assert resumed.config == started.config
    assert config_digest(resumed.settings) == config_digest(started.settings)
    assert [before.learning_rate.rate(update) for update in range(before.updates)] == [
        after.learning_rate.rate(update) for update in range(after.updates)
    ]


def test_resuming_with_another_learning_rate_needs_override(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        settings_as_yaml(resolve_layers(command_line={**EXPONENT, **POLYNOMIAL}).settings)
    )
    changes = settings_from("command line", {"lr": 0.1, "poly_lr_end_ratio": 0.5})

    with pytest.raises(ConfigError) as error:
        resolve_resumed(read_run_settings(path), changes, [], override=False)
    assert (
        "--lr was –, now 0.1; --base-learning-rate-exponent was -8, now –; "
        "--poly-lr-end-ratio was 1e-05, now 0.5; "
        "--abs-end-learning-rate was 0.01, now –; "
    ) in str(error.value)
    rate = resolve_resumed(read_run_settings(path), changes, [], override=True).config.learning_rate
    assert (rate.lr, rate.base_learning_rate_exponent) == (0.1, None)
    assert (rate.poly_lr_end_ratio, rate.abs_end_learning_rate) == (0.5, None)


def test_a_rate_from_an_exponent_does_not_depend_on_the_layout() -> None:
    one_replica = {"micro_batch_size": 4, "gradient_accumulation": 8}
    four_replicas = {"micro_batch_size": 4, "gradient_accumulation": 2, "replicas": 4}
    rates = [
        plan_run(resolve_layers(command_line={**EXPONENT, **layout}).config).loop.learning_rate
        for layout in (one_replica, four_replicas)
    ]

    assert rates[0] == rates[1]
