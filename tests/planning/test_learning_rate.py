"""Every schedule over complete runs against its formula and against torch."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from convoy.config.sections.training import LearningRateConfig
from convoy.planning.learning_rate import LearningRatePlan

Rates = npt.NDArray[np.float64]

SCHEDULES = ("step", "cosine", "exponential", "polynomial")
STEPS, EPOCHS = 7, 6
CONFIG = LearningRateConfig(
    lr=0.4, lr_decay=0.7, lr_epoch_decay=(2, 3.5, 5), poly_lr_decay_power=1.5
)


def rates(config: LearningRateConfig, steps: int = STEPS, updates: int = STEPS * EPOCHS) -> Rates:
    plan = LearningRatePlan(config, steps, updates)
    return np.array([plan.rate(update) for update in range(updates)])


def formula(config: LearningRateConfig, steps: int, updates: int) -> Rates:
    """The documented formulas in float64, for all updates at once."""
    i = np.arange(updates, dtype=np.float64)
    f = config.lr_scheduler_freq or steps
    e, epochs = i / steps, updates / steps
    k = np.floor(i * f / steps)
    lr, warm = config.lr, config.warmup_epoch
    match config.lr_schedule:
        case "step":
            passed = [epoch * f <= k for epoch in config.lr_epoch_decay]
            value = lr * config.lr_decay ** np.sum(passed, axis=0)
        case "cosine":
            value = lr * 0.5 * (1 + np.cos(np.pi * k / (epochs * f)))
        case "exponential":
            value = lr * config.lr_decay**k
        case _:
            end = config.poly_lr_end_ratio * lr
            part = np.clip((k - warm * f) / (epochs * f - warm * f), 0, 1)
            value = (lr - end) * (1 - part) ** config.poly_lr_decay_power + end
    return np.where(e < warm, value * e / (warm or 1), value)


@pytest.mark.parametrize("warmup", [0, 1, 1.5, 3])
@pytest.mark.parametrize("frequency", [0, 1, 0.5, 3])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_all_rates_of_a_run_follow_the_documented_formula(
    schedule: str, frequency: float, warmup: float
):
    config = replace(CONFIG, lr_schedule=schedule, lr_scheduler_freq=frequency, warmup_epoch=warmup)

    np.testing.assert_allclose(
        rates(config), formula(config, STEPS, STEPS * EPOCHS), rtol=1e-13, atol=1e-17
    )


def torch_scheduler(
    make: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler],
) -> Rates:
    """The rates of a scheduler of torch for the same updates."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=CONFIG.lr)
    scheduler = make(optimizer)
    seen = []
    for _ in range(STEPS * EPOCHS):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return np.array(seen)


def test_cosine_matches_torch():
    reference = torch_scheduler(
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, T_max=STEPS * EPOCHS
        )
    )

    np.testing.assert_allclose(rates(replace(CONFIG, lr_schedule="cosine")), reference, rtol=1e-9)


def test_step_schedule_matches_torch():
    drops = [math.ceil(epoch * STEPS) for epoch in CONFIG.lr_epoch_decay]
    reference = torch_scheduler(
        lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, drops, CONFIG.lr_decay)
    )

    np.testing.assert_allclose(rates(replace(CONFIG, lr_schedule="step")), reference, rtol=1e-12)


def test_exponential_decay_matches_torch():
    reference = torch_scheduler(
        lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, CONFIG.lr_decay)
    )

    np.testing.assert_allclose(
        rates(replace(CONFIG, lr_schedule="exponential")), reference, rtol=1e-12
    )


def test_polynomial_to_zero_matches_torch():
    config = replace(CONFIG, lr_schedule="polynomial", poly_lr_end_ratio=0)
    reference = torch_scheduler(
        lambda optimizer: torch.optim.lr_scheduler.PolynomialLR(
            optimizer, STEPS * EPOCHS, CONFIG.poly_lr_decay_power
        )
    )

    np.testing.assert_allclose(rates(config), reference, rtol=1e-9)


