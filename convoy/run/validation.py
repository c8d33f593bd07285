"""Validation: of a network in training, of checkpoints on disk, and of a fresh network; backends
for inference.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

import torch
from torch import Tensor, nn

from convoy.checkpoint import reading
from convoy.checkpoint.format import match, weights_sha256
from convoy.config.schema import RunConfig
from convoy.data.feeds import ledger_of, loader_options, validation_feed
from convoy.data.loader import LoaderOptions, NeededInputs, ValidationFeed
from convoy.data.sources.open import open_source
from convoy.engine.metrics import Answers, Share, evaluate
from convoy.errors import CheckpointError, ConfigError
from convoy.events import Validated
from convoy.layers.export import OnnxNetwork, as_onnx, need_onnx
from convoy.layers.norms import fold_norms
from convoy.machine import threads_each
from convoy.models.network import COLORS, NetworkPlan, plan_network
from convoy.numerics.precision import FLOAT32
from convoy.optim.ema import ExponentialMovingAverage
from convoy.parallel.control import ControlGroup
from convoy.parallel.inference import InferencePipeline
from convoy.parallel.slice import Slice
from convoy.run.compile import Compiled, compiler_for
from convoy.run.network import Network, build_network, whole
from convoy.run.parameter_groups import compute_in, round_weights
from convoy.run.process import choose_device, make_repeatable


class Answerer:
    """Answers as the network would. Its weights are copies, taken over when that is asked for."""

    def __init__(self, plan: NetworkPlan, network: Network, backend: str) -> None:
        self._plan = plan
        self._network = network
        self._backend = backend
        self._slice = self._folded()
        self._stage = self._runnable()

    def run(self, batches: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        return InferencePipeline([self._stage]).run(batches)

    @torch.no_grad()
    def take_over(self) -> None:
        """The network has other weights now."""
        fresh = self._folded().named_tensors()
        for name, tensor in self._slice.named_tensors().items():
            tensor.copy_(fresh[name])
        if not isinstance(self._stage, Slice | Compiled):  # those see the weights themselves
            self._stage = self._runnable()

    def _runnable(self) -> nn.Module:
        if self._backend == "compiled":
            return Compiled(self._slice)
        if self._backend == "onnxruntime":
            example = torch.zeros(2, COLORS, self._plan.image_size, self._plan.image_size)
            return OnnxNetwork(as_onnx(self._slice, example), torch.get_num_threads())
        return self._slice

    def _folded(self) -> Slice:
        """In 16 bits norms round what they are given, so they stay apart."""
        network = self._network.slice
        modules = dict(network.layers.items())
        if network.arithmetic.number == FLOAT32 or self._backend == "onnxruntime":
            return Slice(*fold_norms(self._plan.layers, modules))
        layers = Slice(self._plan.layers, modules)
        layers.compute_in(network.arithmetic, takes_images=True)
        return layers


def refuse_backend(backend: str, device: torch.device) -> None:
    """What cannot be had is known before anything is measured."""
    if backend != "onnxruntime":
        return
    if device.type != "cpu":
        raise ConfigError(
            f"--backend onnxruntime answers on the CPU, not on {device.type}; use --device cpu"
        )
    need_onnx(f"--backend {backend}")


@dataclass
class Validator:
    """Measures a network on the validation split, as often as it is asked."""

    answers: Answers
    feed: ValidationFeed
    options: LoaderOptions
    share: Share
    batch_seconds: tuple[float, ...] = ()  # of the last time

    def __call__(self, update: int, epoch: float) -> Validated:
        """Every sample once; the network is left as it was. All processes must call it."""
        began = monotonic()
        score = evaluate(self.answers, self.feed, self.options, self.share, update)
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


def with_ema(
    validate: Callable[[int, float], Validated],
    ema: ExponentialMovingAverage,
    update: int,
    epoch: float,
) -> Validated:
    """Validation of the weights, and of their average if there is one."""
    validated = validate(update, epoch)
    if not ema.started:
        return validated
    with ema.swapped_in():
        average = validate(update, epoch)
    return replace(
        validated,
        average_top1=average.top1,
        average_top5=average.top5,
        average_loss=average.loss,
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
    config: RunConfig, paths: Sequence[Path | None], times: int = 1
) -> Iterator[NetworkScore | CheckpointError]:
    """Score each checkpoint on the validation split; one that cannot be used hides no other.

    None stands for the network that a training of this configuration would begin with.
    """
    device, backend = choose_device(config.device), config.validation.backend
    refuse_backend(backend, device)
    make_repeatable(threads_each(config.device.threads, 1))
    with compiler_for(config.compiler, device) if backend == "compiled" else nullcontext():
        bench = _Bench(config, device)
        for path in paths:
            try:
                update, epoch = (0, 0.0) if path is None else bench.load(path)
            except CheckpointError as error:
                yield error
                continue
            for _ in range(times):
                yield bench.score(path, update, epoch)


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
        self.ledger = ledger_of(config.data)
        feed = validation_feed(config, source, plan.image_size, device, NeededInputs(), self.ledger)
        self._answers = Answerer(plan, self.network, config.validation.backend)
        self._validate = Validator(
            self._answers, feed, loader_options(config), Share(0, 1, ControlGroup())
        )

    def load(self, path: Path) -> tuple[int, float]:
        """Take over the weights of a checkpoint; returns its update and epoch."""
        contents = reading.load(path)
        match(contents.model, self.network.slice.named_tensors())
        self._digest = weights_sha256(contents.model)
        self.network.load(contents.model)
        round_weights(self._config, self.network)
        self._answers.take_over()
        epoch = contents.state.get("epoch")
        return contents.update, float(epoch) if isinstance(epoch, int | float) else 0.0

    def score(self, path: Path | None, update: int, epoch: float) -> NetworkScore:
        validated = self._validate(update, epoch)
        latency = Latency.of(self._validate.batch_seconds)
        ledger = self.ledger
        skipped = () if ledger is None else tuple(map(str, ledger.new_records()))
        return NetworkScore(path, self._digest, validated, latency, skipped)
