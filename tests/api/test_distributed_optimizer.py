"""DistributedOptimizer: accumulation and averaging over replicas around any torch optimizer."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.replica_processes import Failed, ReplicaPool, replica_pool, unwrap
from support.user_loops import Training, run, run_two_optimizers, run_without_optimizer, same
from support.user_pipelines import Chain, train_plainly
from torch import Tensor, nn

import convoy
from convoy.optim.optimizer import MmapStorage


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicaPool]:
    with replica_pool(2, tmp_path_factory.mktemp("pool")) as pool:
        yield pool


@pytest.mark.parametrize(
    ("reduction", "scale"), [("mean", 0.25), ("running-mean", 0.25), ("sum", 1.0)]
)
def test_gradients_are_accumulated_as_in_a_plain_loop(reduction: str, scale: float) -> None:
    expected = Chain(dropout=0)
    train_plainly(expected, 3, 4, scale)

    weights, _ = run(None, Training(options={"reduction": reduction}))

    for name, tensor in expected.named_parameters():
        torch.testing.assert_close(torch.from_numpy(weights[name]), tensor, rtol=1e-4, atol=1e-5)


def test_one_micro_batch_is_a_step_of_the_wrapped_optimizer() -> None:
    expected = Chain(dropout=0)
    train_plainly(expected, 3, 1, 1.0)

    weights, _ = run(None, Training(micro_batches=1))

    assert same(
        weights, {name: item.detach().numpy() for name, item in expected.named_parameters()}
    )


def keep_gradient(gradient: Tensor, parameter: nn.Parameter) -> Tensor:
    del parameter
    return gradient


@pytest.mark.parametrize(
    "options",
    [
        {"offload_optimizer": True},
        {"offload_accumulators": True},
        {"shard_optimizer": True},
        {"map_gradient": keep_gradient},
        {"accumulator_dtype": torch.float32},
    ],
    ids=lambda options: next(iter(options)),
)
def test_weights_do_not_depend_on_where_state_is(options: dict[str, Any]) -> None:
    assert same(run(None, Training(options=options))[0], run(None, Training())[0])


def test_offloaded_tensors_are_in_mapped_files(monkeypatch: pytest.MonkeyPatch) -> None:
    elements: list[int] = []
    zeros = MmapStorage.zeros

    def record(storage: MmapStorage, count: int, like: Tensor) -> Tensor:
        elements.append(count)
        return zeros(storage, count, like)

    monkeypatch.setattr(MmapStorage, "zeros", record)
    counts = []
    for options in ({}, {"offload_optimizer": True}, {"offload_accumulators": True}):
        elements.clear()
        run(None, Training(optimizer="adam", options=options))
        counts.append(len(elements))

    assert counts[0] == 0 and counts[1] == 2 * 6  # both moments of six parameters
    assert counts[2] >= 1


@pytest.mark.processes
@pytest.mark.parametrize(
    "options", [{}, {"shard_optimizer": True}, {"shard_optimizer": True, "offload_optimizer": True}]
)
@pytest.mark.parametrize("micro_batches", [2, 4, 6])
def test_replicas_average_to_the_bits_of_one_process(
    two: ReplicaPool, micro_batches: int, options: dict[str, Any]
) -> None:
    """Two micro-batches are averaged over the replicas only; more are accumulated as well."""
    outcomes = unwrap(two.run(run, Training(micro_batches, options=options)))

    expected, _ = run(None, Training(micro_batches))
    assert all(same(weights, expected) for weights, _ in outcomes)


@pytest.mark.processes
def test_each_replica_has_a_part_of_the_sharded_state(two: ReplicaPool) -> None:
    case = Training(optimizer="adam", options={"shard_optimizer": True})

    left, right = unwrap(two.run(run, case))

    weights, elements = run(None, Training(optimizer="adam"))
    assert same(left[0], weights) and same(right[0], weights)
    assert left[1] + right[1] == elements and 0 < left[1] < elements


@pytest.mark.processes
def test_sums_are_averaged_over_the_replicas(two: ReplicaPool) -> None:
    outcomes = unwrap(two.run(run, Training(options={"reduction": "sum"})))

    halved = {"reduction": "sum", "map_gradient": lambda gradient, _: gradient / 2}
    assert same(outcomes[0][0], run(None, Training(options=halved))[0])


@pytest.mark.processes
def test_an_optimizer_that_is_no_optimizer_is_refused_in_every_process(two: ReplicaPool) -> None:
    results = two.run(run_without_optimizer, None)

    assert all(isinstance(result, Failed) and "TypeError" in str(result) for result in results)


@pytest.mark.processes
def test_a_parameter_of_two_sharded_optimizers_is_refused(two: ReplicaPool) -> None:
    for result in two.run(run_two_optimizers, None):
        assert isinstance(result, Failed) and "ValueError" in str(result)
        assert "(1, 2)" in str(result) and "shard_optimizer" in str(result)


def make(count: int = 2, **options: Any) -> tuple[nn.Linear, convoy.DistributedOptimizer]:
    torch.manual_seed(1)
    layer = nn.Linear(2, 1, bias=False)
    wrapped = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.9)
    return layer, convoy.DistributedOptimizer(wrapped, gradient_accumulation=count, **options)


def backward(layer: nn.Linear, value: float) -> None:
    layer(torch.tensor([[value, 2 * value]])).sum().backward()


def test_parameters_change_at_every_nth_step() -> None:
    layer, optimizer = make(2)
    before = layer.weight.detach().clone()
    backward(layer, 1.0)
    optimizer.step()
    unchanged, cleared = torch.equal(layer.weight, before), layer.weight.grad is None
    backward(layer, 3.0)
    optimizer.step()

    assert unchanged and cleared and optimizer.updates == 1
    assert torch.equal(layer.weight, before - torch.tensor([[2.0, 4.0]]))


@pytest.mark.parametrize(
    ("dtype", "value"), [(torch.float32, 1.0 + 2**-10), (torch.bfloat16, 1.0), (None, 1 + 2**-10)]
)
def test_gradients_are_accumulated_in_the_chosen_dtype(
    dtype: torch.dtype | None, value: float
) -> None:
    """bfloat16 has eight bits, too few for 1 + 2⁻¹⁰."""
    seen: list[Tensor] = []

    def record(gradient: Tensor, parameter: nn.Parameter) -> Tensor:
        seen.append(gradient)
        return gradient.to(parameter.dtype)

    layer, optimizer = make(2, accumulator_dtype=dtype, map_gradient=record)
    for _ in range(2):
        backward(layer, 1.0 + 2**-10)
        optimizer.step()

    assert seen[0].dtype == (dtype or torch.float32)
    assert seen[0].tolist() == [[value, 2 * value]]


def test_a_step_runs_in_a_loop() -> None:
    """The accumulation wrappers of the guide are used inside of its loops."""
    layer, optimizer = make(2)
    before = layer.weight.detach().clone()

    def body(steps: Tensor, value: Tensor) -> Tensor:
        backward(layer, float(value))
        optimizer.step()
        return steps + 1

    steps = convoy.repeat(4, body, [0], convoy.Infeed([1.0, 3.0, 0.0, 0.0]))

    assert steps == 4 and optimizer.updates == 2
    torch.testing.assert_close(layer.weight, before - torch.tensor([[2.0, 4.0]]) * 1.9)


def test_gradients_that_were_not_accumulated_can_be_cleared() -> None:
    layer, optimizer = make(1)
    before = layer.weight.detach().clone()
    backward(layer, 100.0)
    optimizer.zero_grad()
    backward(layer, 1.0)
    optimizer.step()

    assert torch.equal(layer.weight, before - torch.tensor([[1.0, 2.0]]))


@pytest.mark.parametrize("offload", [False, True])
def test_saved_state_continues_with_the_same_bits(offload: bool) -> None:
    layer, optimizer = make(1, offload_optimizer=offload)
    backward(layer, 1.0)
    optimizer.step()
    copied, restored = make(1, offload_optimizer=offload)
    copied.load_state_dict({name: item.clone() for name, item in layer.state_dict().items()})
    state = {name: item.clone() for name, item in optimizer.state_dict()["state"][0].items()}
    restored.load_state_dict({**optimizer.state_dict(), "state": {0: state}})
    for model, chosen in ((layer, optimizer), (copied, restored)):
        backward(model, 2.0)
        chosen.step()

    assert torch.equal(layer.weight, copied.weight)


def accumulate_then_save() -> None:
    layer, optimizer = make(2)
    backward(layer, 1.0)
    optimizer.step()
    optimizer.state_dict()


def step_without_backward() -> None:
    make(1)[1].step()


def map_to(result: Any) -> None:
    layer, optimizer = make(1, map_gradient=lambda *_: result)
    backward(layer, 1.0)
    optimizer.step()


# Section 5: rule → call, error, facts in its message.
RULES: dict[str, tuple[Callable[[], Any], type[Exception], list[str]]] = {
    "num_mini_batches < 1": (
        lambda: make(0),
        ValueError,
        ["gradient_accumulation", "0"],
    ),
    "num_mini_batches is no integer": (
        lambda: make(1.5),  # type: ignore[arg-type]
        TypeError,
        ["gradient_accumulation", "1.5"],
    ),
    "wrapping something else": (
        lambda: convoy.DistributedOptimizer(nn.Linear(1, 1)),  # type: ignore[arg-type]
        TypeError,
        ["Optimizer", "Linear"],
    ),
    "not together with a pipeline": (
        lambda: convoy.pipeline(
            [lambda x: x, lambda x: x],
            gradient_accumulation=4,
            optimizer=make()[1],  # type: ignore[arg-type]
            loss_fn=torch.sum,
        ),
        TypeError,
        ["optimizer", "DistributedOptimizer"],
    ),
    "unknown reduction_method": (
        lambda: make(reduction="median"),
        ValueError,
        ["reduction", "'median'", "'running-mean'"],
    ),
    "dtype is no dtype": (
        lambda: make(accumulator_dtype="float32"),
        TypeError,
        ["accumulator_dtype", "'float32'"],
    ),
    "dtype function returns no dtype": (
        lambda: make(accumulator_dtype=lambda _: "float32"),
        TypeError,
        ["accumulator_dtype", "'float32'"],
    ),
    "dtype is no floating-point type": (
        lambda: make(accumulator_dtype=torch.int64),
        ValueError,
        ["accumulator_dtype", "int64"],
    ),
    "fn of MapGradientOptimizer is no function": (
        lambda: make(map_gradient=3),
        TypeError,
        ["map_gradient", "int"],
    ),
    "fn of MapGradientOptimizer returns no tensor": (
        lambda: map_to(None),
        TypeError,
        ["map_gradient", "NoneType"],
    ),
    "fn of MapGradientOptimizer returns another shape": (
        lambda: map_to(torch.zeros(3)),
        ValueError,
        ["map_gradient", "(3,)", "(1, 2)"],
    ),
    "state in the middle of an accumulation": (accumulate_then_save, ValueError, ["1 of 2"]),
    "a parameter without a gradient": (step_without_backward, ValueError, ["1 of 1", "(1, 2)"]),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_raises_its_error(rule: str) -> None:
    action, error, facts = RULES[rule]

    with pytest.raises(error) as raised:
        action()

    assert all(fact in str(raised.value) for fact in facts), str(raised.value)
