"""Options for the initial rate, the changes and the end rate, with expected values."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.sweeps import sweep

from convoy.config.resolve import resolve
from convoy.config.schema import RequestedOptions, settings_from
from convoy.config.sections.training import LearningRateConfig
from convoy.planning.learning_rate import LearningRatePlan
from convoy.planning.plan import plan_run


def rates(updates: int, per_epoch: int, **config: Any) -> list[float]:
    plan = LearningRatePlan(LearningRateConfig(**config), per_epoch, updates)
    return [plan.rate(update) for update in range(updates)]


def planned(**values: Any) -> LearningRatePlan:
    """The learning rates of a complete configuration."""
    settings = settings_from("command line", values)
    return plan_run(resolve(RequestedOptions(settings, environment={})).config).loop.learning_rate


def step(updates: int, per_epoch: int = 2, **config: Any) -> list[float]:
    return rates(updates, per_epoch, lr=1.0, lr_schedule="step", **config)


@pytest.mark.parametrize(
    ("samples", "initial"), [(2048, 1.0), (16_384, 8.0), (1, 2**-11), (3, 3 / 2048)]
)
def test_the_rate_exponent_is_scaled_by_the_samples_per_update(
    samples: int, initial: float
) -> None:
    config = LearningRateConfig(lr=None, base_learning_rate_exponent=-11.0)

    assert LearningRatePlan(config, 10, 100, samples).initial_lr == initial


def test_an_update_counts_the_samples_of_all_replicas() -> None:
    batch = {"micro_batch_size": 16, "gradient_accumulation": 4, "replicas": 2}
    plan = planned(base_learning_rate_exponent=-8.0, warmup_epoch=0.0, **batch)

    assert plan.initial_lr == plan.rate(0) == 128 / 256


def test_an_exponent_may_be_a_fraction() -> None:
    config = LearningRateConfig(lr=None, base_learning_rate_exponent=-0.5)

    assert LearningRatePlan(config, 1, 1, 4).initial_lr == pytest.approx(4 / 2**0.5, rel=1e-15)


def test_step_drops_at_fractions_of_the_run() -> None:
    seen = step(20, lr_decay=0.1, lr_share_decay=(0.3, 0.6, 0.8, 0.9))

    assert seen == pytest.approx([1] * 6 + [1e-1] * 6 + [1e-2] * 4 + [1e-3] * 2 + [1e-4] * 2)


@sweep("hundredths", range(1, 100))
def test_a_fraction_is_read_as_an_exact_decimal(hundredths: int) -> None:
    assert step(100, lr_decay=0.5, lr_share_decay=(hundredths / 100,)).index(0.5) == hundredths


def test_a_fraction_does_not_depend_on_the_length_of_an_epoch() -> None:
    runs = [step(60, per_epoch, lr_share_decay=(0.25, 0.75)) for per_epoch in (1, 7, 60, 1000)]

    assert all(rates == runs[0] for rates in runs)


def test_fraction_zero_drops_at_once_and_one_never() -> None:
    assert step(4, lr_decay=0.5, lr_share_decay=(0.0, 1.0)) == [0.5] * 4


def test_drops_by_epoch_and_by_fraction_add_up() -> None:
    seen = step(8, lr_decay=0.5, lr_epoch_decay=(1.0,), lr_share_decay=(0.5,))

    assert seen == [1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]


def test_a_drop_by_fraction_waits_for_the_next_schedule_step() -> None:
    # The rate changes at every second update: half of 6 is update 3, so it changes at 4.
    assert (
        step(6, lr_decay=0.5, lr_share_decay=(0.5,), lr_scheduler_freq=1.0) == [1] * 4 + [0.5] * 2
    )


def test_multipliers_are_factors_and_not_powers() -> None:
    seen = step(8, lr_share_decay=(0.25, 0.5, 0.75), lr_multipliers=(1.0, 0.5, 2.0, 0.0))

    assert seen == [1, 1, 0.5, 0.5, 2, 2, 0, 0]


def test_the_first_multiplier_applies_before_any_drop() -> None:
    seen = rates(2, 1, lr=0.3, lr_schedule="step", lr_share_decay=(0.5,), lr_multipliers=(0.5, 0.1))

    assert seen == [0.3 * 0.5, 0.3 * 0.1]


def test_multipliers_have_a_warm_up() -> None:
    config = {"lr_share_decay": (0.5,), "lr_multipliers": (2.0, 1.0), "warmup_epoch": 1.0}

    assert step(4, **config) == [0, 1, 1, 1]


def test_lr_drops_are_evenly_spaced() -> None:
    seen = rates(10, 3, lr=1.0, lr_schedule="exponential", lr_decay=0.5, lr_drops=4)

    assert seen == [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.125, 0.125]


@settings(deadline=None)
@given(st.integers(1, 50), st.integers(1, 12), st.integers(1, 80))
def test_the_last_of_the_lr_drops_is_at_the_end_of_the_run(
    updates: int, per_epoch: int, drops: int
) -> None:
    config = LearningRateConfig(lr_schedule="exponential", lr_drops=drops)
    plan = LearningRatePlan(config, per_epoch, updates)

    assert [math.floor(update * plan._changes_per_update) for update in range(updates + 1)] == [
        update * drops // updates for update in range(updates + 1)
    ]


def test_cosine_is_constant_between_two_drops() -> None:
    seen = rates(8, 4, lr=1.0, lr_schedule="cosine", lr_drops=2)

    assert seen == pytest.approx([1] * 4 + [0.5] * 4)


def test_an_absolute_end_is_a_rate_and_not_a_ratio() -> None:
    linear = {"lr_schedule": "polynomial", "poly_lr_decay_power": 1.0}

    assert rates(4, 2, lr=2.0, abs_end_learning_rate=1.0, **linear) == [2, 1.75, 1.5, 1.25]
    assert rates(4, 2, lr=2.0, poly_lr_end_ratio=0.5, **linear) == [2, 1.75, 1.5, 1.25]


def test_an_absolute_end_may_exceed_the_initial_rate() -> None:
    linear = {"lr_schedule": "polynomial", "poly_lr_decay_power": 1.0}

    assert rates(4, 2, lr=0.0, abs_end_learning_rate=1.0, **linear) == [0, 0.25, 0.5, 0.75]


def test_an_absolute_end_may_be_zero() -> None:
    config = LearningRateConfig(lr=1.0, lr_schedule="polynomial", abs_end_learning_rate=0.0)

    assert LearningRatePlan(config, 2, 4).rate(4) == 0


@pytest.mark.parametrize("options", [{"lr_scheduler_freq": 1.7e308}, {"lr_drops": 10**18 - 1}])
@pytest.mark.parametrize("decay", [1.0, 1 - 2**-53, 0.5, 5e-324])
def test_exponential_decay_over_a_huge_run_reaches_zero_or_is_constant(
    decay: float, options: dict[str, Any]
) -> None:
    config = LearningRateConfig(lr=1.0, lr_schedule="exponential", lr_decay=decay, **options)
    plan = LearningRatePlan(config, 10, 10**300)

    assert plan.rate(10**300 - 1) == (1 if decay == 1 else pytest.approx(0, abs=1e-9))
