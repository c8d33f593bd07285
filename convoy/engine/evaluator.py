"""Accuracy and loss over a source, every sample exactly once."""

from contextlib import closing
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from convoy.data.feed import Hands, ValidationFeed
from convoy.parallel.slice import Slice


@dataclass(frozen=True)
class Score:
    """Shares and the mean over all samples, whatever the batches were."""

    samples: int
    top1: float
    top5: float
    loss: float


def evaluate(network: Slice, feed: ValidationFeed, hands: Hands) -> Score:
    """Run the whole source through the network as it would be used; leave it as it was."""
    was_training = network.training
    network.eval()
    samples, first, fifth, loss = 0, 0, 0, 0.0
    with torch.inference_mode(), closing(feed.batches(hands)) as batches:
        for batch in batches:
            (logits,) = network(batch.images)
            # With fewer than six classes everything is among the first five.
            ranked = logits.topk(min(5, logits.shape[1])).indices
            hits = ranked == batch.labels[:, None]
            first += int(hits[:, 0].sum())
            fifth += int(hits.sum())
            loss += float(F.cross_entropy(logits, batch.labels, reduction="sum"))
            samples += len(batch.labels)
    network.train(was_training)
    return Score(samples, first / samples, fifth / samples, loss / samples)
