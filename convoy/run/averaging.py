"""Average checkpoints, with a choice for running statistics.

Only one checkpoint is in memory at a time. Sums are in float64 and cast back at the end. Integers
and names ending in `keep_suffixes` are not averaged but taken from the newest checkpoint, so
checkpoints are passed oldest first.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path

import torch

from convoy.checkpoint import reading
from convoy.checkpoint.format import CheckpointContents, Tensors, check_match, weights_sha256
from convoy.checkpoint.store import CheckpointStore
from convoy.config.schema import RunConfig
from convoy.data.feeds import loader_options, make_ledger, make_training_feed
from convoy.data.loader import MicroBatchIndex, NeededInputs
from convoy.data.sources.open import open_source
from convoy.errors import CheckpointError
from convoy.events import Averaged
from convoy.machine import threads_per_process
from convoy.models.network import plan_training_network
from convoy.planning.plan import num_used_samples, plan_run
from convoy.run.network import freeze
from convoy.run.parameter_groups import build_network_for_precision, round_weights
from convoy.run.process import choose_device, make_deterministic

RUNNING_STATISTICS = (".running_mean", ".running_var")


@torch.no_grad()
def average(
    checkpoints: Iterable[CheckpointContents],
    decay: float | None = None,
    keep_suffixes: tuple[str, ...] = (),
) -> Tensors:
    """Return the averages in their original dtypes, in the order of the model.

    With a decay, the average is exponential and starts with the first checkpoint; without one,
    it is the mean.
    """
    templates: Tensors = {}
    totals: Tensors = {}
    newest: Tensors = {}
    count = 0
    for model in map(attrgetter("model"), checkpoints):  # keeps no checkpoint alive
        if not count:
            templates = {name: tensor.to("meta") for name, tensor in model.items()}
            totals = {
                name: tensor.to(torch.float64, copy=True)
                for name, tensor in model.items()
                if tensor.is_floating_point() and not name.endswith(keep_suffixes)
            }
        else:
            check_match(model, templates, what="average")
            for name, total in totals.items():
                if decay is None:
                    total.add_(model[name])
                else:
                    total.mul_(decay).add_(model[name], alpha=1 - decay)
        newest = {name: model[name] for name in model if name not in totals}
        count += 1
        del model  # free it before the next one is loaded
    if not count:
        raise CheckpointError("no checkpoint to average")
    divisor = count if decay is None else 1
    tensors = newest | {name: total / divisor for name, total in totals.items()}
    return {name: tensors[name].to(form.dtype, copy=True) for name, form in templates.items()}


class AveragingInterrupted(Exception):
    """Averaging was stopped by an urgent request; nothing was written."""


def average_checkpoints(
    config: RunConfig,
    folder: Path,
    is_urgent: Callable[[], bool] = lambda: False,
    include: Callable[[int], bool] = lambda _: True,
) -> Averaged:
    """Average the newest checkpoints of a folder whose update `include` accepts.

    AveragingInterrupted as soon as the end is urgent.
    """
    options = config.average
    store = CheckpointStore(folder)
    paths = [store.path(update) for update in store.updates() if include(update)]
    if not paths:
        raise CheckpointError(f"no checkpoint in {folder}")
    chosen = paths[-options.weight_avg_n :] if options.weight_avg_n > 0 else paths
    keep_suffixes = RUNNING_STATISTICS if options.norm_statistics == "keep" else ()
    decay = None if options.weight_avg_strategy == "mean" else options.weight_avg_exp_decay
    model = average(map(reading.load, chosen), decay, keep_suffixes)
    if options.norm_statistics == "recompute":
        model = _recompute_statistics(config, model, is_urgent)
    newest = reading.load(chosen[-1])
    state = newest.state | {"averaged": [path.name for path in chosen]}
    strategy, digest = options.weight_avg_strategy, weights_sha256(model)
    # One folder per recipe, so that no average replaces another.
    rate = "" if decay is None else f"-{decay:g}"
    recipe = f"{strategy}{rate}-{len(chosen)}-{options.norm_statistics}"
    target = CheckpointStore(folder / "averaged" / recipe)
    path = target.save(CheckpointContents(model=model, state=state))
    return Averaged(newest.update, str(path), strategy, len(chosen), digest)


def _recompute_statistics(
    config: RunConfig, model: Tensors, is_urgent: Callable[[], bool]
) -> Tensors:
    """Recompute running statistics as the mean over one training epoch, weights unchanged."""
    device = choose_device(config.device)
    make_deterministic(threads_per_process(config.device.threads, 1))
    source = open_source(config.data, plan_training_network(config), "train")
    plan = plan_run(config, num_used_samples(config, len(source)))
    network = build_network_for_precision(config, plan.network, device)
    freeze(network, [layer.name for layer in plan.frozen_layers])
    check_match(model, network.slice.named_tensors())
    network.load(model)
    round_weights(config, network)
    norms = network.norms
    if not norms:
        return model
    feed = make_training_feed(
        plan, source, device, NeededInputs(labels=False), make_ledger(config.data)
    )
    indices = (
        MicroBatchIndex(update, micro)
        for update in range(plan.loop.updates_per_epoch)
        for micro in range(plan.batch.micro_batches)
    )
    network.slice.train()
    with torch.no_grad():
        for count, batch in enumerate(feed.micro_batches(indices, loader_options(config)), start=1):
            network.slice(batch.images)
            for norm in norms:
                (mean, variance) = norm.pending_statistics.pop()
                norm.running_mean += (mean - norm.running_mean) / count
                norm.running_var += (variance - norm.running_var) / count
            if is_urgent():
                raise AveragingInterrupted
    recomputed = network.tensors()
    return {
        name: recomputed[name].cpu() if name.endswith(RUNNING_STATISTICS) else tensor
        for name, tensor in model.items()
    }
