"""Pipelines of the user's own stages in one process; see test_pipeline_distributed for several."""

from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.user_pipelines import (
    Case,
    Chain,
    Outcome,
    make_data,
    make_optimizer,
    make_pipeline,
    run_once,
    same_arrays,
    train,
    train_plainly,
)
from torch import Tensor, nn

import convoy
from convoy.engine.offload import ActivationOffload
from convoy.optim.optimizer import MmapStorage


@pytest.fixture(scope="module")
def reference() -> Outcome:
    torch.set_num_threads(1)
    return train(None, Case())


@pytest.mark.parametrize(
    ("reduction", "scale"), [("mean", 0.25), ("running-mean", 0.25), ("sum", 1.0)]
)
def test_a_pipeline_trains_like_a_plain_loop(reduction: str, scale: float) -> None:
    expected, network, outfeed = Chain(dropout=0), Chain(dropout=0), convoy.Outfeed()
    losses = train_plainly(expected, 3, 4, scale)

    convoy.pipeline(
        network.stages(),
        convoy.Infeed(make_data()),
        outfeed,
        gradient_accumulation=4,
        optimizer=make_optimizer("momentum", network),
        loss_fn=F.cross_entropy,
        reduction=reduction,
        repeat_count=3,
        outfeed_loss=True,
    )()

    assert outfeed.dequeue().tolist() == pytest.approx(losses, rel=1e-4)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


def dtype_of(parameter: Tensor) -> torch.dtype:
    return parameter.dtype


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "interleaved"},
        {"schedule": "1f1b"},
        {"schedule": "sequential"},
        {"schedule": "zero-bubble"},
        {"device_mapping": [0, 0]},
        {"device_mapping": [1, 0]},
        {"recompute": "stage"},
        {"recompute": "stage", "schedule": "interleaved"},
        {"recompute": "segments"},
        {"recompute": "segments", "schedule": "sequential"},
        {"offload_optimizer": True},
        {"offload_activations": True},
        {"offload_activations": True, "recompute": "stage"},
        {"offload_accumulators": True},
        {"shard_optimizer": True},
        {"accumulator_dtype": dtype_of},
    ],
    ids=" ".join,
)
def test_weights_and_results_do_not_depend_on_how_a_pipeline_runs(
    options: dict[str, Any], reference: Outcome
) -> None:
    outcome = train(None, Case(options=options))

    assert outcome.same_weights(reference)
    assert same_arrays(outcome.results, reference.results)


def test_repeated_updates_are_those_of_repeated_calls(reference: Outcome) -> None:
    outcome = train(None, Case(calls=1, options={"repeat_count": 2}))

    assert outcome.same_weights(reference) and outcome.position == reference.position == 8


def test_adam_has_the_same_state_where_it_is_stored() -> None:
    cases = [Case(optimizer="adam", options={"offload_optimizer": on}) for on in (False, True)]
    left, right = (train(None, case) for case in cases)

    assert left.same_weights(right) and left.state_elements == right.state_elements > 0


