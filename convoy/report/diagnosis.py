"""What the doctor of a feed found: what each step costs, what limits, and which settings help."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from convoy.report.interval import Interval
from convoy.report.wording import percent, speed_text

MODEL, CORES = "model", "cores"
_CALLED = {"read": "disk"}  # what a step that limits lacks
_FULL = 0.9  # of its own rate: a model that has less than this waits for its images
_MANY = 10  # times as fast as the model: such a feed takes too little of the cores to matter
_LEAST_GAIN = 1.02  # below it nobody would notice


@dataclass(frozen=True)
class StepCost:
    """One step on the way of an image, measured alone."""

    name: str
    seconds: float  # for one image
    by_workers: bool  # or by the loop itself


@dataclass(frozen=True)
class Rates:
    """Images per second: of the feed and of the model, each alone, and of both at work."""

    feed: float
    model: float
    together: float


@dataclass(frozen=True)
class Trial:
    """A setting against the present one: how many times as fast both were together."""

    setting: str
    ratio: Interval
    changes_bits: bool  # it is part of the training, not only of its speed

    @property
    def helps(self) -> bool:
        """By more than chance, and by enough to be noticed."""
        return self.ratio.low > _LEAST_GAIN


@dataclass(frozen=True)
class Hands:
    """Who does the work of the feed."""

    workers: int
    cores: int


@dataclass(frozen=True)
class Diagnosis:
    """All that was measured."""

    steps: tuple[StepCost, ...]
    hands: Hands
    rates: Rates
    trials: tuple[Trial, ...] = ()

    @property
    def limit(self) -> str:
        """The model, a step of the feed, or the cores that both of them need."""
        return limit_of(self.steps, self.hands, self.rates)

    @property
    def advice(self) -> tuple[Trial, ...]:
        """What gained, the most first."""
        gained = [one for one in self.trials if one.helps]
        return tuple(sorted(gained, key=lambda one: -one.ratio.middle))


def limit_of(steps: Sequence[StepCost], hands: Hands, rates: Rates) -> str:
    """The slower one of model and feed; of a feed, the step that takes most of its time."""
    if rates.model <= rates.feed:
        shared = rates.together < _FULL * rates.model and rates.feed < _MANY * rates.model
        return CORES if shared else MODEL
    slowest = max(_slower_side(steps, hands), key=lambda step: step.seconds)
    return _CALLED.get(slowest.name, slowest.name)


def step_rate(step: StepCost, hands: Hands) -> float:
    """Images per second if a feed did nothing else."""
    return _times(step, hands) / max(step.seconds, 1e-12)


def _times(step: StepCost, hands: Hands) -> int:
    """How many work at it at a time. Reading can wait for several answers on one core."""
    if not step.by_workers or not hands.workers:
        return 1
    return hands.workers if step.name == "read" else min(hands.workers, hands.cores)


def _slower_side(steps: Sequence[StepCost], hands: Hands) -> list[StepCost]:
    """The steps of the workers or those of the loop; without workers the loop does all."""
    sides = [[step for step in steps if step.by_workers is by] for by in (True, False)]
    if not hands.workers or not all(sides):
        return list(steps)
    return max(sides, key=lambda side: sum(1 / step_rate(step, hands) for step in side))


def diagnosis_as_json(found: Diagnosis) -> dict[str, Any]:
    """The shape is stable."""
    return {
        "steps": [
            {
                "name": step.name,
                "seconds_per_image": step.seconds,
                "images_per_second": step_rate(step, found.hands),
                "by_workers": step.by_workers,
            }
            for step in found.steps
        ],
        "workers": found.hands.workers,
        "cores": found.hands.cores,
        "feed_images_per_second": found.rates.feed,
        "model_images_per_second": found.rates.model,
        "together_images_per_second": found.rates.together,
        "limit": found.limit,
        "trials": [_trial_as_json(one) for one in found.trials],
        "advice": [one.setting for one in found.advice],
    }


def _trial_as_json(trial: Trial) -> dict[str, Any]:
    return {
        "setting": trial.setting,
        "ratio": trial.ratio.middle,
        "low": trial.ratio.low,
        "high": trial.ratio.high,
        "helps": trial.helps,
        "changes_bits": trial.changes_bits,
    }


def diagnosis_lines(found: Diagnosis) -> list[str]:
    """For people: the costs, the rates, the verdict, and what was tried."""
    return [*_costs(found), "", *_verdict(found), *_tried(found)]


def _costs(found: Diagnosis) -> Iterator[str]:
    workers, cores = found.hands.workers, found.hands.cores
    who = f"{workers} worker{'s' * (workers != 1)} on {cores} core{'s' * (cores != 1)}"
    yield f"{'step':<16}{'µs an image':>12}{'images/s':>12}   {who}"
    for step in found.steps:
        place = "" if step.by_workers else "   in the loop"
        rate = step_rate(step, found.hands)
        yield f"{step.name:<16}{1e6 * step.seconds:>12,.1f}{rate:>12,.0f}{place}"
    rates = found.rates
    named = {"feed alone": rates.feed, "model alone": rates.model, "together": rates.together}
    for name, rate in named.items():
        yield f"{name:<28}{rate:>12,.0f}"


def _verdict(found: Diagnosis) -> Iterator[str]:
    rates, limit = found.rates, found.limit
    feed, model = speed_text(rates.feed), speed_text(rates.model)
    if limit == MODEL:
        yield f"the model limits: it takes {model}, and the feed could bring {feed}"
        yield "no setting of the feed would make this training faster"
    elif limit == CORES:
        yield f"the cores limit: the model alone takes {model}, the feed alone brings {feed},"
        yield f"but together they come to {speed_text(rates.together)}"
    else:
        yield f"the feed limits, most of all by {limit} ({percent(_share(found))} of its time):"
        yield f"it brings {feed}, and the model could take {model}"


def _share(found: Diagnosis) -> float:
    side = _slower_side(found.steps, found.hands)
    return max(step.seconds for step in side) / sum(step.seconds for step in side)


def _tried(found: Diagnosis) -> Iterator[str]:
    if not found.trials:
        return
    wide = max(len(one.setting) for one in found.trials)
    yield ""
    yield f"{'tried':<{wide}}  times as fast, with its 95 % interval"
    for one in found.trials:
        ratio = f"{one.ratio.middle:.2f}  ({one.ratio.low:.2f} … {one.ratio.high:.2f})"
        yield f"{one.setting:<{wide}}  {ratio}  {'helps' if one.helps else 'no gain'}"
    yield ""
    if not found.advice:
        yield "none of these settings makes this training faster here"
    for one in found.advice:
        bits = "; it is part of the training: for a new run" if one.changes_bits else ""
        yield f"use {one.setting}: {percent(one.ratio.middle - 1)} faster{bits}"
