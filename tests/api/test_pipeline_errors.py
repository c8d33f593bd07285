"""Every error of section 6 of the guide, "Pipeline operation", and those of our own arguments."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import convoy
from convoy.data.infeed import InfeedExhaustedError

FIRST, EXTRA, LAST = nn.Linear(2, 4), nn.Linear(2, 4), nn.Linear(4, 1)
DATA = torch.arange(64.0).reshape(32, 2)


def identity(value: Tensor) -> Tensor:
    return value


def mean(value: Tensor) -> Tensor:
    return value.mean()


def sgd(*modules: nn.Module) -> torch.optim.SGD:
    weights = [weight for module in modules for weight in module.parameters()]
    return torch.optim.SGD(weights or [*FIRST.parameters(), *LAST.parameters()], lr=0.1)


def train(stages: Any = None, **options: Any) -> convoy.Pipeline:
    """A pipeline that trains, with some arguments replaced."""
    settings: dict[str, Any] = {
        "infeed": convoy.Infeed(DATA),
        "gradient_accumulation": 4,
        "optimizer": sgd(),
        "loss_fn": mean,
    }
    return convoy.pipeline([FIRST, LAST] if stages is None else stages, **{**settings, **options})


def infer(stages: Any = None, **options: Any) -> convoy.Pipeline:
    """A pipeline without an optimizer, with some arguments replaced."""
    settings = {"optimizer": None, "loss_fn": None, "outfeed": convoy.Outfeed()}
    return train(stages, **{**settings, **options})


def run(pipeline: convoy.Pipeline, *inputs: Any) -> None:
    pipeline(*inputs)


def call_with(*inputs: Any, later: tuple[Any, ...] | None = None) -> None:
    pipeline = infer([lambda scale, value: scale * value, identity])
    pipeline(*inputs)
    if later is not None:
        pipeline(*later)


def stage_with(function: Callable[[Tensor], Any], modules: Any = LAST) -> None:
    """Train with this function as the first of two stages."""
    train([function, lambda value: modules(value)], optimizer=sgd(FIRST, LAST))()


STRAY = torch.ones(3, 2)


class Unregistered(nn.Module):
    """A module with a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.ones(7, 1, 2)

    def forward(self, value: Tensor) -> Tensor:
        return (value * self.scale)[0, 0]


def add_without_grad(value: Tensor) -> Tensor:
    with torch.no_grad():
        FIRST.weight.add_(1)
    return FIRST(value)  # type: ignore[no-any-return]


def add_to_data(value: Tensor) -> Tensor:
    FIRST.bias.data.add_(1)
    return FIRST(value)  # type: ignore[no-any-return]


def add_in_place(value: Tensor) -> Tensor:
    FIRST.weight.add_(1)
    return FIRST(value)  # type: ignore[no-any-return]


Rule = tuple[Callable[[], Any], type[Exception], list[str]]