class Sequential(nn.Module):
    """Stages that are nn.Sequential modules, and count their forward passes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(), nn.Linear(8, 8)
        )
        self.second = nn.Sequential(nn.Tanh(), nn.Linear(8, 1))
        self.passes = 0
        for layer in self.first:
            layer.register_forward_hook(self._count)

    def _count(self, *_: object) -> None:
        self.passes += 1

    def run(self, **options: Any) -> "Sequential":
        torch.manual_seed(5)
        convoy.pipeline(
            [self.first, self.second],
            convoy.Infeed(make_data()[0]),
            gradient_accumulation=4,
            optimizer=torch.optim.SGD(self.parameters(), lr=0.1),
            loss_fn=lambda value: value.square().mean(),
            **options,
        )()
        return self


@pytest.mark.parametrize("names", [[], ["1"], ["0", "2", "3"], ["4"]], ids=str)
def test_recomputed_segments_give_the_same_bits(names: list[str]) -> None:
    expected = Sequential().run()

    network = Sequential().run(recompute="segments", recompute_checkpoints=names)

    state = network.state_dict()
    assert all(torch.equal(state[name], item) for name, item in expected.state_dict().items())
    # One micro-batch shows the shapes. Each of four runs forward twice, perhaps without the last
    # layer of a segment, whose output nothing needs.
    assert expected.passes == 5 * (1 + 4)
    assert network.passes > expected.passes + 4 * (5 - len({*names, "4"}) - 1)


class Counter(nn.Module):
    """Counts the micro-batches, in place or with a new buffer."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("count", torch.zeros(()))
        self.linear = nn.Linear(6, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        count = self.get_buffer("count")
        self.count = count.add_(1) if self.in_place else count + 1
        return self.linear(inputs)


def train_small(stages: list[nn.Module], **options: Any) -> list[nn.Module]:
    weights = [weight for stage in stages for weight in stage.parameters()]
    convoy.pipeline(
        stages,
        convoy.Infeed(make_data()[0]),
        gradient_accumulation=4,
        optimizer=torch.optim.SGD(weights, lr=0.1),
        loss_fn=lambda outputs: outputs.square().mean(),
        **options,
    )()
    return stages


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("recompute", [None, "stage", "segments"])
def test_buffers_change_once_for_each_micro_batch(recompute: str | None, in_place: bool) -> None:
    counter = Counter(in_place)

    train_small([counter, nn.Linear(4, 1)], recompute=recompute)

    assert counter.get_buffer("count") == 4


@pytest.mark.parametrize("recompute", [None, "stage", "segments"])
def test_an_activation_used_twice_is_recomputed_twice(recompute: str | None) -> None:
    def weights(activations: list[nn.Module], **options: Any) -> list[Tensor]:
        torch.manual_seed(0)
        first, second, last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)
        stage = nn.Sequential(first, activations[0], second, activations[1])
        train_small([stage, last], **options)
        return [*stage.parameters(), *last.parameters()]

    shared = weights([nn.Tanh()] * 2, recompute=recompute)

    assert all(map(torch.equal, shared, weights([nn.Tanh(), nn.Tanh()])))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_pipeline_trains_where_gradients_are_disabled(mode: Any) -> None:
    pipeline, _, network = make_pipeline()
    normal, _, expected = make_pipeline()
    normal()

    with mode():
        pipeline()
        assert not torch.is_grad_enabled()

    assert all(map(torch.equal, expected.parameters(), network.parameters()))


def test_offload_options_move_tensors_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    elements: list[int] = []
    zeros = MmapStorage.zeros

    def record(storage: MmapStorage, count: int, like: Tensor) -> Tensor:
        elements.append(count)
        return zeros(storage, count, like)

    monkeypatch.setattr(MmapStorage, "zeros", record)
    counts = {}
    for name in ("offload_optimizer", "offload_activations", "offload_accumulators", "outfeed"):
        elements.clear()
        train(None, Case(options={} if name == "outfeed" else {name: True}))
        counts[name] = len(elements)

    assert counts["outfeed"] == 0
    assert counts["offload_optimizer"] == 6  # a momentum for each parameter
    assert counts["offload_activations"] >= 2 and counts["offload_accumulators"] >= 2


def test_offloaded_activations_use_their_memory_again() -> None:
    offload = ActivationOffload()
    layer, data = nn.Linear(6, 256), torch.randn(16, 6)
    for _ in range(3):
        with offload.active():
            output = torch.tanh(layer(data))
        output.sum().backward()
        del output

    assert offload.offloaded_bytes == 3 * 16 * 256 * 4
    assert [len(free) for free in offload._free.values()] == [1]


