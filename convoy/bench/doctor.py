"""Find what limits the speed of training (data steps, model or cores) and which settings help."""

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
    StepCost,
    TimedFeed,
    simulate_model,
    train_with_zero_lr,
)
from convoy.config.resolve import inactive_options
from convoy.config.schema import COMMAND_LINE, RunConfig, Setting, option_table
from convoy.data.feeds import MAX_WORKERS, make_synthetic_feed, num_workers
from convoy.launch.world import World
from convoy.machine import usable_core_count
from convoy.report.format import format_percent, format_throughput
from convoy.run.build import build
from convoy.run.open_feed import OpenFeed, feed_from_source, open_feed
from convoy.run.process import join_run
from convoy.text import pluralize

_BOOTSTRAP_SAMPLES = 2000
_TAIL_SAMPLES = _BOOTSTRAP_SAMPLES // 40  # on each side of the 95 % interval


@dataclass(frozen=True)
class Interval:
    """A median with its 95 % confidence interval."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f}  ({self.low:.2f} … {self.high:.2f})"


def bootstrap_interval(values: Sequence[float]) -> Interval:
    """Bootstrap with a fixed seed, so that equal values give equal bounds."""
    rng = random.Random(0)
    medians = sorted(median(rng.choices(values, k=len(values))) for _ in range(_BOOTSTRAP_SAMPLES))
    return Interval(median(values), medians[_TAIL_SAMPLES], medians[-_TAIL_SAMPLES - 1])


MODEL, CORES = "model", "cores"
_BOTTLENECK_NAMES = {"read": "disk"}  # the resource that a limiting step lacks
_MIN_UTILIZATION = 0.9  # a model below this share of its rate alone waits for images
# A feed this many times faster than the model uses too little of the cores to matter.
_NEGLIGIBLE_FEED_FACTOR = 10
_MIN_SPEEDUP = 1.02  # a smaller speedup does not matter


@dataclass(frozen=True)
class Trial:
    """The speedup of one changed setting over the current settings."""

    setting: str
    speedup: Interval
    affects_weights: bool  # changes the training results, not only the speed

    @property
    def helps(self) -> bool:
        """Whether the speedup is significant and large enough to matter."""
        return self.speedup.low > _MIN_SPEEDUP

    def as_json(self) -> dict[str, Any]:
        return {
            "setting": self.setting,
            "ratio": self.speedup.median,
            "low": self.speedup.low,
            "high": self.speedup.high,
            "helps": self.helps,
            "changes_bits": self.affects_weights,
        }


@dataclass(frozen=True)
class Diagnosis:
    """All measurements. Rates are images per second."""

    steps: tuple[StepCost, ...]
    workers: int
    cores: int
    feed_rate: float  # alone
    model_rate: float  # alone
    fed_model_rate: float  # the model with the feed
    trials: tuple[Trial, ...] = ()

    @property
    def bottleneck(self) -> str:
        """The bottleneck: the model, the cores that model and feed share, or the slowest step."""
        if self.model_rate <= self.feed_rate:
            waits = self.fed_model_rate < _MIN_UTILIZATION * self.model_rate
            is_feed_busy = self.feed_rate < _NEGLIGIBLE_FEED_FACTOR * self.model_rate
            return CORES if waits and is_feed_busy else MODEL
        slowest = max(self._slower_steps(), key=lambda step: step.seconds)
        return _BOTTLENECK_NAMES.get(slowest.name, slowest.name)

    @property
    def bottleneck_share(self) -> float:
        """The share of the limiting step in the time of the feed."""
        seconds = [step.seconds for step in self._slower_steps()]
        return max(seconds) / sum(seconds)

    @property
    def advice(self) -> tuple[Trial, ...]:
        """The trials that helped, the best first."""
        helpful = [trial for trial in self.trials if trial.helps]
        return tuple(sorted(helpful, key=lambda trial: -trial.speedup.median))

    def step_rate(self, step: StepCost) -> float:
        """Images per second if the feed only did this step. Reads overlap on a core."""
        parallel = self.workers if step.name == "read" else min(self.workers, self.cores)
        if not step.by_workers or not self.workers:
            parallel = 1
        return parallel / max(step.seconds, 1e-12)

    def _slower_steps(self) -> list[StepCost]:
        """The steps of the workers or of the loop, whichever is slower; without workers, all."""
        sides = [[step for step in self.steps if step.by_workers is by] for by in (True, False)]
        if not self.workers or not all(sides):
            return list(self.steps)
        return max(sides, key=lambda side: sum(1 / self.step_rate(step) for step in side))

    def as_json(self) -> dict[str, Any]:
        """The structure is stable."""
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
            "together_images_per_second": self.fed_model_rate,
            "limit": self.bottleneck,
            "trials": [trial.as_json() for trial in self.trials],
            "advice": [trial.setting for trial in self.advice],
        }

    def lines(self) -> list[str]:
        """The report: the costs, the rates, the bottleneck, and the trials."""
        return [*self._step_lines(), "", *self._bottleneck_lines(), *self._trial_lines()]

    def _step_lines(self) -> Iterator[str]:
        workers = f"{pluralize(self.workers, 'worker')} on {pluralize(self.cores, 'core')}"
        yield f"{'step':<16}{'µs/image':>12}{'images/s':>12}   {workers}"
        for step in self.steps:
            location = "" if step.by_workers else "   in the training loop"
            micros, rate = 1e6 * step.seconds, self.step_rate(step)
            yield f"{step.name:<16}{micros:>12,.1f}{rate:>12,.0f}{location}"
        yield f"{'data loader alone':<28}{self.feed_rate:>12,.0f}"
        yield f"{'model alone':<28}{self.model_rate:>12,.0f}"
        yield f"{'model with data loader':<28}{self.fed_model_rate:>12,.0f}"

    def _bottleneck_lines(self) -> Iterator[str]:
        feed, model = format_throughput(self.feed_rate), format_throughput(self.model_rate)
        if self.bottleneck == MODEL:
            yield f"bottleneck: the model. It processes {model}, and the data loader could deliver"
            yield f"{feed}. No data loading option would make this run faster"
        elif self.bottleneck == CORES:
            yield f"bottleneck: CPU cores. The model alone processes {model}, the data loader alone"
            both = format_throughput(self.fed_model_rate)
            yield f"delivers {feed}, but together they reach {both}"
        else:
            share = format_percent(self.bottleneck_share)
            yield f"bottleneck: data loading, mostly {self.bottleneck} ({share} of its time)."
            yield f"It delivers {feed}, and the model could process {model}"

    def _trial_lines(self) -> Iterator[str]:
        if not self.trials:
            return
        width = max(len(trial.setting) for trial in self.trials)
        yield ""
        yield f"{'tried':<{width}}  speedup, with its 95 % confidence interval"
        for trial in self.trials:
            result = "helps" if trial.helps else "no gain"
            yield f"{trial.setting:<{width}}  {trial.speedup}  {result}"
        yield ""
        if not self.advice:
            yield "none of these settings makes this run faster on this machine"
        for trial in self.advice:
            speedup = f"{format_percent(trial.speedup.median - 1)} faster"
            if trial.affects_weights:
                speedup += "; it changes the results, so use it for a new run"
            yield f"use {trial.setting}: {speedup}"


_MAX_PREFETCH_DEPTH = 255


@dataclass(frozen=True)
class Candidate:
    """One option with another value."""

    option: str
    value: Any

    @property
    def flag_text(self) -> str:
        """The command-line flag with its value, under the name that help shows."""
        row = option_table()[self.option]
        return " ".join(row.to_cli_args(self.value)).replace(row.flag, row.shown_flag)

    @property
    def affects_weights(self) -> bool:
        """Whether it changes the training results."""
        return not option_table()[self.option].changeable_on_resume

    @property
    def needs_repeated_samples(self) -> bool:
        """Whether it only affects samples that are read again."""
        return self.option == "dataset_cache"

    def is_applicable(self, config: RunConfig) -> bool:
        """Whether it is available and has an effect on this run."""
        setting = {self.option: Setting(self.value, COMMAND_LINE)}
        ready = option_table()[self.option].is_available(self.value)
        return ready and not inactive_options(self.apply_to(config), setting)

    def apply_to(self, config: RunConfig) -> RunConfig:
        """Return the same run with this value."""
        section = option_table()[self.option].section
        changed = replace(vars(config)[section], **{self.option: self.value})
        return replace(config, **{section: changed})


def candidates(config: RunConfig, cores: int) -> list[Candidate]:
    """Return the settings that differ from those of the run and affect its speed."""
    return [
        candidate for candidate in _all_candidates(config, cores) if candidate.is_applicable(config)
    ]


def _all_candidates(config: RunConfig, cores: int) -> Iterator[Candidate]:
    data, micro = config.data, config.batch.micro_batch_size
    workers = num_workers(data)
    for count in sorted({0, 1, cores, 2 * cores, min(4 * max(workers, 1), MAX_WORKERS)}):
        if count != workers:
            yield Candidate("dataloader_worker", count)
    if data.prefetch_depth < _MAX_PREFETCH_DEPTH:
        yield Candidate("prefetch_depth", min(2 * data.prefetch_depth, _MAX_PREFETCH_DEPTH))
    rebatch_size = max(1, micro // (2 * max(workers, 1)))
    if workers > 1 and rebatch_size != (data.dataloader_rebatch_size or micro):
        yield Candidate("dataloader_rebatch_size", rebatch_size)
    kind = "threads" if data.dataloader_kind == "processes" else "processes"
    yield Candidate("dataloader_kind", kind)
    if not data.dataset_cache:
        yield Candidate("dataset_cache", True)
    if data.normalization_location == "host" and not data.eight_bit_io:
        yield Candidate("normalization_location", "device")
    if data.normalization_location == "none" and not data.eight_bit_io:
        yield Candidate("eight_bit_io", True)
    yield Candidate("hostside_image_mixing", not config.mixing.hostside_image_mixing)


TimeFeed = Callable[[OpenFeed], float]  # the seconds a feed takes for the same work


def run_trials(
    opened: OpenFeed, selected: Sequence[Candidate], seconds: TimeFeed, rounds: int
) -> tuple[Trial, ...]:
    """Try each candidate; measure those that help again, since one of many may win by chance."""
    trials = _measure_candidates(opened, selected, seconds, rounds)
    for candidate in [candidate for candidate, trial in trials.items() if trial.helps]:
        trials |= _measure_candidates(opened, [candidate], seconds, rounds)
    return tuple(trials.values())


def _measure_candidates(
    opened: OpenFeed, selected: Sequence[Candidate], seconds: TimeFeed, rounds: int
) -> dict[Candidate, Trial]:
    """Measure in rounds, so that other load on the machine affects all candidates equally."""
    feeds = [opened]
    for candidate in selected:
        config = candidate.apply_to(opened.plan.config)
        fresh = candidate.needs_repeated_samples
        feeds.append(
            open_feed(config) if fresh else feed_from_source(config, opened.source, opened.device)
        )
    measured: list[list[float]] = [[] for _ in feeds]
    for number in range(rounds + 1):
        # Alternate the direction, so that no feed is always measured last.
        for position in range(len(feeds))[:: -1 if number % 2 else 1]:
            measured[position].append(seconds(feeds[position]))
    baseline, *others = [times[1:] for times in measured]  # the first round is the warmup
    trials: dict[Candidate, Trial] = {}
    for candidate, times in zip(selected, others, strict=True):
        speedups = [old / new for old, new in zip(baseline, times, strict=True)]
        interval = bootstrap_interval(speedups)
        trials[candidate] = Trial(candidate.flag_text, interval, candidate.affects_weights)
    return trials


@dataclass(frozen=True)
class TimeBudget:
    """The time a diagnosis may take, in seconds."""

    seconds_per_rate: float = 1.0  # for the steps, and for each rate
    seconds_per_measurement: float = 0.25  # for each measurement of a trial
    seconds_for_trials: float = 60.0  # a slow run gets fewer rounds
    rounds: int = 7  # of trials; 0 for no trials


def diagnose(
    opened: OpenFeed,
    model_rate: float | None,
    notify: Callable[[str], None],
    budget: TimeBudget = TimeBudget(),
) -> Diagnosis:
    """Diagnose a feed; `model_rate` is measured if it is None."""
    timer, cores = FeedTimer(opened), usable_core_count()
    steps = timer.steps(budget.seconds_per_rate)
    with _open_consumer(opened, model_rate) as model:
        rates = _measure_rates(opened, model, model_rate, timer, budget.seconds_per_rate)
        diagnosis = Diagnosis(steps, opened.options.workers, cores, *rates)
        if diagnosis.bottleneck == MODEL or not budget.rounds:
            return diagnosis
        return replace(diagnosis, trials=_run_all_trials(opened, model, timer, notify, budget))


def _run_all_trials(
    opened: OpenFeed,
    model: Consumer,
    timer: FeedTimer,
    notify: Callable[[str], None],
    budget: TimeBudget,
) -> tuple[Trial, ...]:
    """Try every setting that could help, in as many rounds as the budget allows."""
    selected = candidates(opened.plan.config, usable_core_count())
    timed = TimedFeed(opened.feed, opened.options, model)
    updates = timer.calibrate_updates(timed, budget.seconds_per_measurement)
    round_seconds = (len(selected) + 1) * timer.seconds(timed, updates)
    rounds = max(3, min(budget.rounds, int(budget.seconds_for_trials / round_seconds)))
    notify(
        f"trying {pluralize(len(selected), 'setting')}, about {(rounds + 1) * round_seconds:.0f} s"
    )

    def seconds(same_samples: bool, feed: OpenFeed) -> float:
        return timer.seconds(TimedFeed(feed.feed, feed.options, model), updates, same_samples)

    trials: tuple[Trial, ...] = ()
    for repeats in (False, True):
        group = [candidate for candidate in selected if candidate.needs_repeated_samples is repeats]
        trials += run_trials(opened, group, partial(seconds, repeats), rounds)
    return trials


def _measure_rates(
    opened: OpenFeed,
    model: Consumer,
    model_rate: float | None,
    timer: FeedTimer,
    seconds: float,
) -> tuple[float, float, float]:
    """Measure the rates of feed, model and both; a simulated model has the given rate."""
    feed_only = TimedFeed(opened.feed, opened.options)
    fed_model = feed_only._replace(consumer=model)
    timed_feeds = [feed_only, fed_model]
    if model_rate is None:
        synthetic = make_synthetic_feed(opened.plan, opened.device)
        timed_feeds.append(fed_model._replace(feed=synthetic))
    feed_rate, fed_model_rate, *measured = timer.rates(timed_feeds, seconds)
    return feed_rate, model_rate if model_rate is not None else measured[0], fed_model_rate


@contextmanager
def _open_consumer(opened: OpenFeed, rate: float | None) -> Iterator[Consumer]:
    """Open a simulated model if its rate is given, else the network of the run."""
    if rate is not None:
        yield partial(simulate_model, rate)
        return
    with (
        TemporaryDirectory(prefix="convoy-doctor-") as scratch,
        join_run(World.single_process(), opened.plan) as context,
    ):
        parts = build(context, opened.source, None, Path(scratch))
        yield partial(train_with_zero_lr, parts.trainer)
