"""Rate changes against all updates of a run, and in bounded time for long runs."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.config.schema import build_config
from convoy.config.sections.training import LearningRateConfig
from convoy.planning.learning_rate import LearningRatePlan
from convoy.planning.loop import LoopPlan, RateChange, rate_table, sample_rate_changes
from convoy.planning.plan import plan_run

MAX_CHANGES = 40


def loop(updates: int = 40, per_epoch: int = 4, before: float = 0, **config: Any) -> LoopPlan:
    """A plan of which only the learning rates matter."""
    default = plan_run(build_config({"model": "resnet8"})).loop
    rates = LearningRatePlan(LearningRateConfig(**config), per_epoch, updates)
    return LoopPlan(
        samples=per_epoch,
        samples_per_update=1,
        micro_batches=1,
        updates_per_epoch=per_epoch,
        updates=updates,
        stop_after=None,
        learning_rate=rates,
        reports=default.reports,
        checkpoints=default.checkpoints,
        validations=default.validations,
        epochs_before=before,
    )


def all_rate_changes(plan: LoopPlan) -> list[int]:
    """Every update whose rate differs from the previous one."""
    rates = [plan.learning_rate.rate(update) for update in range(plan.updates)]
    return [0, *(n for n in range(1, len(rates)) if rates[n] != rates[n - 1])]


configs = st.builds(
    LearningRateConfig,
    lr=st.sampled_from([0.0, 0.1]),
    lr_schedule=st.sampled_from(["step", "cosine", "exponential", "polynomial"]),
    lr_decay=st.sampled_from([0.5, 1.0]),
    lr_epoch_decay=st.lists(st.sampled_from([0, 0.3, 1, 2.5, 7, 99]), max_size=3).map(tuple),
    lr_share_decay=st.lists(st.sampled_from([0, 0.25, 0.5, 1]), max_size=2).map(tuple),
    lr_scheduler_freq=st.sampled_from([0, 0.1, 0.424, 1, 2.4, 1000]),
    warmup_epoch=st.sampled_from([0, 0.3, 1, 2.5, 99]),
)


@settings(deadline=None)  # the machine may be busy
@given(config=configs, per_epoch=st.integers(1, 9), updates=st.integers(1, MAX_CHANGES))
def test_few_changes_are_all_listed(config: LearningRateConfig, per_epoch: int, updates: int):
    full = loop(updates, per_epoch, **vars(config))
    actual = sample_rate_changes(full, MAX_CHANGES)

    assert [item.update for item in actual] == all_rate_changes(full)
    assert all(item.rate == full.learning_rate.rate(item.update) for item in actual)


def test_a_change_has_update_epoch_and_rate():
    step = loop(8, 2, 3.0, lr=1.0, lr_schedule="step", lr_decay=0.5, lr_epoch_decay=(1.5, 3))

    assert sample_rate_changes(step, MAX_CHANGES) == [
        RateChange(0, 3.0, 1.0),
        RateChange(3, 4.5, 0.5),
        RateChange(6, 6.0, 0.25),
    ]


def test_a_drop_at_the_end_of_the_run_is_not_a_change():
    step = loop(8, 2, lr_schedule="step", lr_share_decay=(0.5, 1.0))

    assert [change.update for change in sample_rate_changes(step, MAX_CHANGES)] == [0, 4]
    assert [row.update for row in rate_table(step).rows] == [0, 4]


def test_omitted_drops_are_counted_if_one_is_at_the_end_of_warm_up():
    drops = tuple(map(float, range(1, 20)))
    table = rate_table(
        loop(200, 10, lr=1.0, lr_schedule="step", lr_epoch_decay=drops, warmup_epoch=1)
    )

    assert [row.update for row in table.rows] == [0, 10, *range(20, 100, 10), 190]
    assert table.num_omitted == 9  # of 100 to 180


def test_a_long_warm_up_is_reduced_to_its_ends_and_hides_no_drop():
    step = loop(10_000, 100, lr=1.0, lr_schedule="step", lr_epoch_decay=(30, 80), warmup_epoch=10)

    updates = [change.update for change in sample_rate_changes(step, MAX_CHANGES)]

    assert updates == [0, 1000, 3000, 8000]


def test_a_schedule_with_many_changes_is_sampled_evenly():
    cosine = loop(1001, 10)
    actual = [change.update for change in sample_rate_changes(cosine, 11)]

    assert actual == [0, 1, 112, 223, 334, 445, 556, 667, 778, 889, 1000]


@pytest.mark.parametrize("schedule", ["step", "cosine", "exponential", "polynomial"])
@pytest.mark.parametrize("frequency", [0.0, 0.424, 1000.0])
def test_sampling_does_not_iterate_over_millions_of_updates(schedule: str, frequency: float):
    calls: list[int] = []

    class RecordingPlan(LearningRatePlan):
        def rate(self, update: int, warmup_update: int | None = None) -> float:
            calls.append(update)
            return super().rate(update, warmup_update)

    config = LearningRateConfig(
        lr_schedule=schedule,
        lr_epoch_decay=(40.0, 300.0),
        lr_scheduler_freq=frequency,
        warmup_epoch=7,
    )
    rates = RecordingPlan(config, 100_000, 35_000_000)
    full = loop(35_000_000, 100_000)
    recorded = LoopPlan(**{**vars(full), "learning_rate": rates})
    actual, displayed = sample_rate_changes(recorded, MAX_CHANGES), rate_table(recorded)

    assert len(actual) <= MAX_CHANGES and len(calls) <= MAX_CHANGES + 12
    assert len(displayed.rows) + bool(displayed.num_omitted) <= 12


@pytest.mark.parametrize(("drops", "rows"), [(3, 4), (11, 12)])
def test_few_drops_are_all_shown(drops: int, rows: int):
    step = loop(
        200, 10, lr_schedule="step", lr_epoch_decay=tuple(float(n + 1) for n in range(drops))
    )
    displayed = rate_table(step)

    assert [item.update for item in displayed.rows] == [10 * row for row in range(rows)]
    assert displayed.num_omitted == 0


def test_many_drops_are_shown_by_the_first_and_last_and_a_count():
    exponential = loop(200, 10, lr_schedule="exponential", lr_scheduler_freq=1.0)
    displayed = rate_table(exponential)

    assert [row.update for row in displayed.rows] == [*range(0, 100, 10), 190]
    assert len(displayed.rows) + displayed.num_omitted == len(all_rate_changes(exponential))


def test_a_rate_that_changes_every_update_is_shown_at_quarters():
    displayed = rate_table(loop(401, 10, warmup_epoch=1))

    assert [row.update for row in displayed.rows] == [0, 10, 100, 200, 300, 400]
    assert displayed.num_omitted == 0


def test_quarters_within_the_warm_up_are_omitted():
    displayed = rate_table(loop(401, 10, warmup_epoch=25))

    assert [row.update for row in displayed.rows] == [0, 250, 300, 400]


@pytest.mark.parametrize(
    "config",
    [
        {"lr": 0.0, "warmup_epoch": 2},
        {"lr_schedule": "step"},
        {"lr_schedule": "exponential", "lr_decay": 1.0},
    ],
)
def test_a_rate_that_never_changes_has_one_row(config: dict[str, Any]):
    assert [row.update for row in rate_table(loop(**config)).rows] == [0]
    assert len(sample_rate_changes(loop(**config), MAX_CHANGES)) == 1