def test_steps_drop_at_the_first_update_of_the_epoch():
    config = LearningRateConfig(lr=1, lr_schedule="step", lr_decay=0.5, lr_epoch_decay=(1, 2))

    assert rates(config, steps=2, updates=6).tolist() == [1, 1, 0.5, 0.5, 0.25, 0.25]


def test_a_frequency_below_one_changes_the_rate_every_few_epochs():
    config = LearningRateConfig(
        lr=1, lr_schedule="exponential", lr_decay=0.5, lr_scheduler_freq=0.5
    )

    assert rates(config, steps=2, updates=10).tolist() == [1] * 4 + [0.5] * 4 + [0.25] * 2


def test_polynomial_warms_up_to_the_full_rate_and_then_falls():
    config = LearningRateConfig(
        lr=1, lr_schedule="polynomial", warmup_epoch=2, poly_lr_end_ratio=0.5, poly_lr_decay_power=1
    )

    assert rates(config, steps=2, updates=8).tolist() == [
        *(0, 0.25, 0.5, 0.75),  # update / 4 during the warm-up, without decay
        *(1, 0.875, 0.75, 0.625),
    ]


def test_polynomial_reaches_its_end_one_update_after_the_run():
    config = LearningRateConfig(lr=0.3, lr_schedule="polynomial", poly_lr_end_ratio=0.1)
    plan = LearningRatePlan(config, STEPS, STEPS * EPOCHS)

    assert plan.rate(STEPS * EPOCHS) == pytest.approx(0.03, rel=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_first_update_of_a_warm_up_has_rate_zero(schedule: str):
    assert rates(replace(CONFIG, lr_schedule=schedule, warmup_epoch=1))[0] == 0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warm_up_may_be_longer_than_the_run(schedule: str):
    config = replace(CONFIG, lr_schedule=schedule, lr_decay=1, warmup_epoch=60)
    flat = schedule in ("step", "exponential", "polynomial")
    seen = rates(config)

    assert np.all(seen <= CONFIG.lr * np.arange(42) / 420 * (1 + 1e-12))
    assert not flat or seen[-1] == pytest.approx(CONFIG.lr * 41 / 420)


def test_a_drop_takes_effect_at_its_decimal_epoch():
    drops = []
    for hundredths in range(1, 100):
        config = LearningRateConfig(
            lr=1, lr_schedule="step", lr_decay=0.5, lr_epoch_decay=(hundredths / 100,)
        )
        drops.append(rates(config, steps=100, updates=100).tolist().index(0.5))

    assert drops == list(range(1, 100))


def test_a_frequency_is_read_as_an_exact_decimal():
    config = LearningRateConfig(lr=1, lr_schedule="exponential", lr_decay=0.5)
    seen = []
    for hundredths in range(1, 100):
        plan = LearningRatePlan(replace(config, lr_scheduler_freq=hundredths / 100), 1, 101)
        seen.append(-math.log2(plan.rate(100)))

    assert seen == list(range(1, 100))


def test_a_rate_of_zero_stays_zero():
    for schedule in SCHEDULES:
        assert not rates(replace(CONFIG, lr_schedule=schedule, lr=0, warmup_epoch=1)).any()


configs = st.builds(
    LearningRateConfig,
    lr=st.floats(0, 10),
    lr_schedule=st.sampled_from(SCHEDULES),
    lr_decay=st.floats(1e-6, 1),
    lr_epoch_decay=st.lists(st.floats(0, 20), max_size=3).map(tuple),
    lr_scheduler_freq=st.sampled_from([0, 0.1, 0.424, 0.5, 1, 2.4, 3, 1000]),
    warmup_epoch=st.sampled_from([0, 0.3, 1, 2.5, 40]),
    poly_lr_decay_power=st.floats(0.1, 5),
    poly_lr_end_ratio=st.floats(0, 1),
)


@settings(deadline=None)  # the machine may be busy
@given(config=configs, steps=st.integers(1, 9), updates=st.integers(1, 60))
def test_no_rate_is_negative_or_above_the_initial_one(
    config: LearningRateConfig, steps: int, updates: int
):
    seen = rates(config, steps, updates)

    assert np.all((seen >= 0) & (seen <= config.lr * (1 + 1e-12)))


@settings(deadline=None)  # the machine may be busy
@given(config=configs, steps=st.integers(1, 9), updates=st.integers(1, 60))
def test_max_lr_is_the_maximum_over_all_updates(
    config: LearningRateConfig, steps: int, updates: int
):
    plan = LearningRatePlan(config, steps, updates)

    assert plan.max_lr == max(plan.rate(update) for update in range(updates))


rising = st.lists(st.floats(0, 1), max_size=4).flatmap(
    lambda shares: st.builds(
        LearningRateConfig,
        lr=st.floats(0, 10),
        lr_schedule=st.sampled_from(("step", "polynomial")),
        lr_share_decay=st.just(tuple(shares)),
        lr_multipliers=st.lists(
            st.floats(0, 3), min_size=len(shares) + 1, max_size=len(shares) + 1
        ).map(tuple),
        lr_scheduler_freq=st.sampled_from([0, 0.1, 0.424, 1, 3]),
        warmup_epoch=st.sampled_from([0, 0.3, 1, 2.5, 40]),
        abs_end_learning_rate=st.floats(0, 20),
    )
)


@settings(deadline=None)  # the machine may be busy
@given(config=rising, steps=st.integers(1, 9), updates=st.integers(1, 60))
def test_max_lr_is_found_where_rates_rise(config: LearningRateConfig, steps: int, updates: int):
    plan = LearningRatePlan(config, steps, updates)

    assert plan.max_lr == max(plan.rate(update) for update in range(updates))


class CountingPlan(LearningRatePlan):
    """Counts the calls of `rate`."""

    num_calls = 0

    def rate(self, update: int, warmup_update: int | None = None) -> float:
        CountingPlan.num_calls += warmup_update is None  # other calls compute bounds
        return super().rate(update, warmup_update)


@pytest.mark.parametrize("decay", [0.9, 0.97, 1.0])
@pytest.mark.parametrize("frequency", [0.0, 0.424, 1000.0])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_max_lr_does_not_iterate_over_millions_of_updates(
    schedule: str, frequency: float, decay: float
):
    config = replace(
        CONFIG,
        lr_schedule=schedule,
        lr_decay=decay ** (1e-5 if frequency == 0 else 1e-3 if frequency > 1 else 1),
        lr_scheduler_freq=frequency,
        warmup_epoch=70,
    )
    CountingPlan.num_calls = 0
    highest = CountingPlan(config, 100_000, 35_000_000).max_lr

    assert CountingPlan.num_calls < 20_000
    assert 0 < highest <= CONFIG.lr


@settings(deadline=None)  # the machine may be busy
@given(config=configs, steps=st.integers(1, 9), updates=st.integers(1, 60))
def test_no_rate_rises_after_the_warm_up(config: LearningRateConfig, steps: int, updates: int):
    seen = rates(config, steps, updates)
    after_warmup = seen[math.ceil(config.warmup_epoch * steps) :]

    assert np.all(np.diff(after_warmup) <= 0)


@settings(deadline=None)  # the machine may be busy
@given(config=configs, steps=st.integers(1, 9), updates=st.integers(1, 60))
def test_warm_up_lowers_its_rates_and_changes_no_others(
    config: LearningRateConfig, steps: int, updates: int
):
    assume(config.lr_schedule != "polynomial")  # its decay starts after the warm-up
    with_warmup = rates(config, steps, updates)
    without_warmup = rates(replace(config, warmup_epoch=0), steps, updates)
    first = math.ceil(config.warmup_epoch * steps)

    assert np.all(with_warmup <= without_warmup)
    assert np.array_equal(with_warmup[first:], without_warmup[first:])
