"""The points where a stage may begin, and what a cut there would cost: `--pipeline-splits list`."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from convoy.config.schema import RunConfig
from convoy.plan.aliases import aliases
from convoy.plan.network import NetworkPlan
from convoy.plan.precision import WHOLE
from convoy.plan.stages import first_layers
from convoy.plan.wording import counted, short

LIST = "list"


@dataclass(frozen=True)
class SplitPoint:
    """A layer that may begin a stage, and what lies on either side of a cut before it."""

    name: str
    tensors: int  # that travel to it
    bytes: int  # of one micro-batch, in each direction
    work_before: float  # share of the multiply-adds
    parameters_before: int
    parameters_after: int
    activations_before: int  # bytes that the backward pass needs, for one micro-batch
    activations_after: int
    also: tuple[str, ...]  # what other applications call this place


def asks_for_list(config: RunConfig) -> bool:
    """Whether the wish is to see the points instead of a run."""
    return LIST in config.pipeline.pipeline_splits


def split_points(network: NetworkPlan, micro_batch_size: int) -> tuple[SplitPoint, ...]:
    """Every layer but the first."""
    also, sample = _further_words(network), WHOLE * micro_batch_size
    work = list(accumulate(cost.macs for cost in network.costs))
    parameters = list(accumulate(cost.parameters for cost in network.costs))
    kept = list(accumulate(sample * cost.kept for cost in network.costs))
    return tuple(
        SplitPoint(
            cost.name,
            len(cost.bundle_in),
            sample * sum(shape.elements for shape in cost.bundle_in),
            work[before] / max(1, work[-1]),
            parameters[before],
            parameters[-1] - parameters[before],
            kept[before],
            kept[-1] - kept[before],
            also[cost.name],
        )
        for before, cost in enumerate(network.costs[1:])
    )


def _further_words(network: NetworkPlan) -> dict[str, tuple[str, ...]]:
    """The words of other applications for each layer, by its own name."""
    names = [layer.name for layer in network.layers]
    firsts, words = first_layers(names), defaultdict[str, tuple[str, ...]](tuple)
    for word, meant in aliases(names).items():
        if word not in firsts:  # a layer's own name wins
            words[names[firsts[meant]]] += (word,)
    return words


def splits_as_text(points: Sequence[SplitPoint]) -> list[str]:
    """What `--pipeline-splits list` prints: before the cut | behind it."""
    title = "a stage may begin at"
    width = max(len(title), *(len(one.name) for one in points))
    head = f"{title:<{width}}  {'work %':^13}  {'parameters':^17}  {'activations':^17}  travels"
    return [head, *_rows(points, width)]


def _rows(points: Sequence[SplitPoint], width: int) -> Iterator[str]:
    for one in points:
        work = 100 * one.work_before
        also = f"  also {', '.join(one.also)}" if one.also else ""
        yield (
            f"{one.name:<{width}}  {work:>5.1f} | {100 - work:>5.1f}  "
            f"{short(one.parameters_before):>7} | {short(one.parameters_after):>7}  "
            f"{_bytes(one.activations_before):>7} | {_bytes(one.activations_after):>7}  "
            f"{short(one.bytes)}B in {counted(one.tensors, 'tensor')}{also}"
        )


def _bytes(count: int) -> str:
    return f"{short(count)}B"
