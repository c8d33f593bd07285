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
from convoy.checkpoint.format import check_match, weights_sha256
from convoy.config.schema import RunConfig
from convoy.data.feeds import loader_options, make_ledger, make_validation_feed
from convoy.data.loader import LoaderOptions, NeededInputs, ValidationFeed
from convoy.data.sources.open import open_source
from convoy.engine.metrics import Predictor, ValidationShare, evaluate
from convoy.errors import CheckpointError, ConfigError
from convoy.events import Validated
from convoy.layers.export import OnnxNetwork, export_onnx, require_onnx
from convoy.layers.norms import fold_batch_norms
from convoy.machine import threads_per_process
from convoy.models.network import IMAGE_CHANNELS, NetworkPlan, plan_network
from convoy.numerics.precision import FLOAT32
from convoy.optim.ema import ExponentialMovingAverage
from convoy.parallel.control import ControlGroup
from convoy.parallel.inference import InferencePipeline
from convoy.parallel.slice import Slice
from convoy.run.compile import CompiledSlice, compile_environment
from convoy.run.network import Network
from convoy.run.parameter_groups import build_network_for_precision, round_weights
from convoy.run.process import choose_device, make_deterministic


class InferenceNetwork:
    """Inference with a copy of the network's weights, updated by `reload_weights`."""

    def __init__(self, plan: NetworkPlan, network: Network, backend: str) -> None:
        self._plan = plan
        self._network = network
        self._backend = backend
        self._slice = self._fold_norms()
        self._stage = self._make_stage()

    @property
    def module(self) -> nn.Module:
        """The module that runs, from images to a bundle with the logits."""
        return self._stage

    def run(self, batches: Iterable[Tensor | None]) -> Iterator[Tensor | None]:
        return InferencePipeline([self._stage]).run(batches)

    @torch.no_grad()
    def reload_weights(self) -> None:
        """Copy the current weights of the network."""
        fresh = self._fold_norms().named_tensors()
        for name, tensor in self._slice.named_tensors().items():
            tensor.copy_(fresh[name])
        if not isinstance(self._stage, Slice | CompiledSlice):  # these share the weights
            self._stage = self._make_stage()

    def _make_stage(self) -> nn.Module:
        if self._backend == "compiled":
            return CompiledSlice(self._slice)
        if self._backend == "onnxruntime":
            example = torch.zeros(2, IMAGE_CHANNELS, self._plan.image_size, self._plan.image_size)
            return OnnxNetwork(export_onnx(self._slice, example), torch.get_num_threads())
        return self._slice

    def _fold_norms(self) -> Slice:
        """Fold norms into convolutions; not in 16 bits, where norms round their inputs."""
        network = self._network.slice
        modules = dict(network.layers.items())
        if network.arithmetic.float_format == FLOAT32 or self._backend == "onnxruntime":
            return Slice(*fold_batch_norms(self._plan.layers, modules))
        layers = Slice(self._plan.layers, modules)
        layers.set_arithmetic(network.arithmetic, rounds_input=True)
        return layers


def check_backend(backend: str, device: torch.device) -> None:
    """Check that the backend is available before anything is measured."""
    if backend != "onnxruntime":
        return
    if device.type != "cpu":
        raise ConfigError(
            f"--backend onnxruntime runs on the CPU, not on {device.type}; use --device cpu"
        )
    require_onnx(f"--backend {backend}")


@dataclass
class Validator:
    """Evaluate a network on the validation split."""

    pipeline: Predictor
    feed: ValidationFeed
    options: LoaderOptions
    share: ValidationShare
    batch_seconds: tuple[float, ...] = ()  # of the last validation

    def __call__(self, update: int, epoch: float) -> Validated:
        """Evaluate every sample once. All processes must call this."""
        start_time = monotonic()
        score = evaluate(self.pipeline, self.feed, self.options, self.share, update)
        seconds = monotonic() - start_time
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
    """Validate the weights, and their EMA if there is one."""
    validated = validate(update, epoch)
    if not ema.started:
        return validated
    with ema.apply_to_network():
        average = validate(update, epoch)
    return replace(
        validated,
        average_top1=average.top1,
        average_top5=average.top5,
        average_loss=average.loss,
    )


@dataclass(frozen=True)
class Latency:
    """From the images of a batch on the device to its outputs on the host, in milliseconds."""

    mean: float
    p99: float  # 99th percentile

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Latency":
        """Compute the latency of at least one batch."""
        slowest = sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]
        return cls(1000 * sum(seconds) / len(seconds), 1000 * slowest)


@dataclass(frozen=True)
class NetworkScore:
    """The score of one set of weights."""

    path: Path | None  # None: initial weights, no checkpoint
    weights_sha256: str
    validated: Validated
    latency: Latency
    skipped: tuple[str, ...]  # bad records not yet reported


def validate_checkpoints(
    config: RunConfig, paths: Sequence[Path | None], repeats: int = 1
) -> Iterator[NetworkScore | CheckpointError]:
    """Score each checkpoint on the validation split; errors are yielded, not raised.

    The path None selects the initial weights of this configuration.
    """
    device, backend = choose_device(config.device), config.validation.backend
    check_backend(backend, device)
    make_deterministic(threads_per_process(config.device.threads, 1))
    with compile_environment(config.compiler, device) if backend == "compiled" else nullcontext():
        validator = _CheckpointValidator(config, device)
        for path in paths:
            try:
                update, epoch = (0, 0.0) if path is None else validator.load(path)
            except CheckpointError as error:
                yield error
                continue
            for _ in range(repeats):
                yield validator.score(path, update, epoch)


class _CheckpointValidator:
    """A whole network on one device, and the validation split."""

    def __init__(self, config: RunConfig, device: torch.device) -> None:
        plan = plan_network(config)
        self.network = build_network_for_precision(config, plan, device)
        self._config, self._digest = config, weights_sha256(self.network.tensors())
        round_weights(config, self.network)
        source = open_source(config.data, plan, "validation")
        self.ledger = make_ledger(config.data)
        feed = make_validation_feed(
            config, source, plan.image_size, device, NeededInputs(), self.ledger
        )
        self._inference = InferenceNetwork(plan, self.network, config.validation.backend)
        self._validate = Validator(
            self._inference, feed, loader_options(config), ValidationShare(0, 1, ControlGroup())
        )

    def load(self, path: Path) -> tuple[int, float]:
        """Load the weights of a checkpoint; return its update and epoch."""
        contents = reading.load(path)
        check_match(contents.model, self.network.slice.named_tensors())
        self._digest = weights_sha256(contents.model)
        self.network.load(contents.model)
        round_weights(self._config, self.network)
        self._inference.reload_weights()
        epoch = contents.state.get("epoch")
        return contents.update, float(epoch) if isinstance(epoch, int | float) else 0.0

    def score(self, path: Path | None, update: int, epoch: float) -> NetworkScore:
        validated = self._validate(update, epoch)
        latency = Latency.of(self._validate.batch_seconds)
        ledger = self.ledger
        skipped = () if ledger is None else tuple(map(str, ledger.new_records()))
        return NetworkScore(path, self._digest, validated, latency, skipped)
