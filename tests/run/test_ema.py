"""EMA of a network: which tensors it has, how it is validated, and which checkpoints fit."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from convoy.checkpoint.format import CheckpointContents
from convoy.config.schema import build_config
from convoy.config.sections.outputs import AverageConfig
from convoy.errors import CheckpointError
from convoy.events import Validated
from convoy.numerics.flat import FlatParameters
from convoy.numerics.precision import BFLOAT16, FLOAT32, DtypePolicy, FloatFormat
from convoy.optim.ema import ExponentialMovingAverage
from convoy.optim.optimizer import Optimizer
from convoy.optim.update_rules import make_update_rule
from convoy.planning.plan import plan_run
from convoy.run.network import Network, build_network, freeze
from convoy.run.state import check_fits
from convoy.run.validation import with_ema

CONFIG = build_config({"model": "resnet8", "image_size": 12, "samples": 64, "micro_batch_size": 8})
PLAN = plan_run(CONFIG)


def make_network(*frozen: str) -> Network:
    network = build_network(PLAN.network, 0, torch.device("cpu"))
    freeze(network, frozen)
    return network


def make_average(
    network: Network, decay: float = 0.5, policy: DtypePolicy | None = None
) -> ExponentialMovingAverage:
    weights = FlatParameters(network.slice.named_weights())
    optimizer = Optimizer(weights, make_update_rule(CONFIG.optimizer, 1), policy=policy)
    config = replace(CONFIG, average=AverageConfig(ema_decay=decay))
    return ExponentialMovingAverage(config.average.ema_decay, [optimizer], network.tensors())


def add_one_to_weights(network: Network) -> None:
    with torch.no_grad():
        for tensor in network.tensors().values():
            tensor.add_(1.0)


def test_the_ema_starts_with_the_first_update_and_its_statistics():
    network = make_network()
    average = make_average(network)

    assert not average.started and average.named_averages() == {}
    add_one_to_weights(network)
    average.update()
    assert average.started
    assert torch.equal(
        average.named_averages()["bn1.running_mean"], network.tensors()["bn1.running_mean"]
    )


def test_no_ema_is_computed_without_a_decay():
    average = make_average(make_network(), decay=0.0)
    average.update()
    average.load_averages({"fc.weight": torch.zeros(1)})

    assert not average.started and average.named_averages() == {}


def test_every_tensor_has_an_ema_even_if_frozen():
    network = make_network("conv1", "bn1")
    average = make_average(network)
    for _ in range(3):
        average.update()
    live, found = network.tensors(), average.named_averages()

    assert found.keys() == live.keys()
    assert all(torch.equal(found[name], live[name]) for name in live)


def validated(loss: float) -> Validated:
    return Validated(3, 1.0, 0.1, 0.5, loss, 10, 1.0, 10.0)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16])
def test_the_ema_is_validated_in_the_dtype_of_the_network_without_changing_it(
    dtype: FloatFormat,
):
    network = make_network()
    average = make_average(network, policy=DtypePolicy(compute=dtype))
    for _ in range(2):
        add_one_to_weights(network)
        average.update()
    before = {name: tensor.clone() for name, tensor in network.tensors().items()}
    seen: list[Tensor] = []

    def measure(*_: float) -> Validated:
        seen.append(network.tensors()["fc.weight"].clone())
        return validated(loss=float(len(seen)))

    result = with_ema(measure, average, 3, 1.0)
    expected = dtype.round_nearest(average.named_averages()["fc.weight"])

    assert torch.equal(seen[0], before["fc.weight"])
    assert torch.equal(seen[1], expected)
    assert not torch.equal(seen[1], seen[0])
    assert (result.loss, result.average_loss) == (1.0, 2.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.tensors().items())


def test_weights_without_an_ema_are_validated_once():
    result = with_ema(lambda *_: validated(0.7), make_average(make_network()), 3, 1.0)

    assert result == validated(0.7)


def test_weights_are_restored_when_validation_fails():
    network = make_network()
    average = make_average(network)
    average.update()
    add_one_to_weights(network)
    before = network.tensors()["fc.weight"].clone()
    calls: list[int] = []

    def measure(update: int, _: float) -> Validated:
        calls.append(update)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return validated(0.7)

    with pytest.raises(KeyboardInterrupt):
        with_ema(measure, average, 3, 1.0)

    assert torch.equal(network.tensors()["fc.weight"], before)


def test_an_ema_of_another_network_is_refused_if_the_run_has_an_ema():
    network = make_network()
    optimizer = Optimizer(
        FlatParameters(network.slice.named_weights()), make_update_rule(CONFIG.optimizer, 1)
    )
    meter = {"loss": 0.0, "right": 0, "micro_batches": 0, "samples": 0}
    contents = CheckpointContents(
        model=network.tensors(),
        optimizer=optimizer.named_state(),
        averages={"fc.weight": torch.zeros(3, 3)},
        state={"update": 3, "meter": meter},
    )
    config_with_ema = replace(CONFIG, average=AverageConfig(ema_decay=0.9))

    check_fits(PLAN, contents)  # without a decay, averages are not checked
    with pytest.raises(CheckpointError, match="does not match this average"):
        check_fits(plan_run(config_with_ema), contents)
