"""What limits the speed of a training: its steps, its model, its cores; and which settings help."""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from convoy.bench.feed import (
    Consumer,
    FeedTimer,
    ModelConsumer,
    StepCost,
    Timed,
    wait_for_images,
)
from convoy.config.command_line import as_flags
from convoy.config.schema import RunConfig, option_table
from convoy.config.settings import COMMAND_LINE, Setting
from convoy.config.support import inactive_options
from convoy.data.feeds import MAX_WORKERS, synthetic_feed, workers_of
from convoy.launch.world import World
from convoy.machine import available_cores
from convoy.report.format import percent, speed_text
from convoy.run.open_feed import OpenFeed, feed_of, open_feed
from convoy.run.process import join_run

_DRAWS = 2000
_OUTSIDE = _DRAWS // 40  # on either side of 95 %


@dataclass(frozen=True)
class Interval:
    """A median between the bounds of its 95 % interval."""

    middle: float
    low: float
    high: float


def interval_of(values: Sequence[float]) -> Interval:
    """By bootstrap with a fixed seed, so that equal values give equal bounds."""
    rng = random.Random(0)
    medians = sorted(median(rng.choices(values, k=len(values))) for _ in range(_DRAWS))
    return Interval(median(values), medians[_OUTSIDE], medians[-_OUTSIDE - 1])


MODEL, CORES = "model", "cores"
_RESOURCES = {"read": "disk"}  # what a step that limits lacks
_FULL = 0.9  # of its own rate: a model that gets less than this waits for its images
_MANY = 10  # times as fast as the model: such a feed takes too little of the cores to matter
_LEAST_GAIN = 1.02  # a smaller one would not be noticed


@dataclass(frozen=True)
class Trial:
    """A setting against the present one: how many times as fast the training was."""

    setting: str
    ratio: Interval
    changes_bits: bool  # it is part of the training, not only of its speed

    @property
    def helps(self) -> bool:
        """By more than chance, and by enough to be noticed."""
        return self.ratio.low > _LEAST_GAIN

    def as_json(self) -> dict[str, Any]:
        return {
            "setting": self.setting,
            "ratio": self.ratio.middle,
            "low": self.ratio.low,
            "high": self.ratio.high,
            "helps": self.helps,
            "changes_bits": self.changes_bits,
        }


@dataclass(frozen=True)
class Diagnosis:
    """All that was measured. Rates are images per second."""

    steps: tuple[StepCost, ...]
    workers: int
    cores: int
    feed_rate: float  # alone
    model_rate: float  # alone
    joint_rate: float  # the model, fed by the feed
    trials: tuple[Trial, ...] = ()

    @property
    def limit(self) -> str:
        """The model, the cores that model and feed share, or the step that takes most time."""
        if self.model_rate <= self.feed_rate:
            waits = self.joint_rate < _FULL * self.model_rate
            return CORES if waits and self.feed_rate < _MANY * self.model_rate else MODEL
        slowest = max(self._slower_side(), key=lambda step: step.seconds)
        return _RESOURCES.get(slowest.name, slowest.name)

    @property
    def share_of_limit(self) -> float:
        """Of the time of the feed, that of the step that limits it."""
        seconds = [step.seconds for step in self._slower_side()]
        return max(seconds) / sum(seconds)

    @property
    def advice(self) -> tuple[Trial, ...]:
        """What helped, the most first."""
        helpful = [trial for trial in self.trials if trial.helps]
        return tuple(sorted(helpful, key=lambda trial: -trial.ratio.middle))

    def step_rate(self, step: StepCost) -> float:
        """Images per second if the feed did nothing else. Reads can wait on one core together."""
        at_once = self.workers if step.name == "read" else min(self.workers, self.cores)
        if not step.by_workers or not self.workers:
            at_once = 1
        return at_once / max(step.seconds, 1e-12)

    def _slower_side(self) -> list[StepCost]:
        """The steps of the workers or those of the loop; without workers the loop does all."""
        sides = [[step for step in self.steps if step.by_workers is by] for by in (True, False)]
        if not self.workers or not all(sides):
            return list(self.steps)
        return max(sides, key=lambda side: sum(1 / self.step_rate(step) for step in side))

    def as_json(self) -> dict[str, Any]:
        """The shape is stable."""
        return {
            "steps": [
                {
                    "name": step.name,
                    "seconds_per_image": step.seconds,
                    "images_per_second": self.step_rate(step),
                    "by_workers": step.by_workers,
                }
                for step in self.steps
            ],
            "workers": self.workers,
            "cores": self.cores,
            "feed_images_per_second": self.feed_rate,
            "model_images_per_second": self.model_rate,
            "together_images_per_second": self.joint_rate,
            "limit": self.limit,
            "trials": [trial.as_json() for trial in self.trials],
            "advice": [trial.setting for trial in self.advice],
        }

    def lines(self) -> list[str]:
        """For people: the costs, the rates, the limit, and what was tried."""
        return [*self._costs(), "", *self._verdict(), *self._tried()]

    def _costs(self) -> Iterator[str]:
        workers, cores = self.workers, self.cores
        who = f"{workers} worker{'s' * (workers != 1)} on {cores} core{'s' * (cores != 1)}"
        yield f"{'step':<16}{'µs an image':>12}{'images/s':>12}   {who}"
        for step in self.steps:
            where = "" if step.by_workers else "   in the loop"
            micros, rate = 1e6 * step.seconds, self.step_rate(step)
            yield f"{step.name:<16}{micros:>12,.1f}{rate:>12,.0f}{where}"
        yield f"{'feed alone':<28}{self.feed_rate:>12,.0f}"
        yield f"{'model alone':<28}{self.model_rate:>12,.0f}"
        yield f"{'together':<28}{self.joint_rate:>12,.0f}"

    def _verdict(self) -> Iterator[str]:
        feed, model = speed_text(self.feed_rate), speed_text(self.model_rate)
        if self.limit == MODEL:
            yield f"the model limits: it takes {model}, and the feed could bring {feed}"
            yield "no setting of the feed would make this training faster"
        elif self.limit == CORES:
            yield f"the cores limit: the model alone takes {model}, the feed alone brings {feed},"
            yield f"but together they come to {speed_text(self.joint_rate)}"
        else:
            share = percent(self.share_of_limit)
            yield f"the feed limits, most of all by {self.limit} ({share} of its time):"
            yield f"it brings {feed}, and the model could take {model}"

    def _tried(self) -> Iterator[str]:
        if not self.trials:
            return
        wide = max(len(trial.setting) for trial in self.trials)
        yield ""
        yield f"{'tried':<{wide}}  times as fast, with its 95 % interval"
        for trial in self.trials:
            ratio = f"{trial.ratio.middle:.2f}  ({trial.ratio.low:.2f} … {trial.ratio.high:.2f})"
            yield f"{trial.setting:<{wide}}  {ratio}  {'helps' if trial.helps else 'no gain'}"
        yield ""
        if not self.advice:
            yield "none of these settings makes this training faster here"
        for trial in self.advice:
            bits = "; it is part of the training: for a new run" if trial.changes_bits else ""
            yield f"use {trial.setting}: {percent(trial.ratio.middle - 1)} faster{bits}"


