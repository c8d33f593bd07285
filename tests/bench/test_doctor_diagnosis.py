"""The diagnosis of a feed from prepared measurements."""

import json
from dataclasses import replace

import pytest

from convoy.bench.doctor import Diagnosis, Interval, Trial
from convoy.bench.feed import StepCost

MICRO = 1e-6
WORKERS = (2, 2)  # workers and cores


def steps(
    read: float = 10,
    decode: float = 10,
    crop: float = 10,
    normalize: float = 10,
    transfer: float = 1,
) -> tuple[StepCost, ...]:
    """Costs of one image in microseconds."""
    costs = {"read": read, "decode": decode, "crop": crop, "normalize": normalize}
    workers = [StepCost(name, cost * MICRO, True) for name, cost in costs.items()]
    return (*workers, StepCost("transfer", transfer * MICRO, False))


# Images per second of the feed, of the model, and of both together.
FEED_BOUND = (1000, 5000, 990)
MODEL_BOUND = (5000, 1000, 980)


@pytest.mark.parametrize(
    ("costs", "bottleneck"),
    [
        (steps(read=900), "disk"),
        (steps(decode=900), "decode"),
        (steps(crop=900), "crop"),
        (steps(normalize=900), "normalize"),
        (steps(transfer=900), "transfer"),
    ],
)
def test_a_slow_feed_is_limited_by_its_most_expensive_step(
    costs: tuple[StepCost, ...], bottleneck: str
) -> None:
    assert Diagnosis(costs, *WORKERS, *FEED_BOUND).bottleneck == bottleneck


def test_with_a_fast_feed_the_model_is_the_bottleneck() -> None:
    diagnosis = Diagnosis(steps(decode=900), *WORKERS, *MODEL_BOUND)

    assert diagnosis.bottleneck == "model"
    assert any("No data loading option" in line for line in diagnosis.lines())


def test_cores_are_the_bottleneck_if_model_and_feed_are_slow_only_together() -> None:
    assert Diagnosis(steps(), *WORKERS, 1200, 1000, 600).bottleneck == "cores"


def test_a_negligible_feed_is_not_the_bottleneck() -> None:
    assert Diagnosis(steps(), *WORKERS, 50_000, 1000, 800).bottleneck == "model"


def test_the_loop_is_serial_and_workers_are_parallel() -> None:
    # Four workers share 400 µs per image, so 150 µs in the loop take longer.
    costs = (StepCost("decode", 400 * MICRO, True), StepCost("transfer", 150 * MICRO, False))

    assert Diagnosis(costs, 4, 4, *FEED_BOUND).bottleneck == "transfer"
    assert Diagnosis(costs, 1, 4, *FEED_BOUND).bottleneck == "decode"


def test_without_workers_the_loop_does_everything() -> None:
    costs = (StepCost("decode", 400 * MICRO, True), StepCost("transfer", 150 * MICRO, False))

    assert Diagnosis(costs, 0, 4, *FEED_BOUND).bottleneck == "decode"


def test_more_workers_than_cores_wait_for_the_disk_but_decode_no_faster() -> None:
    read, decode = StepCost("read", 0.01, True), StepCost("decode", 0.01, True)

    assert Diagnosis((), 8, 2, *FEED_BOUND).step_rate(read) == pytest.approx(800)
    assert Diagnosis((), 8, 2, *FEED_BOUND).step_rate(decode) == pytest.approx(200)


def trial(low: float, median: float, high: float, setting: str = "--x 1") -> Trial:
    return Trial(setting, Interval(median, low, high), affects_weights=False)


@pytest.mark.parametrize(
    ("low", "median", "high", "helps"),
    [
        (1.1, 1.2, 1.3, True),
        (0.99, 1.2, 1.5, False),
        (1.005, 1.01, 1.02, False),
        (0.5, 0.6, 0.7, False),
    ],
)
def test_only_a_significant_speedup_is_recommended(
    low: float, median: float, high: float, helps: bool
) -> None:
    diagnosis = Diagnosis(steps(), *WORKERS, *FEED_BOUND, trials=(trial(low, median, high),))
    text = "\n".join(diagnosis.lines())

    assert bool(diagnosis.advice) is helps
    assert ("use --x 1" in text) is helps
    assert ("none of these settings" in text) is not helps


def test_the_largest_speedup_is_recommended_first() -> None:
    small, large = trial(1.1, 1.2, 1.3, "--small"), trial(1.5, 1.6, 1.7, "--large")
    diagnosis = Diagnosis(steps(), *WORKERS, *FEED_BOUND, trials=(small, large))

    assert [trial.setting for trial in diagnosis.advice] == ["--large", "--small"]


def test_advice_that_changes_the_training_is_marked() -> None:
    changing = replace(trial(1.5, 1.6, 1.7), affects_weights=True)
    lines = Diagnosis(steps(), *WORKERS, *FEED_BOUND, trials=(changing,)).lines()

    assert lines[-1] == "use --x 1: 60.0 % faster; it changes the results, so use it for a new run"


def test_the_bottleneck_is_reported_with_its_step_share_and_both_rates() -> None:
    lines = Diagnosis(steps(decode=70), *WORKERS, *FEED_BOUND).lines()

    assert lines[-2:] == [
        "bottleneck: data loading, mostly decode (70.0 % of its time).",
        "It delivers 1000 images/s, and the model could process 5000 images/s",
    ]


def test_the_json_contains_every_value() -> None:
    diagnosis = Diagnosis(steps(decode=900), *WORKERS, *FEED_BOUND, trials=(trial(1.1, 1.2, 1.3),))
    document = json.loads(json.dumps(diagnosis.as_json()))

    assert document["limit"] == "decode"
    assert document["advice"] == ["--x 1"]
    assert document["model_images_per_second"] == 5000
    assert [step["name"] for step in document["steps"]][-1] == "transfer"
    assert document["trials"][0] == {
        "setting": "--x 1",
        "ratio": 1.2,
        "low": 1.1,
        "high": 1.3,
        "helps": True,
        "changes_bits": False,
    }
