"""Accuracy and loss over a source, every sample exactly once."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from convoy.data.feed import Hands, ValidationFeed
from convoy.parallel.slice import Slice


@dataclass(frozen=True)
class Score:
    """Whole counts, so that any split of the samples adds up to the same score."""

    samples: int
    top1: float
    top5: float
    loss: float


def evaluate(network: Slice, feed: ValidationFeed, hands: Hands) -> Score:
    """Run the whole source through the network as it would be used."""
    network.eval()
    samples, first, fifth, loss = 0, 0, 0, 0.0
    with torch.inference_mode():
        for batch in feed.batches(hands):
            (logits,) = network(batch.images)
            # With fewer than six classes everything is among the first five.
            ranked = logits.topk(min(5, logits.shape[1])).indices
            hits = ranked == batch.labels[:, None]
            first += int(hits[:, 0].sum())
            fifth += int(hits.sum())
            loss += float(F.cross_entropy(logits, batch.labels, reduction="sum"))
            samples += len(batch.labels)
    return Score(samples, first / samples, fifth / samples, loss / samples)
