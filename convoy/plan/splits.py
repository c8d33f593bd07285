"""The points where a stage may begin, and what a cut there would cost: `--pipeline-splits list`."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from convoy.config.schema import RunConfig
from convoy.plan.memory import BYTES
from convoy.plan.network import NetworkPlan
from convoy.plan.wording import counted, short

LIST = "list"


@dataclass(frozen=True)
class SplitPoint:
    """A layer that may begin a stage."""

    name: str
    tensors: int  # that travel to it
    bytes: int  # of one micro-batch, in each direction
    work_before: float  # share of the multiply-adds


def asks_for_list(config: RunConfig) -> bool:
    """Whether the wish is to see the points instead of a run."""
    return LIST in config.pipeline.pipeline_splits


def split_points(network: NetworkPlan, micro_batch_size: int) -> tuple[SplitPoint, ...]:
    """Every layer but the first."""
    done = accumulate(cost.macs for cost in network.costs)
    return tuple(
        SplitPoint(
            cost.name,
            len(cost.bundle_in),
            BYTES * micro_batch_size * sum(shape.elements for shape in cost.bundle_in),
            before / max(1, network.macs),
        )
        for cost, before in zip(network.costs[1:], done, strict=False)
    )


def splits_as_text(points: Sequence[SplitPoint]) -> list[str]:
    """What `--pipeline-splits list` prints."""
    title = "a stage may begin at"
    width = max(len(title), *(len(one.name) for one in points))
    return [
        f"{title:<{width}}  work before  travels per micro-batch",
        *(
            f"{one.name:<{width}} {100 * one.work_before:>10.1f} % "
            f"{short(one.bytes):>9}B in {counted(one.tensors, 'tensor')}"
            for one in points
        ),
    ]