# The rule of the guide → the call that breaks it, the error, facts in its message.
STAGES: dict[str, Rule] = {
    "fewer than 2 stages": (lambda: train([FIRST]), ValueError, ["at least 2"]),
    "no list of stages": (lambda: train(FIRST), ValueError, ["at least 2"]),
    "a stage is no function": (lambda: train([FIRST, 3]), TypeError, ["stage 1", "int"]),
    "a stage takes other arguments": (
        lambda: infer([lambda a: (a, a), identity])(),
        TypeError,
        ["stage 1", "(value)", "(2,) float32, (2,) float32"],
    ),
    "a stage takes other keywords": (
        lambda: infer([lambda a: {"left": a}, lambda right: right])(),
        TypeError,
        ["stage 1", "(right)", "left=(2,) float32"],
    ),
    "stage 0 does not take the element": (
        lambda: infer([lambda: DATA, identity])(),
        TypeError,
        ["stage 0", "nothing", "(2,) float32"],
    ),
    "stage 0 needs an infeed": (
        lambda: infer(infeed=None)(),
        TypeError,
        ["stage 0", "input", "nothing"],
    ),
    "a stage returns a number": (
        lambda: infer([identity, lambda _: 3.5])(),
        TypeError,
        ["stage 1", "float"],
    ),
    "a stage returns nested tuples": (
        lambda: infer([lambda a: (a, (a, a)), identity])(),
        TypeError,
        ["stage 0", "tuple"],
    ),
    "a stage returns nested dictionaries": (
        lambda: infer([lambda a: {"a": {"b": a}}, identity])(),
        TypeError,
        ["stage 0", "dict"],
    ),
    "a stage captures a tensor": (
        lambda: infer([identity, lambda a: a + STRAY])(),
        ValueError,
        ["stage 1", "(3, 2)", "inputs"],
    ),
    "a stage captures a tensor of its module": (
        lambda: infer([identity, Unregistered()])(),
        ValueError,
        ["stage 1", "(7, 1, 2)"],
    ),
    "a stage modifies a parameter": (
        lambda: stage_with(add_without_grad),
        ValueError,
        ["stage 0", "parameter", "(4, 2)"],
    ),
    "a stage modifies the data of a parameter": (
        lambda: stage_with(add_to_data),
        ValueError,
        ["stage 0", "parameter", "(4,)"],
    ),
    "a stage modifies a parameter with gradients": (
        lambda: stage_with(add_in_place),
        ValueError,
        ["stage 0", "parameter"],
    ),
    "a stage modifies its argument": (
        lambda: infer([lambda a: a.mul_(2), identity])(),
        ValueError,
        ["stage 0", "argument", "(2,)"],
    ),
    "a stage modifies an argument with gradients": (
        lambda: train([FIRST, nn.Sequential(nn.ReLU(inplace=True), LAST)])(),
        ValueError,
        ["stage 1", "argument"],
    ),
}

