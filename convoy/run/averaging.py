"""One checkpoint out of many, with running statistics as the user wants them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from convoy.checkpoint import reading
from convoy.checkpoint.format import Contents, Tensors, match, weights_sha256
from convoy.checkpoint.store import Store, every
from convoy.config.schema import RunConfig
from convoy.data.feeds import ledger_of, loader_options, training_feed
from convoy.data.loader import NeededInputs
from convoy.data.order import MicroBatchIndex
from convoy.data.sources.open import open_source
from convoy.errors import CheckpointError, ConfigError
from convoy.machine import threads_each
from convoy.plan.plan import plan_run, used_samples
from convoy.run.network import Network, build_network, freeze, whole
from convoy.run.parameter_groups import compute_in, round_weights
from convoy.run.process import choose_device, make_repeatable

Keep = Callable[[str], bool]  # by a tensor's name: take it from the newest, do not average


def keep_none(name: str) -> bool:  # noqa: ARG001 - a Keep
    """Average everything that can be averaged, running statistics too."""
    return False


def mean(checkpoints: Iterable[Contents], keep: Keep = keep_none) -> Tensors:
    """Every checkpoint counts the same."""
    average = _accumulate(checkpoints, lambda total, newest: total.add_(newest), keep)
    return average.result(divisor=average.count)


def exponential(checkpoints: Iterable[Contents], decay: float, keep: Keep = keep_none) -> Tensors:
    """Each checkpoint leaves `decay` of the average before it; the first one starts it."""
    if not 0 <= decay < 1:
        raise ConfigError(f"the decay of an exponential average lies in [0, 1), not at {decay}")

    def blend(total: Tensor, newest: Tensor) -> None:
        total.mul_(decay).add_(newest, alpha=1 - decay)

    return _accumulate(checkpoints, blend, keep).result(divisor=1)


class _RunningAverage:
    """Totals in float64, the newest of what is not averaged, and the shape of every tensor."""

    def __init__(self, first: Tensors, keep: Keep) -> None:
        self.count = 1
        self.templates = {name: tensor.to("meta") for name, tensor in first.items()}
        self.totals = {
            name: tensor.to(torch.float64, copy=True)
            for name, tensor in first.items()
            if tensor.is_floating_point() and not keep(name)
        }
        self.newest: Tensors = {}
        self.take_newest(first)

    def take_newest(self, model: Tensors) -> None:
        """Keep what is not averaged, and nothing else of this checkpoint."""
        self.newest = {name: model[name] for name in model if name not in self.totals}

    def result(self, divisor: int) -> Tensors:
        """The averages in their own types, in the order of the model."""
        return {
            name: (self.totals[name] / divisor).to(template.dtype)
            if name in self.totals
            else self.newest[name].clone()
            for name, template in self.templates.items()
        }


def _model(contents: Contents) -> Tensors:
    return contents.model


@torch.no_grad()
def _accumulate(
    checkpoints: Iterable[Contents], blend: Callable[[Tensor, Tensor], object], keep: Keep
) -> _RunningAverage:
    models = map(_model, checkpoints)  # keeps none alive, unlike a generator
    first = next(models, None)
    if first is None:
        raise CheckpointError("no checkpoint to average")
    average = _RunningAverage(first, keep)
    del first  # here and below: the next one is loaded only when this one is gone
    for model in models:
        match(model, average.templates, of="average")
        for name, total in average.totals.items():
            blend(total, model[name])
        average.take_newest(model)
        average.count += 1
        del model
    return average


@dataclass(frozen=True)
class Average:
    """What was written."""

    path: Path
    strategy: str
    checkpoints: int
    update: int  # of the newest that went into it
    weights_sha256: str


class AveragingStopped(Exception):
    """Somebody waits for the end; nothing was written."""


def nobody_waits() -> bool:
    """There is time for all of it."""
    return False


def average_checkpoints(
    config: RunConfig,
    folder: Path,
    is_urgent: Callable[[], bool] = nobody_waits,
    counts: Callable[[int], bool] = every,
) -> Average:
    """Average the newest checkpoints of a folder that count.

    AveragingStopped as soon as the end is urgent.
    """
    wish = config.average
    store = Store(folder)
    paths = [store.path(update) for update in store.updates() if counts(update)]
    if not paths:
        raise CheckpointError(f"no checkpoint in {folder}")
    chosen = paths[-wish.weight_avg_n :] if wish.weight_avg_n > 0 else paths
    keep = _is_statistic if wish.norm_statistics == "keep" else keep_none
    loaded = map(reading.load, chosen)
    model = (
        mean(loaded, keep)
        if wish.weight_avg_strategy == "mean"
        else exponential(loaded, wish.weight_avg_exp_decay, keep)
    )
    if wish.norm_statistics == "recompute":
        model = _with_fresh_statistics(config, model, is_urgent)
    newest = reading.load(chosen[-1])
    state = newest.state | {"averaged": [path.name for path in chosen]}
    target = Store(folder / "averaged" / _recipe(config, len(chosen)))
    path = target.save(Contents(model=model, state=state), newest.update)
    strategy, digest = wish.weight_avg_strategy, weights_sha256(model)
    return Average(path, strategy, len(chosen), newest.update, digest)


def _recipe(config: RunConfig, count: int) -> str:
    """A folder name for each way to average, so that none reindices another."""
    wish = config.average
    decay = f"-{wish.weight_avg_exp_decay:g}" if wish.weight_avg_strategy == "exponential" else ""
    return f"{wish.weight_avg_strategy}{decay}-{count}-{wish.norm_statistics}"


def _is_statistic(name: str) -> bool:
    return name.endswith((".running_mean", ".running_var"))


def _with_fresh_statistics(
    config: RunConfig, model: Tensors, is_urgent: Callable[[], bool]
) -> Tensors:
    """Running statistics as the mean over one epoch of training passes, weights unchanged."""
    device = choose_device(config.device)
    make_repeatable(threads_each(config.device.threads, 1))
    first = plan_run(config)
    source = open_source(config.data, first.network, "train")
    plan = plan_run(config, used_samples(config, len(source)))
    stages = [whole(plan.network)]
    built = build_network(plan.network, stages, config.data.seed, device)
    compute_in(config, built, device, stages)
    network = freeze(built, [layer.name for layer in plan.frozen_layers])
    match(model, network.slice.named_tensors())
    network.load(model)
    round_weights(config, network)
    if not network.norms:
        return model
    feed = training_feed(plan, source, device, NeededInputs(labels=False), ledger_of(config.data))
    indices = (
        MicroBatchIndex(update, micro)
        for update in range(plan.loop.updates_per_epoch)
        for micro in range(plan.batch.micro_batches)
    )
    network.slice.train()
    with torch.no_grad():
        for count, batch in enumerate(feed.micro_batches(indices, loader_options(config)), start=1):
            network.slice(batch.images)
            _take_mean(network, count)
            if is_urgent():
                raise AveragingStopped
    statistics = {n: one.cpu() for n, one in network.tensors().items() if _is_statistic(n)}
    return {name: statistics.get(name, one) for name, one in model.items()}


def _take_mean(network: Network, count: int) -> None:
    """The running mean over `count` passes, the newest of which waits in the norms."""
    for norm in network.norms:
        (mean_, variance) = norm.waiting.pop()
        norm.running_mean += (mean_ - norm.running_mean) / count
        norm.running_var += (variance - norm.running_var) / count
