"""One checkpoint out of many, with running statistics as the user wants them.

One checkpoint is in memory at a time. Sums are kept in float64 and cast back at the end. Whole
numbers, and whatever `keep` names, have no meaningful average and are taken from the newest; so
checkpoints come in oldest first.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path

import torch

from convoy.checkpoint import reading
from convoy.checkpoint.format import Contents, Tensors, match, weights_sha256
from convoy.checkpoint.store import Store
from convoy.config.schema import RunConfig
from convoy.data.feeds import ledger_of, loader_options, training_feed
from convoy.data.loader import MicroBatchIndex, NeededInputs
from convoy.data.sources.open import open_source
from convoy.errors import CheckpointError
from convoy.events import Averaged
from convoy.machine import threads_each
from convoy.plan.plan import plan_run, used_samples
from convoy.run.network import Network, build_network, freeze, whole
from convoy.run.parameter_groups import compute_in, round_weights
from convoy.run.process import choose_device, make_repeatable

Keep = Callable[[str], bool]  # by a tensor's name: take it from the newest, do not average


def average_everything(_: str) -> bool:
    """Keep nothing of the newest: running statistics are averaged too."""
    return False


@torch.no_grad()
def average(
    checkpoints: Iterable[Contents], decay: float | None = None, keep: Keep = average_everything
) -> Tensors:
    """The averages in their own types, in the order of the model.

    Each checkpoint leaves `decay` of the average before it, and the first one starts it; without
    a decay every checkpoint counts the same.
    """
    templates: Tensors = {}
    totals: Tensors = {}
    newest: Tensors = {}
    count = 0
    for model in map(attrgetter("model"), checkpoints):  # keeps none alive, unlike a generator
        if not count:
            templates = {name: tensor.to("meta") for name, tensor in model.items()}
            totals = {
                name: tensor.to(torch.float64, copy=True)
                for name, tensor in model.items()
                if tensor.is_floating_point() and not keep(name)
            }
        else:
            match(model, templates, of="average")
            for name, total in totals.items():
                if decay is None:
                    total.add_(model[name])
                else:
                    total.mul_(decay).add_(model[name], alpha=1 - decay)
        newest = {name: model[name] for name in model if name not in totals}
        count += 1
        del model  # the next one is loaded only when this one is gone
    if not count:
        raise CheckpointError("no checkpoint to average")
    divisor = count if decay is None else 1
    return {
        name: (totals[name] / divisor).to(template.dtype)
        if name in totals
        else newest[name].clone()
        for name, template in templates.items()
    }


class AveragingStopped(Exception):
    """Somebody waits for the end; nothing was written."""


def average_checkpoints(
    config: RunConfig,
    folder: Path,
    is_urgent: Callable[[], bool] = lambda: False,
    counts: Callable[[int], bool] = lambda _: True,
) -> Averaged:
    """Average the newest checkpoints of a folder that count.

    AveragingStopped as soon as the end is urgent.
    """
    wish = config.average
    store = Store(folder)
    paths = [store.path(update) for update in store.updates() if counts(update)]
    if not paths:
        raise CheckpointError(f"no checkpoint in {folder}")
    chosen = paths[-wish.weight_avg_n :] if wish.weight_avg_n > 0 else paths
    keep = _is_statistic if wish.norm_statistics == "keep" else average_everything
    decay = None if wish.weight_avg_strategy == "mean" else wish.weight_avg_exp_decay
    model = average(map(reading.load, chosen), decay, keep)
    if wish.norm_statistics == "recompute":
        model = _with_fresh_statistics(config, model, is_urgent)
    newest = reading.load(chosen[-1])
    state = newest.state | {"averaged": [path.name for path in chosen]}
    target = Store(folder / "averaged" / _recipe(config, len(chosen)))
    path = target.save(Contents(model=model, state=state), newest.update)
    strategy, digest = wish.weight_avg_strategy, weights_sha256(model)
    return Averaged(newest.update, str(path), strategy, len(chosen), digest)


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