ARGUMENTS: dict[str, Rule] = {
    "gradient_accumulation_count is None": (
        lambda: train(gradient_accumulation=None),
        ValueError,
        ["gradient_accumulation", "required"],
    ),
    "gradient_accumulation_count is negative": (
        lambda: train(gradient_accumulation=-1),
        ValueError,
        ["gradient_accumulation", "-1"],
    ),
    "gradient_accumulation_count beyond int32": (
        lambda: train(gradient_accumulation=2**31),
        ValueError,
        ["gradient_accumulation", str(2**31)],
    ),
    "gradient_accumulation_count is no integer": (
        lambda: train(gradient_accumulation=4.0),
        TypeError,
        ["gradient_accumulation", "4.0"],
    ),
    "grouped: no multiple of 2S": (
        lambda: train(gradient_accumulation=6),
        ValueError,
        ["grouped", "2 stages", "multiple of 4", "6", "4 or 8"],
    ),
    "grouped: less than 2S": (
        lambda: train([identity, FIRST, LAST], gradient_accumulation=4),
        ValueError,
        ["grouped", "3 stages", "multiple of 6", "4"],
    ),
    "interleaved: no multiple of S": (
        lambda: train(gradient_accumulation=3, schedule="interleaved"),
        ValueError,
        ["interleaved", "multiple of 2", "3"],
    ),
    "1f1b: less than S": (
        lambda: train(gradient_accumulation=1, schedule="1f1b"),
        ValueError,
        ["1f1b", "at least 2", "1"],
    ),
    "inference: no multiple of S": (
        lambda: infer(gradient_accumulation=3),
        ValueError,
        ["grouped", "multiple of 2", "3"],
    ),
    "gradient_accumulation_dtype is no dtype": (
        lambda: train(accumulator_dtype="float16"),
        TypeError,
        ["accumulator_dtype", "'float16'"],
    ),
    "gradient_accumulation_dtype returns no dtype": (
        lambda: train(accumulator_dtype=lambda _: 16)(),
        TypeError,
        ["accumulator_dtype", "16"],
    ),
    "gradient_accumulation_dtype is an integer type": (
        lambda: train(accumulator_dtype=torch.int32)(),
        ValueError,
        ["accumulator_dtype", "int32"],
    ),
    "repeat_count below 1": (lambda: train(repeat_count=0), ValueError, ["repeat_count", "0"]),
    "repeat_count is no integer": (
        lambda: train(repeat_count=1.5),
        TypeError,
        ["repeat_count", "1.5"],
    ),
    "batch_serialization_iterations": (
        lambda: train(batch_serialization_iterations=2),
        NotImplementedError,
        ["batch_serialization_iterations"],
    ),
    "inputs are no tensors": (lambda: call_with("a"), TypeError, ["'a'"]),
    "inputs are nested": (lambda: call_with((1, 2)), TypeError, ["argument 0"]),
    "inputs change their number": (
        lambda: call_with(1.0, later=()),
        TypeError,
        ["[() float32]", "[]"],
    ),
    "inputs change their dtype": (
        lambda: call_with(1.0, later=(1,)),
        TypeError,
        ["float32", "int64"],
    ),
    "infeed_queue of another type": (lambda: train(infeed=DATA), TypeError, ["Infeed", "Tensor"]),
    "outfeed_queue of another type": (lambda: infer(outfeed=[]), TypeError, ["Outfeed", "list"]),
    "outputs without an outfeed_queue": (
        lambda: infer(outfeed=None)(),
        ValueError,
        ["outfeed", "last stage"],
    ),
    "device_mapping of another length": (
        lambda: train(device_mapping=[0]),
        ValueError,
        ["device_mapping", "1 entries", "2 stages"],
    ),
    "device_mapping without a device": (
        lambda: train(device_mapping=[0, 2]),
        ValueError,
        ["device_mapping", "[0, 2]"],
    ),
    "device_mapping with a negative device": (
        lambda: train(device_mapping=[0, -1]),
        ValueError,
        ["device_mapping", "[-1, 0]"],
    ),
    "device_mapping of another type": (
        lambda: train(device_mapping=["cpu", "cpu"]),
        TypeError,
        ["device_mapping", "'c'"],
    ),
    "stages on two devices share a variable": (
        lambda: train([FIRST, lambda a: LAST(FIRST(a[..., :2]))])(),
        ValueError,
        ["stage 0", "stage 1", "(4, 2)", "devices 0 and 1", "device_mapping"],
    ),
    "interleaved repeats a device": (
        lambda: train(schedule="interleaved", device_mapping=[0, 0]),
        NotImplementedError,
        ["interleaved", "device 0"],
    ),
    "pipeline_schedule of another type": (
        lambda: train(schedule=1),
        TypeError,
        ["schedule", "int"],
    ),
    "pipeline_schedule is unknown": (
        lambda: train(schedule="grouping"),
        ValueError,
        ["'grouping'", "grouped"],
    ),
    "recomputation_mode is unknown": (
        lambda: train(recompute="always"),
        ValueError,
        ["recompute", "'always'", "'stage'", "'segments'"],
    ),
    "RecomputeThenBackpropagate with sequential": (
        lambda: train(recompute="stage", schedule="sequential"),
        ValueError,
        ["'stage'", "sequential"],
    ),
    "RecomputeAndBackpropagateInterleaved with interleaved": (
        lambda: train(recompute="segments", schedule="interleaved"),
        ValueError,
        ["'segments'", "interleaved"],
    ),
    "a recomputation with a split backward pass": (
        lambda: train(recompute="stage", schedule="zero-bubble"),
        ValueError,
        ["'stage'", "zero-bubble"],
    ),
    "recomputation checkpoints without segments": (
        lambda: train(recompute="stage", recompute_checkpoints=["0"]),
        ValueError,
        ["recompute_checkpoints", "'segments'"],
    ),
    "unknown recomputation checkpoints": (
        lambda: train(
            [FIRST, nn.Sequential(LAST)], recompute="segments", recompute_checkpoints=["conv"]
        ),
        ValueError,
        ["'conv'", "are 0"],
    ),
    "continuous_weight_updates": (
        lambda: train(continuous_weight_updates=True),
        NotImplementedError,
        ["continuous_weight_updates"],
    ),
    "replicated_weight_sharding": (
        lambda: train(replicated_weight_sharding=True),
        NotImplementedError,
        ["replicated_weight_sharding"],
    ),
    "offload_weights": (
        lambda: train(offload_weights=True),
        NotImplementedError,
        ["offload_weights"],
    ),
    "more replicas than processes": (
        lambda: train(replicas=2),
        convoy.ConvoyError,
        ["1 processes", "2 replicas", "2 devices"],
    ),
    "unknown argument": (lambda: train(reductoin="sum"), TypeError, ["reductoin", "reduction"]),
}

