"""What the answers to a micro-batch are compared with."""

from convoy.data.feed import MicroBatch
from convoy.parallel.targets import Mixed, Targets


def targets_of(batch: MicroBatch) -> Targets | None:
    """None where this process does not compare."""
    if batch.labels is None or batch.shares is None:
        return batch.labels
    return Mixed(batch.labels, batch.shares)
