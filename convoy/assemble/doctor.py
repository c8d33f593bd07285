"""The doctor of a feed: measures every step, the model, both together, and what would help."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from convoy.assemble.consumers import Consumer, Emptying, Waiting
from convoy.assemble.open_feed import OpenFeed
from convoy.assemble.post import posted
from convoy.assemble.stopwatch import Fed, Stopwatch
from convoy.assemble.trials import Trials, candidates
from convoy.data.feed import SyntheticFeed
from convoy.launch.cores import available_cores
from convoy.launch.world import World
from convoy.plan.network import COLORS
from convoy.report.diagnosis import MODEL, Diagnosis, Hands, Rates, Trial

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Patience:
    """How long the doctor may take."""

    seconds: float = 1.0  # for the steps, and for each rate
    trial_seconds: float = 0.25  # for each measurement of a trial
    rounds: int = 7  # of trials; 0: none
    all_trials: float = 60.0  # seconds; a slow training is tried less often


PATIENT = Patience()


def diagnose(
    opened: OpenFeed, model_rate: float | None, tell: Tell, patience: Patience = PATIENT
) -> Diagnosis:
    """The rate of the model is measured if nobody says it."""
    watch, cores = Stopwatch(opened), len(available_cores())
    steps = watch.steps(opened, patience.seconds)
    with _model(opened, model_rate) as model:
        rates = _rates(opened, model, model_rate, patience.seconds, watch)
        found = Diagnosis(steps, Hands(opened.hands.workers, cores), rates)
        if found.limit == MODEL or not patience.rounds:
            return found
        trials = _tried(opened, model, watch, tell, patience)
    return replace(found, trials=trials)


def _tried(
    opened: OpenFeed, model: Consumer, watch: Stopwatch, tell: Tell, patience: Patience
) -> tuple[Trial, ...]:
    """Every setting that could help, each for so long that all together stay bearable."""
    chosen = candidates(opened.plan.config, len(available_cores()))
    fed = Fed(opened.feed, opened.hands, model)
    updates = watch.updates_in(fed, patience.trial_seconds)
    each = (len(chosen) + 1) * watch.seconds(fed, updates)
    rounds = max(3, min(patience.rounds, int(patience.all_trials / each)))
    tell(f"trying {len(chosen)} settings, about {(rounds + 1) * each:.0f} s")

    def fresh(one: OpenFeed) -> float:
        return watch.seconds(Fed(one.feed, one.hands, model), updates)

    def again(one: OpenFeed) -> float:
        return watch.seconds_again(Fed(one.feed, one.hands, model), updates)

    kept = [one for one in chosen if one.keeps_samples]
    others = [one for one in chosen if not one.keeps_samples]
    return (*Trials(opened, fresh, rounds)(others), *Trials(opened, again, rounds)(kept))


def _rates(
    opened: OpenFeed,
    model: Consumer,
    model_rate: float | None,
    seconds: float,
    watch: Stopwatch,
) -> Rates:
    """A model that only waits is as fast as it was told to be."""
    plan, empty = opened.plan, Emptying(opened.plan.batch.micro_batches)
    alone = Fed(opened.feed, opened.hands, empty)
    together = alone._replace(consumer=model)
    if model_rate is not None:
        feed, both = watch.rates([alone, together], seconds)
        return Rates(feed, model_rate, both)
    size = plan.network.image_size
    shape = (plan.batch.micro_batch_size, COLORS, size, size)
    still = SyntheticFeed(shape, plan.network.classes, opened.device)
    feed, own, both = watch.rates([alone, together._replace(feed=still), together], seconds)
    return Rates(feed, own, both)


@contextmanager
def _model(opened: OpenFeed, rate: float | None) -> Iterator[Consumer]:
    """One that only waits, or the network of the run."""
    if rate is not None:
        yield Waiting(opened.plan.batch.micro_batches, rate)
        return
    from convoy.assemble.rehearsal import Rehearsal  # all of training: a stand-in needs none of it

    with (
        TemporaryDirectory(prefix="convoy-doctor-") as scratch,
        posted(World.alone(), opened.plan) as post,
    ):
        yield Rehearsal(post, opened.source, Path(scratch))