RESULTS: dict[str, Rule] = {
    "outfeed_loss without an optimizer_function": (
        lambda: infer(outfeed_loss=True),
        ValueError,
        ["outfeed_loss", "optimizer"],
    ),
    "outfeed_loss without an outfeed": (
        lambda: train(outfeed_loss=True),
        ValueError,
        ["outfeed_loss", "outfeed"],
    ),
    "outfeed_loss with outfeed_mask": (
        lambda: train(outfeed=convoy.Outfeed(), outfeed_loss=True, outfeed_mask=[True]),
        ValueError,
        ["outfeed_loss", "outfeed_mask"],
    ),
    "outfeed_mask without an optimizer_function": (
        lambda: infer(outfeed_mask=[True]),
        ValueError,
        ["outfeed_mask", "optimizer"],
    ),
    "outfeed_mask without an outfeed": (
        lambda: train(outfeed_mask=[True]),
        ValueError,
        ["outfeed_mask", "outfeed"],
    ),
    "outfeed_mask of another length": (
        lambda: train(outfeed=convoy.Outfeed(), outfeed_mask=[True, False])(),
        ValueError,
        ["outfeed_mask", "2 entries", "1 tensors"],
    ),
    "accumulate_outfeed without an outfeed": (
        lambda: train(accumulate_outfeed=True),
        ValueError,
        ["accumulate_outfeed", "outfeed"],
    ),
    "accumulate_outfeed in mode LAST": (
        lambda: train(outfeed=convoy.Outfeed("last"), accumulate_outfeed=True),
        ValueError,
        ["accumulate_outfeed", "'all'"],
    ),
    "accumulate_outfeed_dtype is no dtype": (
        lambda: infer(accumulate_outfeed=True, accumulate_outfeed_dtype="float32"),
        TypeError,
        ["accumulate_outfeed_dtype", "'float32'"],
    ),
    "accumulate_outfeed_dtype returns no dtype": (
        lambda: infer(accumulate_outfeed=True, accumulate_outfeed_dtype=lambda _: 3)(),
        TypeError,
        ["accumulate_outfeed_dtype", "3"],
    ),
    "accumulate_outfeed_dtype without accumulate_outfeed": (
        lambda: infer(accumulate_outfeed_dtype=torch.float64),
        ValueError,
        ["accumulate_outfeed_dtype"],
    ),
    "reduction_method is unknown": (
        lambda: train(reduction="median"),
        ValueError,
        ["reduction", "'median'", "'mean'", "'sum'", "'running-mean'"],
    ),
}

