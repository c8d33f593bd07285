"""Validation: of a network in training, of checkpoints on disk, and of a fresh network."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import torch
from torch import Tensor

from convoy.assemble.backends import Answerer, refuse_backend
from convoy.assemble.compiler import compiler_for
from convoy.assemble.feeds import hands_of, tolerance_of, validation_feed
from convoy.assemble.kinds import compute_in, round_weights
from convoy.assemble.machine import choose_device, make_repeatable
from convoy.assemble.network import build_network, whole
from convoy.assemble.sources import open_source
from convoy.checkpoint import reading
from convoy.checkpoint.contents import match
from convoy.checkpoint.digest import weights_sha256
from convoy.config.schema import RunConfig
from convoy.data.feed import Hands, ValidationFeed, Wanted
from convoy.engine.evaluator import Answers, Share, evaluate
from convoy.errors import CheckpointError
from convoy.events import Validated
from convoy.launch.cores import threads_each
from convoy.parallel.council import Single
from convoy.plan.network import plan_network


class Validator:
    """Measures a network on the validation split, as often as it is asked."""

    def __init__(self, answers: Answers, feed: ValidationFeed, hands: Hands, share: Share) -> None:
        self._answers = answers
        self._feed = feed
        self._hands = hands
        self._share = share
        self.batch_seconds: tuple[float, ...] = ()  # of the last time

    def __call__(self, update: int, epoch: float) -> Validated:
        """Every sample once; the network is left as it was. All processes must call it."""
        began = monotonic()
        score = evaluate(self._answers, self._feed, self._hands, self._share, update)
        seconds = monotonic() - began
        self.batch_seconds = score.batch_seconds
        return Validated(
            update,
            epoch,
            score.top1,
            score.top5,
            score.loss,
            score.samples,
            seconds,
            score.samples / seconds,
        )


@dataclass(frozen=True)
class Latency:
    """From the images of a batch on the device to its answers on the host, in milliseconds."""

    mean: float
    p99: float  # as long as this, or shorter, took 99 of 100

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Latency":
        """Of at least one batch."""
        slowest = sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]
        return cls(1000 * sum(seconds) / len(seconds), 1000 * slowest)


@dataclass(frozen=True)
class NetworkScore:
    """The score of one set of weights."""

    path: Path | None  # None: no checkpoint, the weights are fresh
    weights_sha256: str
    validated: Validated
    latency: Latency
    skipped: tuple[str, ...]  # bad records that no score before has told


def validate_checkpoints(
    config: RunConfig, paths: list[Path], times: int = 1
) -> Iterator[NetworkScore | CheckpointError]:
    """Score each checkpoint on the validation split; one that cannot be used hides no other."""
    with _bench(config) as bench:
        for path in paths:
            try:
                contents = reading.load(path)
                match(contents.model, bench.network.slice.named_tensors())
            except CheckpointError as error:
                yield error
                continue
            bench.load(contents.model)
            for _ in range(times):
                yield bench.score(path, contents.update, _epoch(contents.state.get("epoch")))


def validate_fresh(config: RunConfig, times: int = 1) -> Iterator[NetworkScore]:
    """Score the network that a training of this configuration would begin with."""
    with _bench(config) as bench:
        for _ in range(times):
            yield bench.score(None, update=0, epoch=0.0)


@contextmanager
def _bench(config: RunConfig) -> Iterator["_Bench"]:
    """On the asked device, with a compiler where one is needed."""
    device, backend = choose_device(config.device), config.validation.backend
    refuse_backend(backend, device)
    make_repeatable(threads_each(config.device.threads, 1))
    with compiler_for(config.compiler, device) if backend == "compiled" else nullcontext():
        yield _Bench(config, device)


class _Bench:
    """A whole network on one device, and the validation split."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        plan = plan_network(config)
        stages = [whole(plan)]
        built = build_network(plan, stages, config.data.seed, device)
        self._config, self._digest = config, weights_sha256(built.tensors())
        self.network = compute_in(config, built, device, stages)
        round_weights(config, self.network)
        source = open_source(config.data, plan, "validation")
        self.tolerance = tolerance_of(config.data)
        feed = validation_feed(config, source, plan.image_size, device, Wanted(), self.tolerance)
        self._answers = Answerer(plan, self.network, config.validation.backend)
        self._validate = Validator(self._answers, feed, hands_of(config), Share(0, 1, Single()))

    def load(self, model: dict[str, Tensor]) -> None:
        """From now on these are the weights."""
        self._digest = weights_sha256(model)
        self.network.load(model)
        round_weights(self._config, self.network)
        self._answers.take_over()

    def score(self, path: Path | None, update: int, epoch: float) -> NetworkScore:
        """Of the weights as they are now."""
        validated = self._validate(update, epoch)
        latency = Latency.of(self._validate.batch_seconds)
        ledger = self.tolerance.ledger
        skipped = () if ledger is None else tuple(map(str, ledger.untold()))
        return NetworkScore(path, self._digest, validated, latency, skipped)


def _epoch(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