_MAX_DEPTH = 255


@dataclass(frozen=True)
class Candidate:
    """One option with another value."""

    option: str
    value: Any

    @property
    def words(self) -> str:
        """As they would be typed."""
        return " ".join(as_flags(option_table()[self.option], self.value))

    @property
    def changes_bits(self) -> bool:
        """Whether it is part of the training."""
        return not option_table()[self.option].declared.free

    @property
    def needs_same_samples(self) -> bool:
        """Whether it has an effect only on samples that come back."""
        return self.option == "dataset_cache"

    def can_help(self, config: RunConfig) -> bool:
        """Whether a run can have it, and it has an effect."""
        setting = {self.option: Setting(self.value, COMMAND_LINE)}
        ready = option_table()[self.option].is_ready(self.value)
        return ready and not inactive_options(self.of(config), setting)

    def of(self, config: RunConfig) -> RunConfig:
        """The same run with it."""
        section = option_table()[self.option].section
        changed = replace(vars(config)[section], **{self.option: self.value})
        return replace(config, **{section: changed})


def candidates(config: RunConfig, cores: int) -> list[Candidate]:
    """Settings that the run does not have and that have an effect on it."""
    return [candidate for candidate in _alternatives(config, cores) if candidate.can_help(config)]


def _alternatives(config: RunConfig, cores: int) -> Iterator[Candidate]:
    data, micro = config.data, config.batch.micro_batch_size
    workers = workers_of(data)
    for count in sorted({0, 1, cores, 2 * cores, min(4 * max(workers, 1), MAX_WORKERS)}):
        if count != workers:
            yield Candidate("dataloader_worker", count)
    if data.prefetch_depth < _MAX_DEPTH:
        yield Candidate("prefetch_depth", min(2 * data.prefetch_depth, _MAX_DEPTH))
    piece = max(1, micro // (2 * max(workers, 1)))
    if workers > 1 and piece != (data.dataloader_rebatch_size or micro):
        yield Candidate("dataloader_rebatch_size", piece)
    other = "threads" if data.dataloader_kind == "processes" else "processes"
    yield Candidate("dataloader_kind", other)
    if not data.dataset_cache:
        yield Candidate("dataset_cache", True)
    if data.normalization_location == "host" and not data.eight_bit_io:
        yield Candidate("normalization_location", "device")
    if data.normalization_location == "none" and not data.eight_bit_io:
        yield Candidate("eight_bit_io", True)
    yield Candidate("hostside_image_mixing", not config.mixing.hostside_image_mixing)


Seconds = Callable[[OpenFeed], float]  # how long a feed takes for the same work


def try_settings(
    opened: OpenFeed, chosen: Sequence[Candidate], seconds: Seconds, rounds: int
) -> tuple[Trial, ...]:
    """What seems to help is measured again, and only that counts: one of many is lucky."""
    trials = dict(zip(chosen, _compared(opened, chosen, seconds, rounds), strict=True))
    lucky = [candidate for candidate, trial in trials.items() if trial.helps]
    again = {candidate: _compared(opened, [candidate], seconds, rounds)[0] for candidate in lucky}
    return tuple((trials | again).values())


def _compared(
    opened: OpenFeed, chosen: Sequence[Candidate], seconds: Seconds, rounds: int
) -> list[Trial]:
    """Round by round, so that other load on the machine meets all of them alike."""
    feeds = [opened]
    for candidate in chosen:
        config = candidate.of(opened.plan.config)
        fresh = candidate.needs_same_samples
        feeds.append(open_feed(config) if fresh else feed_of(config, opened.source, opened.device))
    spent: list[list[float]] = [[] for _ in feeds]
    for number in range(rounds + 1):
        # There and back again: what was measured late is early in the next round.
        for position in range(len(feeds))[:: -1 if number % 2 else 1]:
            spent[position].append(seconds(feeds[position]))
    present, *others = [times[1:] for times in spent]  # the first round is for warming up
    ratios = [[now / time for now, time in zip(present, times, strict=True)] for times in others]
    return [
        Trial(candidate.words, interval_of(values), candidate.changes_bits)
        for candidate, values in zip(chosen, ratios, strict=True)
    ]


@dataclass(frozen=True)
class TimeBudget:
    """How long a diagnosis may take, in seconds."""

    each: float = 1.0  # for the steps, and for each rate
    trial: float = 0.25  # for each measurement of a trial
    trials: float = 60.0  # for all trials; a slow training is tried less often
    rounds: int = 7  # of trials; 0: none


_DEFAULT = TimeBudget()


def diagnose(
    opened: OpenFeed,
    model_rate: float | None,
    notice: Callable[[str], None],
    budget: TimeBudget = _DEFAULT,
) -> Diagnosis:
    """The rate of the model is measured if it is not given."""
    timer, cores = FeedTimer(opened), len(available_cores())
    steps = timer.steps(budget.each)
    with _model(opened, model_rate) as model:
        rates = _rates(opened, model, model_rate, timer, budget.each)
        found = Diagnosis(steps, opened.options.workers, cores, *rates)
        if found.limit == MODEL or not budget.rounds:
            return found
        return replace(found, trials=_trials(opened, model, timer, notice, budget))


def _trials(
    opened: OpenFeed,
    model: Consumer,
    timer: FeedTimer,
    notice: Callable[[str], None],
    budget: TimeBudget,
) -> tuple[Trial, ...]:
    """Every setting that could help, in as many rounds as there is time for."""
    chosen = candidates(opened.plan.config, len(available_cores()))
    timed = Timed(opened.feed, opened.options, model)
    updates = timer.updates_in(timed, budget.trial)
    each = (len(chosen) + 1) * timer.seconds(timed, updates)
    rounds = max(3, min(budget.rounds, int(budget.trials / each)))
    notice(f"trying {len(chosen)} settings, about {(rounds + 1) * each:.0f} s")
    trials: tuple[Trial, ...] = ()
    for same_samples in (False, True):

        def seconds(other: OpenFeed, same_samples: bool = same_samples) -> float:
            return timer.seconds(Timed(other.feed, other.options, model), updates, same_samples)

        some = [one for one in chosen if one.needs_same_samples is same_samples]
        trials += try_settings(opened, some, seconds, rounds)
    return trials


def _rates(
    opened: OpenFeed,
    model: Consumer,
    model_rate: float | None,
    timer: FeedTimer,
    seconds: float,
) -> tuple[float, float, float]:
    """Of the feed, the model and both; a model that only waits has the rate it was given."""
    alone = Timed(opened.feed, opened.options)
    together = alone._replace(consumer=model)
    if model_rate is not None:
        feed, joint = timer.rates([alone, together], seconds)
        return feed, model_rate, joint
    resident = together._replace(feed=synthetic_feed(opened.plan, opened.device))
    feed, own, joint = timer.rates([alone, resident, together], seconds)
    return feed, own, joint


@contextmanager
def _model(opened: OpenFeed, rate: float | None) -> Iterator[Consumer]:
    """One that only waits, or the network of the run."""
    if rate is not None:
        yield partial(wait_for_images, rate)
        return
    with (
        TemporaryDirectory(prefix="convoy-doctor-") as scratch,
        join_run(World.alone(), opened.plan) as context,
    ):
        yield ModelConsumer(opened, context, Path(scratch))