OPTIMIZER: dict[str, Rule] = {
    "opt is no optimizer": (
        lambda: train(optimizer=FIRST),
        TypeError,
        ["optimizer", "Linear"],
    ),
    "the optimizer_function is no function": (
        lambda: train(loss_fn=3),
        TypeError,
        ["loss_fn", "int"],
    ),
    "an optimizer without a loss": (lambda: train(loss_fn=None), ValueError, ["loss_fn"]),
    "a loss without an optimizer": (lambda: train(optimizer=None), ValueError, ["optimizer"]),
    "loss is no tensor": (lambda: train(loss_fn=lambda _: 0.5)(), TypeError, ["loss_fn", "float"]),
    "loss is a vector": (
        lambda: train(loss_fn=lambda value: value.expand(2))(),
        ValueError,
        ["loss_fn", "(2,)"],
    ),
    "loss is an integer": (
        lambda: train(loss_fn=lambda value: value.long())(),
        ValueError,
        ["loss_fn", "int64"],
    ),
    "loss does not depend on a parameter": (
        lambda: train(loss_fn=lambda value: value.detach().mean())(),
        ValueError,
        ["loss", "parameter"],
    ),
    "loss depends on some parameters only": (
        lambda: train(
            [lambda a: FIRST(a) + EXTRA(a).detach(), LAST], optimizer=sgd(FIRST, EXTRA, LAST)
        )(),
        ValueError,
        ["2 of 4 parameters", "(4, 2)", "gradient"],
    ),
    "variables of the optimizer that no stage uses": (
        lambda: train(optimizer=sgd(FIRST, LAST, nn.Linear(3, 5)))(),
        ValueError,
        ["2 parameters", "(5, 3)"],
    ),
    "map_gradient is no function": (
        lambda: train(map_gradient=0.1),
        TypeError,
        ["map_gradient", "float"],
    ),
    "a dataset that is too short": (
        lambda: run(train(infeed=convoy.Infeed(DATA[:7]), repeat_count=2)),
        InfeedExhaustedError,
        ["7 elements"],
    ),
}

# Names of the guide that are others here.
NAMES = {
    "computational_stages": "stages",
    "gradient_accumulation_count": "gradient_accumulation",
    "gradient_accumulation_dtype": "accumulator_dtype",
    "infeed_queue": "infeed",
    "outfeed_queue": "outfeed",
    "inputs": "call",
    "optimizer_function": "loss_fn",
    "pipeline_schedule": "schedule",
    "recomputation_mode": "recompute",
    "offload_weight_update_variables": "offload_optimizer",
    "replicated_optimizer_state_sharding": "shard_optimizer",
    "offload_gradient_accumulation_buffers": "offload_accumulators",
    "reduction_method": "reduction",
    "forward_propagation_stages_poplar_options": "compiler",
    "backward_propagation_stages_poplar_options": "compiler",
    "weight_update_poplar_options": "compiler",
    "name": "name",
}
RULES = {**STAGES, **ARGUMENTS, **RESULTS, **OPTIMIZER}


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_raises_its_error(rule: str) -> None:
    action, error, facts = RULES[rule]
    before = [weight.detach().clone() for weight in (*FIRST.parameters(), *LAST.parameters())]

    with pytest.raises(error) as raised:
        action()

    assert all(fact in str(raised.value) for fact in facts), str(raised.value)
    after = (*FIRST.parameters(), *LAST.parameters())
    assert rule == "a dataset that is too short" or all(map(torch.equal, before, after))


@pytest.mark.parametrize("name", NAMES)
def test_an_argument_of_the_guide_is_refused_with_its_name_here(name: str) -> None:
    with pytest.raises(TypeError) as raised:
        train(**{name: None})

    assert f"no argument {name};" in str(raised.value) and NAMES[name] in str(raised.value)


def test_the_rules_for_counts_allow_what_fits() -> None:
    for schedule, counts in {
        "grouped": (4, 8),
        "interleaved": (2, 4, 6),
        "1f1b": (2, 3, 5),
        "sequential": (1, 2, 3),
        "zero-bubble": (2, 3),
    }.items():
        for count in counts:
            train(schedule=schedule, gradient_accumulation=count)
    for schedule, counts in {"grouped": (2, 4), "interleaved": (2,), "1f1b": (1, 3)}.items():
        for count in counts:
            infer(schedule=schedule, gradient_accumulation=count)
