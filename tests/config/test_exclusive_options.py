"""Two options that say the same thing: the higher source wins, and one source may say only one."""

import json
from pathlib import Path
from typing import Any

import pytest
from running import convoy

from convoy.config.resolve import (
    RequestedOptions,
    Resolved,
    resolve,
    resolve_resumed,
    settings_of_run,
)
from convoy.config.schema import mutually_exclusive, option_table
from convoy.config.settings import Setting, digest, from_source, settings_as_yaml
from convoy.errors import ConfigError
from convoy.plan.plan import plan_run

# A value of each that is not its usual one.
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
ADD_UP = ("lr_epoch_decay", "lr_share_decay")  # these two may be said together
BOTH_WAYS = [pair for one, other in mutually_exclusive() for pair in ((one, other), (other, one))]
LAYERS = ("dialect", "named", "command_line")


def asked(**layers: dict[str, Any]) -> Resolved:
    said = {place: from_source(place, values) for place, values in layers.items()}
    return resolve(RequestedOptions(**said, environment={}))


def unset(name: str) -> Any:
    row = option_table()[name]
    return None if row.kind.optional else row.default


def test_every_rival_is_tried_here() -> None:
    assert {name for rivals in mutually_exclusive() for name in rivals} == set(VALUES)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 2), (1, 2)])
@pytest.mark.parametrize(("winner", "loser"), BOTH_WAYS)
def test_the_higher_source_wins_and_unsets_the_other(
    winner: str, loser: str, low: int, high: int
) -> None:
    above, below = LAYERS[high], LAYERS[low]
    settings = asked(**{above: {winner: VALUES[winner]}, below: {loser: VALUES[loser]}}).settings

    assert settings[winner] == Setting(VALUES[winner], above)
    assert settings[loser] == Setting(unset(loser), above)


@pytest.mark.parametrize("place", LAYERS)
@pytest.mark.parametrize(
    ("one", "other"), [pair for pair in mutually_exclusive() if pair != ADD_UP]
)
def test_one_source_that_says_both_is_refused(one: str, other: str, place: str) -> None:
    with pytest.raises(ConfigError) as error:
        asked(**{place: {one: VALUES[one], other: VALUES[other]}})

    (line,) = str(error.value).splitlines()
    assert option_table()[one].flag in line and option_table()[other].flag in line
    assert " both " in line and " give one" in line


def test_drops_by_epoch_and_by_share_of_one_source_both_hold() -> None:
    rate = asked(command_line={name: VALUES[name] for name in ADD_UP}).config.learning_rate

    assert (rate.lr_epoch_decay, rate.lr_share_decay) == ((1.0, 2.0), (0.5, 0.75))


@pytest.mark.parametrize(("drops", "rates"), [((), 1), ((0.5,), 2), ((0.5, 0.75), 3)])
def test_multipliers_are_one_more_than_drops(drops: tuple[float, ...], rates: int) -> None:
    for given in range(1, 5):
        values = {"lr_share_decay": drops, "lr_multipliers": (1.0,) * given}
        if given == rates:
            assert asked(command_line=values).config.learning_rate.lr_share_decay == drops
            continue
        with pytest.raises(ConfigError) as error:
            asked(command_line=values)
        assert str(error.value) == (
            f"--lr-multipliers gives {given} rates for {len(drops)} drops; give {rates}"
        )


def test_a_rate_that_is_only_taken_away_is_refused() -> None:
    with pytest.raises(ConfigError, match="--lr or --base-learning-rate-exponent must set"):
        asked(named={"lr": None})


def test_in_tensorflow_an_absolute_end_wins_over_a_share() -> None:
    words = ("--lr-schedule", "polynomial_decay_lr", "--poly-lr-end-ratio", "0.5")
    command = ("train.py", "--dataset=imagenet", *words, "--abs-end-learning-rate", "0.01")
    meaning = json.loads(convoy("run", "--dry-run", "--", "python3", *command).out)

    assert meaning["plan"]["options"]["abs_end_learning_rate"]["value"] == 0.01
    assert meaning["dropped"] == [
        {"word": "--poly-lr-end-ratio 0.5", "reason": "--abs-end-learning-rate wins"}
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
def test_a_run_that_goes_on_keeps_its_rates(values: dict[str, Any], tmp_path: Path) -> None:
    begun = asked(command_line=values)
    path = tmp_path / "config.yaml"
    path.write_text(settings_as_yaml(begun.settings))
    resumed = resolve_resumed(settings_of_run(path), {}, [], override=False)
    before, after = (plan_run(one.config).loop for one in (begun, resumed))

    assert resumed.config == begun.config
    assert digest(resumed.settings) == digest(begun.settings)
    assert [before.learning_rate.rate(update) for update in range(before.updates)] == [
        after.learning_rate.rate(update) for update in range(after.updates)
    ]


def test_a_run_that_goes_on_with_another_rate_is_another_training(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(settings_as_yaml(asked(command_line={**EXPONENT, **POLYNOMIAL}).settings))
    given = from_source("command line", {"lr": 0.1, "poly_lr_end_ratio": 0.5})

    with pytest.raises(ConfigError) as error:
        resolve_resumed(settings_of_run(path), given, [], override=False)
    assert str(error.value).startswith(
        "this would be another training: --lr was –, now 0.1; "
        "--base-learning-rate-exponent was -8, now –; --poly-lr-end-ratio was 1e-05, now 0.5; "
        "--abs-end-learning-rate was 0.01, now –; "
    )
    rate = resolve_resumed(settings_of_run(path), given, [], override=True).config.learning_rate
    assert (rate.lr, rate.base_learning_rate_exponent) == (0.1, None)
    assert (rate.poly_lr_end_ratio, rate.abs_end_learning_rate) == (0.5, None)


def test_the_layout_may_change_under_an_exponent() -> None:
    """The samples of an update stay the same, and so does the rate."""
    batch = {"micro_batch_size": 4, "gradient_accumulation": 8}
    other = {"micro_batch_size": 4, "gradient_accumulation": 2, "replicas": 4}
    rates = [
        plan_run(asked(command_line={**EXPONENT, **one}).config).loop.learning_rate
        for one in (batch, other)
    ]

    assert rates[0] == rates[1]
