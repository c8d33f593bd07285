"""The verdict on a feed, out of given times."""

import json
from dataclasses import replace

import pytest

from convoy.bench.doctor import Diagnosis, Interval, Trial
from convoy.bench.feed import StepCost

MICRO = 1e-6
WORKERS = (2, 2)  # on as many cores


def steps(
    read: float = 10, decode: float = 10, crop: float = 10, normalize: float = 10, move: float = 1
) -> tuple[StepCost, ...]:
    """Costs of one image in microseconds."""
    costs = {"read": read, "decode": decode, "crop": crop, "normalize": normalize}
    workers = [StepCost(name, cost * MICRO, True) for name, cost in costs.items()]
    return (*workers, StepCost("transfer", move * MICRO, False))


# Images per second of the feed, of the model, and of both together.
STARVED = (1000, 5000, 990)
FULL = (5000, 1000, 980)


@pytest.mark.parametrize(
    ("costs", "limit"),
    [
        (steps(read=900), "disk"),
        (steps(decode=900), "decode"),
        (steps(crop=900), "crop"),
        (steps(normalize=900), "normalize"),
        (steps(move=900), "transfer"),
    ],
)
def test_a_slow_feed_is_limited_by_its_dearest_step(
    costs: tuple[StepCost, ...], limit: str
) -> None:
    assert Diagnosis(costs, *WORKERS, *STARVED).limit == limit


def test_a_feed_that_is_fast_enough_leaves_the_model_as_the_limit() -> None:
    found = Diagnosis(steps(decode=900), *WORKERS, *FULL)

    assert found.limit == "model"
    assert "no setting of the feed would make this training faster" in found.lines()


def test_cores_limit_where_both_are_fast_alone_but_not_together() -> None:
    assert Diagnosis(steps(), *WORKERS, 1200, 1000, 600).limit == "cores"


def test_a_feed_that_needs_next_to_nothing_is_not_to_blame_for_a_slow_moment() -> None:
    assert Diagnosis(steps(), *WORKERS, 50_000, 1000, 800).limit == "model"


def test_the_loop_has_one_pair_of_hands_and_the_workers_have_more() -> None:
    # Four workers share 400 µs of an image, so that 150 µs in the loop are the longer way.
    costs = (StepCost("decode", 400 * MICRO, True), StepCost("transfer", 150 * MICRO, False))

    assert Diagnosis(costs, 4, 4, *STARVED).limit == "transfer"
    assert Diagnosis(costs, 1, 4, *STARVED).limit == "decode"


def test_without_workers_the_loop_does_everything() -> None:
    costs = (StepCost("decode", 400 * MICRO, True), StepCost("transfer", 150 * MICRO, False))

    assert Diagnosis(costs, 0, 4, *STARVED).limit == "decode"


def test_more_workers_than_cores_wait_for_the_disk_but_decode_no_faster() -> None:
    read, decode = StepCost("read", 0.01, True), StepCost("decode", 0.01, True)

    assert Diagnosis((), 8, 2, *STARVED).step_rate(read) == pytest.approx(800)
    assert Diagnosis((), 8, 2, *STARVED).step_rate(decode) == pytest.approx(200)


def trial(low: float, middle: float, high: float, setting: str = "--x 1") -> Trial:
    return Trial(setting, Interval(middle, low, high), changes_bits=False)


@pytest.mark.parametrize(
    ("low", "middle", "high", "helps"),
    [
        (1.1, 1.2, 1.3, True),
        (0.99, 1.2, 1.5, False),
        (1.005, 1.01, 1.02, False),
        (0.5, 0.6, 0.7, False),
    ],
)
def test_only_a_gain_beyond_doubt_is_advice(
    low: float, middle: float, high: float, helps: bool
) -> None:
    found = Diagnosis(steps(), *WORKERS, *STARVED, trials=(trial(low, middle, high),))
    text = "\n".join(found.lines())

    assert bool(found.advice) is helps
    assert ("use --x 1" in text) is helps
    assert ("none of these settings" in text) is not helps


def test_the_largest_gain_is_advised_first() -> None:
    small, large = trial(1.1, 1.2, 1.3, "--small"), trial(1.5, 1.6, 1.7, "--large")
    found = Diagnosis(steps(), *WORKERS, *STARVED, trials=(small, large))

    assert [one.setting for one in found.advice] == ["--large", "--small"]


def test_advice_that_changes_the_training_says_so() -> None:
    risky = replace(trial(1.5, 1.6, 1.7), changes_bits=True)
    lines = Diagnosis(steps(), *WORKERS, *STARVED, trials=(risky,)).lines()

    assert lines[-1] == "use --x 1: 60.0 % faster; it is part of the training: for a new run"


def test_the_verdict_names_the_step_its_share_and_both_rates() -> None:
    lines = Diagnosis(steps(decode=70), *WORKERS, *STARVED).lines()

    assert lines[-2:] == [
        "the feed limits, most of all by decode (70.0 % of its time):",
        "it brings 1000 images/s, and the model could take 5000 images/s",
    ]


def test_programs_get_every_figure() -> None:
    found = Diagnosis(steps(decode=900), *WORKERS, *STARVED, trials=(trial(1.1, 1.2, 1.3),))
    told = json.loads(json.dumps(found.as_json()))

    assert told["limit"] == "decode"
    assert told["advice"] == ["--x 1"]
    assert told["model_images_per_second"] == 5000
    assert [one["name"] for one in told["steps"]][-1] == "transfer"
    assert told["trials"][0] == {
        "setting": "--x 1",
        "ratio": 1.2,
        "low": 1.1,
        "high": 1.3,
        "helps": True,
        "changes_bits": False,
    }