def make_gradients(**options: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of the weight of the last layer: what the optimizer gets, and each one."""
    network, seen, single = Chain(dropout=0), list[Tensor](), list[Tensor]()

    def record(gradient: Tensor, parameter: nn.Parameter) -> Tensor:
        if parameter is network.second.weight:
            seen.append(gradient.clone())
        return gradient.to(parameter.dtype)

    images, labels = make_data()
    for index in range(4):
        loss = F.cross_entropy(network.second(network.first(images[index])), labels[index])
        single += torch.autograd.grad(loss, [network.second.weight])
    convoy.pipeline(
        network.stages(),
        convoy.Infeed(make_data()),
        gradient_accumulation=4,
        optimizer=make_optimizer("momentum", network),
        loss_fn=F.cross_entropy,
        map_gradient=record,
        **options,
    )()
    return seen, single


def only_matrices(parameter: Tensor) -> torch.dtype | None:
    return torch.bfloat16 if parameter.dim() == 2 else None


@pytest.mark.parametrize(
    ("choice", "dtype"),
    [
        (None, torch.float32),
        (torch.float64, torch.float64),
        (torch.bfloat16, torch.bfloat16),
        (only_matrices, torch.bfloat16),
    ],
)
def test_gradients_are_accumulated_in_the_chosen_dtype(choice: Any, dtype: torch.dtype) -> None:
    (mean,), single = make_gradients(accumulator_dtype=choice)

    a, b, c, d = (gradient.to(dtype) for gradient in single)
    assert mean.dtype == dtype
    assert torch.equal(mean, ((a + b) + (c + d)) / 4)


def test_a_function_chooses_the_dtype_of_each_parameter() -> None:
    dtypes = {}

    def record(gradient: Tensor, parameter: nn.Parameter) -> Tensor:
        dtypes[parameter.dim()] = gradient.dtype
        return gradient.to(parameter.dtype)

    train(None, Case(options={"accumulator_dtype": only_matrices, "map_gradient": record}))

    assert dtypes == {1: torch.float32, 2: torch.bfloat16}


def test_an_optimizer_that_needs_another_dtype_needs_a_cast() -> None:
    def run(**options: Any) -> Outcome:
        return train(None, Case(optimizer="adam", options=options))

    with pytest.raises(RuntimeError, match="dtype"):
        run(accumulator_dtype=torch.bfloat16)
    run(accumulator_dtype=torch.bfloat16, map_gradient=lambda grad, weight: grad.to(weight.dtype))


def test_a_mapped_gradient_is_what_the_optimizer_uses(reference: Outcome) -> None:
    decayed = train(None, Case(options={"map_gradient": lambda grad, weight: grad + 0.1 * weight}))
    doubled = train(None, Case(calls=1, options={"map_gradient": lambda grad, _: 2 * grad}))
    summed = train(None, Case(calls=1, options={"map_gradient": lambda grad, _: grad + grad}))

    assert not decayed.same_weights(reference) and doubled.same_weights(summed)


def test_arguments_of_the_call_reach_the_stages_that_need_them() -> None:
    network, outfeed = Chain(dropout=0), convoy.Outfeed()
    pipeline = convoy.pipeline(
        [
            lambda rate, images, labels: (rate, network.first(images), labels),
            lambda rate, hidden, labels: (rate, F.cross_entropy(network.second(hidden), labels)),
        ],
        convoy.Infeed(make_data()),
        outfeed,
        gradient_accumulation=4,
        optimizer=make_optimizer("momentum", network),
        loss_fn=lambda rate, loss: rate * loss,
    )
    before = network.second.weight.detach().clone()
    pipeline(0.0)
    unchanged = torch.equal(network.second.weight, before)
    pipeline(torch.tensor(1.5))

    rates, losses = outfeed.dequeue()
    assert unchanged and not torch.equal(network.second.weight, before)
    assert rates.tolist() == [0.0] * 4 + [1.5] * 4 and losses.shape == (8,)


def test_an_element_can_be_a_dictionary() -> None:
    images, labels = make_data()
    network, outfeed = Chain(dropout=0), convoy.Outfeed()
    pipeline = convoy.pipeline(
        [lambda scale, *, y, x: (network.first(x) * scale, y), network.leave],
        convoy.Infeed({"x": images, "y": labels}),
        outfeed,
        gradient_accumulation=4,
        optimizer=make_optimizer("momentum", network),
        loss_fn=F.cross_entropy,
    )
    pipeline(1.0)

    assert torch.equal(outfeed.dequeue()[0], run_once()[0])


@pytest.mark.parametrize("schedule", ["grouped", "interleaved", "1f1b", "sequential"])
def test_without_an_optimizer_a_pipeline_runs_inference(schedule: str) -> None:
    options = {"optimizer": None, "loss_fn": None, "schedule": schedule, "repeat_count": 2}
    pipeline, outfeed, network = make_pipeline(gradient_accumulation=2, **options)
    network.eval()
    weights = [weight.detach().clone() for weight in network.parameters()]
    pipeline()

    images, labels = make_data()
    logits, passed_labels = outfeed.dequeue()
    with torch.no_grad():
        expected = [network.second(network.first(images[index])) for index in range(4)]
    assert torch.equal(logits, torch.stack(expected)) and torch.equal(passed_labels, labels[:4])
    assert all(map(torch.equal, network.parameters(), weights)) and not logits.is_inference()


def test_an_inference_pipeline_accumulates_outputs() -> None:
    sums = run_once(optimizer=None, loss_fn=None, accumulate_outfeed=True)

    single = run_once(optimizer=None, loss_fn=None)
    for item, values in zip(sums, single, strict=True):
        torch.testing.assert_close(item, values.sum(0)[None])


def test_the_drawing_shows_every_stage() -> None:
    drawn = make_pipeline()[0].draw().splitlines()
    forward = make_pipeline(optimizer=None, loss_fn=None)[0].draw()

    assert [line.split()[:2] for line in drawn[1:]] == [["stage", "0"], ["stage", "1"]]
    assert "F3 B0" in drawn[1] and "B" not in forward and "F3" in forward


def run_updates(pipeline: convoy.Pipeline, updates: int) -> None:
    for _ in range(updates):
        pipeline()


@pytest.mark.parametrize("offload", [False, True])
def test_a_restored_pipeline_continues_with_the_same_bits(offload: bool) -> None:
    """Weights, optimizer state, the position of the infeed and the number of updates."""

    def make() -> tuple[convoy.Pipeline, Chain, torch.optim.Optimizer, convoy.Infeed]:
        network = Chain()
        torch.manual_seed(6)
        optimizer, infeed = make_optimizer("momentum", network), convoy.Infeed(make_data())
        pipeline = convoy.pipeline(
            network.stages(),
            infeed,
            gradient_accumulation=4,
            optimizer=optimizer,
            loss_fn=F.cross_entropy,
            offload_optimizer=offload,
        )
        return pipeline, network, optimizer, infeed

    first = make()
    run_updates(first[0], 2)
    saved = {
        "network": {name: item.clone() for name, item in first[1].state_dict().items()},
        "optimizer": deepcopy(first[2].state_dict()),
        "infeed": first[3].state_dict(),
        "updates": first[0].updates,
    }
    second = make()
    second[1].load_state_dict(saved["network"])
    second[2].load_state_dict(saved["optimizer"])
    second[3].load_state_dict(saved["infeed"])
    second[0].updates = saved["updates"]
    run_updates(first[0], 2)
    run_updates(second[0], 2)

    state = second[1].state_dict()
    assert saved["updates"] == 2 and first[0].updates == second[0].updates == 4
    assert saved["infeed"] == {"position": 8} and second[3].state_dict() == {"position": 16}
    assert all(torch.equal(state[name], item) for name, item in first[1].state_dict().items())


class Reused(nn.Module):
    """A layer that runs three times in a stage, and one weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.repeated = nn.Linear(6, 6), nn.Linear(6, 6)
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)
        self.right.weight = self.left.weight

    def enter(self, value: Tensor) -> Tensor:
        for _ in range(3):
            value = torch.tanh(self.repeated(value))
        return value

    def leave(self, value: Tensor) -> Tensor:
        return self.right(torch.tanh(self.left(torch.tanh(self.repeated(value)))))  # type: ignore


@pytest.mark.parametrize("schedule", ["grouped", "zero-bubble"])
def test_a_layer_may_run_several_times(schedule: str) -> None:
    expected, network = Reused(), Reused()
    images = make_data()[0]
    for index in range(4):
        hidden = expected.enter(expected.first(images[index]))
        loss = expected.leave(hidden).square().mean() / 4
        loss.backward()  # type: ignore[no-untyped-call]
    torch.optim.SGD(expected.parameters(), lr=1.0).step()

    convoy.pipeline(
        [network.first, lambda value: network.leave(network.enter(value))],
        convoy.Infeed(images),
        gradient_accumulation=4,
        optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        loss_fn=lambda value: value.square().mean(),
        schedule=schedule,
    )()

    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], tensor)


def test_constants_may_be_created_in_a_stage() -> None:
    outfeed = convoy.Outfeed()
    convoy.pipeline(
        [lambda value: value + torch.tensor(3.0), lambda value: value * torch.ones(2)],
        convoy.Infeed(torch.arange(4.0).reshape(2, 2)),
        outfeed,
        gradient_accumulation=2,
    )()

    assert outfeed.dequeue().tolist() == [[3.0, 4.0], [5.0, 6.0]]
