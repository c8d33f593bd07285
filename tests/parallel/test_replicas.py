"""A single replica does not communicate, and a sharded one sends no results."""

from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import Tensor, nn

from convoy.numerics.flat import FlatParameters
from convoy.numerics.gradients import GradientTree
from convoy.parallel.replicas import ExactReplicas, ReduceOptions, Replicas, shard_gatherer


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 12])
def test_the_mean_of_equal_gradients_is_that_gradient(count: int) -> None:
    weight = nn.Parameter(torch.zeros(5, 3))
    tree = GradientTree(FlatParameters({"weight": weight}))
    for _ in range(count):
        weight.grad = torch.full_like(weight, 3.0)
        tree.collect()
    (mean,) = tree.flat.views(Replicas().reduce(tree))

    assert bool((mean == 3).all())


def test_the_sum_is_divided_once() -> None:
    weight = nn.Parameter(torch.zeros(2))
    tree = GradientTree(FlatParameters({"weight": weight}))
    for value in (0.1, 0.2, 0.4):
        weight.grad = torch.full_like(weight, value)
        tree.collect()
    first, second, third = torch.tensor([0.1, 0.2, 0.4])

    assert Replicas().reduce(tree)[0] == ((first + second) + third) / 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_mean_is_rounded_to_the_dtype_of_the_weights_after_the_division(
    dtype: torch.dtype,
) -> None:
    weight = nn.Parameter(torch.zeros(2))
    tree = GradientTree(FlatParameters({"weight": weight}), dtype=dtype)
    for value in (0.1, 0.2, 0.4):
        weight.grad = torch.full_like(weight, value)
        tree.collect()
    first, second, third = torch.tensor([0.1, 0.2, 0.4]).to(dtype)
    mean = Replicas().reduce(tree)

    assert mean.dtype == torch.float32
    assert mean[0] == (((first + second) + third) / 3).float()


def test_a_single_replica_updates_everything_and_copies_nothing() -> None:
    values = torch.arange(48.0)
    replicas = Replicas()
    replicas.all_gather_shards(values)

    assert replicas.shard_range(48) == range(48)
    assert replicas.all_gather_statistics(values) is values
    assert shard_gatherer(replicas, 48)(values) is values


def test_a_single_replica_computes_no_digest() -> None:
    def digest() -> bytes:
        raise AssertionError("a single replica must not hash its weights")

    Replicas().check_weights_equal(digest, update=100)


class ZeroPeers:
    """The first of two replicas; the other one has no gradients."""

    replica, replicas, other_replicas = 0, 2, (1,)

    def __init__(self) -> None:
        self.num_results_sent = 0

    def batch_isend_irecv(
        self,
        sent: Iterable[tuple[int, Tensor]],
        received: Iterable[tuple[int, Tensor]],
        tag: int,
    ) -> list[object]:
        del sent, tag
        for _, vector in received:
            vector.zero_()
        return []

    def all_gather_in_place(self, parts: Sequence[Tensor], tag: int) -> list[object]:
        del parts, tag
        self.num_results_sent += 1
        return []


@pytest.mark.parametrize("sharded", [False, True])
def test_the_result_of_a_shard_is_not_sent(sharded: bool) -> None:
    weight, peers = nn.Parameter(torch.zeros(64)), ZeroPeers()
    tree = GradientTree(FlatParameters({"weight": weight}))
    weight.grad = torch.ones(64)
    tree.collect()
    result = ExactReplicas(peers, ReduceOptions(sharded, 1 << 20)).reduce(tree)

    assert result[:32].tolist() == [0.5] * 32
    assert peers.num_results_sent == (0 if sharded else 1)
