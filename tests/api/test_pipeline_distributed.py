"""Pipelines in several processes give the bits of a single process."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from support.replica_processes import Failed, ReplicaPool, replica_pool, unwrap
from support.user_pipelines import BATCH, CLASSES, Case, Outcome, same_arrays, train

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaPool]:
    """Four processes: two replicas of two stages, or four replicas."""
    with replica_pool(4, tmp_path_factory.mktemp("pool")) as pool:
        yield pool


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaPool]:
    """Three processes: a stage, and two concurrent ones of which one shares with the last."""
    with replica_pool(3, tmp_path_factory.mktemp("pool")) as pool:
        yield pool


@cache
def alone(micro_batches: int, network: str = "chain", optimizer: str = "momentum") -> Outcome:
    """One process trains on all micro-batches of an update."""
    torch.set_num_threads(1)
    return train(None, Case(micro_batches, network=network, optimizer=optimizer))


def interleave(results: np.ndarray[Any, Any], replicas: int, block: int) -> np.ndarray[Any, Any]:
    """The results of one process as (iterations, replicas, …): blocks for the replicas in turn."""
    blocks = results.reshape(-1, replicas, block, *results.shape[1:])
    return np.moveaxis(blocks, 1, 2).reshape(-1, replicas, *results.shape[1:])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schedule": "interleaved"},
        {"schedule": "1f1b"},
        {"schedule": "sequential"},
        {"schedule": "zero-bubble"},
        {"device_mapping": [1, 0]},
        {"recompute": "stage"},
        {"offload_optimizer": True, "offload_activations": True, "offload_accumulators": True},
        {"shard_optimizer": True},
        {"shard_optimizer": True, "offload_optimizer": True, "schedule": "sequential"},
    ],
    ids=str,
)
def test_two_replicas_of_two_stages_train_to_the_same_bits(
    four: ReplicaPool, options: dict[str, Any]
) -> None:
    outcomes = unwrap(four.run(train, Case(4, options=options)))

    expected = alone(8)
    results = tuple(interleave(item, 2, 4) for item in expected.results)
    for outcome in outcomes:
        assert outcome.same_weights(expected)
        assert same_arrays(outcome.results, results)
        assert outcome.position == 16


def test_a_restored_position_is_that_of_all_replicas(four: ReplicaPool) -> None:
    outcomes = unwrap(four.run(train, Case(4, position=8)))

    torch.set_num_threads(1)
    expected = train(None, Case(8, position=8))
    assert all(outcome.same_weights(expected) for outcome in outcomes)
    assert {outcome.position for outcome in outcomes} == {expected.position} == {24}
    assert not expected.same_weights(alone(8))


def test_sharded_state_is_divided_among_the_replicas(four: ReplicaPool) -> None:
    whole, parts = (
        unwrap(four.run(train, Case(4, optimizer="adam", options={"shard_optimizer": sharded})))
        for sharded in (False, True)
    )

    total = alone(8, optimizer="adam").state_elements
    assert sum(outcome.state_elements for outcome in parts) == total
    assert sum(outcome.state_elements for outcome in whole) == 2 * total
    assert all(outcome.same_weights(alone(8, optimizer="adam")) for outcome in [*whole, *parts])


def test_four_replicas_each_run_all_stages(four: ReplicaPool) -> None:
    outcomes = unwrap(four.run(train, Case(4, options={"replicas": 4})))

    expected = alone(16)
    assert all(outcome.same_weights(expected) for outcome in outcomes)
    assert all(outcome.results[0].shape == (8, 4, BATCH, CLASSES) for outcome in outcomes)


@pytest.mark.parametrize("reduction", ["sum", "running-mean"])
def test_replicas_are_averaged(four: ReplicaPool, reduction: str) -> None:
    outcomes = unwrap(four.run(train, Case(4, options={"reduction": reduction})))

    torch.set_num_threads(1)
    options: dict[str, Any] = {"reduction": reduction}
    if reduction == "sum":  # over eight micro-batches, where each replica has four
        options["map_gradient"] = lambda gradient, _: gradient / 2
    assert outcomes[0].same_weights(train(None, Case(8, options=options)))


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({"outfeed_loss": True}, (8, 2)),
        ({"outfeed_mask": [False, True]}, (8, 2, BATCH, CLASSES)),
        ({"outfeed_loss": True, "accumulate_outfeed": True}, (2, 2)),
        (
            {"accumulate_outfeed": True, "accumulate_outfeed_dtype": torch.float64},
            (2, 2, BATCH, CLASSES),
        ),
    ],
    ids=str,
)
def test_every_process_gets_the_results_of_all_replicas(
    four: ReplicaPool, options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    outcomes = unwrap(four.run(train, Case(4, options=options)))

    results = [outcome.results for outcome in outcomes]
    first = results[0][0] if isinstance(results[0], tuple) else results[0]
    assert first.shape == shape and np.abs(first).min() > 0
    assert not np.array_equal(first[:, 0], first[:, 1])
    assert all(same_arrays(other, results[0]) for other in results)


def test_inference_runs_in_several_processes(four: ReplicaPool) -> None:
    outcomes = unwrap(four.run(train, Case(4, inference=True)))

    torch.set_num_threads(1)
    expected = train(None, Case(8, inference=True)).results
    results = tuple(interleave(item, 2, 4) for item in expected)
    assert all(same_arrays(outcome.results, results) for outcome in outcomes)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("mapping", [[0, [1, 2], 0], [0, [0, 1], 2], [2, [0, 1], 1]], ids=str)
def test_concurrent_stages_run_in_several_processes(
    three: ReplicaPool, mapping: list[Any], inference: bool
) -> None:
    options = {"device_mapping": mapping}
    case = Case(6, network="branches", options=options, inference=inference)
    outcomes = unwrap(three.run(train, case))

    torch.set_num_threads(1)
    expected = train(None, Case(6, network="sequential branches", inference=inference))
    assert all(outcome.same_weights(expected) for outcome in outcomes)
    assert all(same_arrays(outcome.results, expected.results) for outcome in outcomes)


def test_a_number_of_processes_that_does_not_fit_is_refused(three: ReplicaPool) -> None:
    results = three.run(train, Case(4))

    assert all(isinstance(result, Failed) for result in results)
    assert all("3 processes" in str(result) and "2 devices" in str(result) for result in results)
