"""Results of several replicas, for the tests of the outfeed."""

from typing import Any

import torch

from convoy.engine.outfeed import Outfeed
from convoy.parallel.collectives import PeerGroup


def dequeue_results(peers: PeerGroup, results: tuple[Any, int]) -> list[Any]:
    """Enqueue a pair per iteration, and dequeue those of all replicas; the first one may enqueue
    another number of results."""
    mode, extra = results
    outfeed = Outfeed(mode)
    for iteration in range(3 + extra * (peers.replica == 0)):
        value = 10 * iteration + peers.replica
        outfeed.enqueue((torch.tensor(value), torch.full((2,), value)))
    return [tensor.tolist() for tensor in outfeed.dequeue()]
