"""A list of stages in place of one: the same arguments, and the outputs of all."""

from typing import Any

import pytest
import torch
from support.user_pipelines import Branches, Case, make_data, same_arrays, train
from torch import Tensor, nn

import convoy


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schedule": "sequential"},
        {"recompute": "stage"},
        {"offload_activations": True},
        {"device_mapping": [0, [0, 1], 0]},
        {"device_mapping": [0, [2, 1], 0]},
    ],
    ids=str,
)
def test_concurrent_stages_give_the_bits_of_sequential_branches(options: dict[str, Any]) -> None:
    left = train(None, Case(6, network="branches", options=options))
    right = train(None, Case(6, network="sequential branches"))

    assert left.same_weights(right) and same_arrays(left.results, right.results)


@pytest.mark.parametrize("schedule", ["interleaved", "1f1b", "zero-bubble"])
def test_concurrent_stages_follow_every_schedule(schedule: str) -> None:
    left = train(None, Case(6, network="branches", options={"schedule": schedule}))
    right = train(None, Case(6, network="sequential branches"))

    assert left.same_weights(right)


def train_three_branches(is_concurrent: bool) -> Tensor:
    """The weight of a stage before three branches, whose gradients are added in some order."""
    torch.manual_seed(8)
    first, *branches = (nn.Linear(6, 6, bias=False) for _ in range(4))

    def run_all(value: Tensor) -> tuple[Tensor, ...]:
        return tuple(branch(value) for branch in branches)

    convoy.pipeline(
        [first, branches if is_concurrent else run_all, lambda a, b, c: a + torch.tanh(b) * c],
        convoy.Infeed(make_data()[0]),
        gradient_accumulation=6,
        optimizer=torch.optim.SGD(first.parameters(), lr=1.0),
        loss_fn=lambda value: value.square().sum(),
    )()
    return first.weight.detach()


def test_gradients_of_branches_are_added_in_the_order_of_autograd() -> None:
    assert torch.equal(train_three_branches(True), train_three_branches(False))


def infer(stages: list[Any], elements: int = 4, **options: Any) -> Any:
    outfeed = convoy.Outfeed()
    data = torch.arange(2.0 * elements).reshape(elements, 2)
    convoy.pipeline(
        stages, convoy.Infeed(data), outfeed, gradient_accumulation=elements, **options
    )()
    return outfeed.dequeue()


@pytest.mark.parametrize("first", [True, False])
def test_the_outputs_of_all_branches_are_concatenated(first: bool) -> None:
    branches: list[Any] = [lambda x: (x + 1, x + 2), lambda x: x * 10, lambda x: x]
    before: list[Any] = [] if first else [lambda x: x]

    results = infer([*before, branches, lambda *values: values], elements=6)

    data = torch.arange(12.0).reshape(6, 2)
    expected = [data + 1, data + 2, data * 10, data]
    assert len(results) == 4 and all(map(torch.equal, results, expected))


def test_branches_may_return_dictionaries() -> None:
    results = infer(
        [[lambda x: {"plus": x + 1}, lambda x: {"times": x * 2}], lambda times, plus: plus - times]
    )

    data = torch.arange(8.0).reshape(4, 2)
    assert torch.equal(results, 1 - data)


def test_one_concurrent_stage_may_follow_another() -> None:
    pairs: list[Any] = [[lambda x: x + 1, lambda x: x * 2], [torch.add, torch.mul], torch.sub]

    data = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(infer(pairs, 3), (data + 1 + data * 2) - (data + 1) * (data * 2))


def test_the_drawing_shows_concurrent_stages_in_the_same_columns() -> None:
    network = Branches()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    pipeline = convoy.pipeline(
        network.stages(),
        convoy.Infeed(make_data()),
        gradient_accumulation=6,
        optimizer=optimizer,
        loss_fn=nn.functional.cross_entropy,
    )

    rows = [line.split(maxsplit=2) for line in pipeline.draw().splitlines()[1:]]
    assert [row[1] for row in rows] == ["0", "1a", "1b", "2"]
    assert rows[1][2] == rows[2][2] != rows[0][2]


def identity(value: Tensor) -> Tensor:
    return value


SHARED = nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("stages", "options", "error", "facts"),
    [
        ([identity, [SHARED, SHARED], torch.add], {}, ValueError, ["1a", "1b", "share", "(2, 2)"]),
        ([identity, [identity, [identity]], identity], {}, ValueError, ["stage 1", "list"]),
        ([identity, [], identity], {}, ValueError, ["stage 1", "empty"]),
        ([identity, [identity, identity]], {}, ValueError, ["stage 1", "last"]),
        ([identity, [identity, 3], identity], {}, TypeError, ["stage 1", "int"]),
        (
            [identity, [identity, identity], torch.add],
            {"device_mapping": [0, [1, 2, 3], 0]},
            ValueError,
            ["3 devices", "2 concurrent", "stage 1"],
        ),
        (
            [identity, [identity, identity], torch.add],
            {"device_mapping": [0, 1, 0]},
            ValueError,
            ["1 devices", "2 concurrent", "stage 1"],
        ),
        (
            [identity, [identity, identity], torch.add],
            {"device_mapping": [0, [1, 1], 0]},
            ValueError,
            ["stage 1", "different devices"],
        ),
        (
            [identity, [lambda x: {"a": x}, lambda x: {"a": x}], identity],
            {},
            ValueError,
            ["stage 1", "return a"],
        ),
        (
            [identity, [lambda x: {"a": x}, identity], identity],
            {},
            TypeError,
            ["stage 1", "dictionaries"],
        ),
        ([identity, [identity, lambda: None], identity], {}, TypeError, ["stage 1b", "(2,)"]),
        ([identity, [identity, lambda _: 3], identity], {}, TypeError, ["stage 1b", "int"]),
    ],
)
def test_rules_of_concurrent_stages(
    stages: list[Any], options: dict[str, Any], error: type[Exception], facts: list[str]
) -> None:
    with pytest.raises(error) as raised:
        infer(stages, 6, **options)

    assert all(fact in str(raised.value) for fact in facts), str(raised.value)
