"""The average that a run takes along, piece by piece: when it follows, what it is measured in."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from convoy.assemble.live_average import LiveAverage
from convoy.assemble.network import Network, build_network, freeze, whole
from convoy.assemble.state import refuse_misfit
from convoy.checkpoint.contents import Contents
from convoy.config.schema import build_config
from convoy.config.sections.keeping import AverageConfig
from convoy.engine.update import Gather
from convoy.errors import CheckpointError
from convoy.events import Validated
from convoy.numerics.flat import FlatWeights
from convoy.numerics.kinds import Kind
from convoy.numerics.types import BFLOAT16, FLOAT32, NumberType
from convoy.optim.optimizer import Optimizer
from convoy.optim.rules import rule_of
from convoy.parallel.replicas import Alone
from convoy.plan.plan import plan_run

CONFIG = build_config({"model": "resnet8", "image_size": 12, "samples": 64, "micro_batch_size": 8})
PLAN = plan_run(CONFIG)


def built(*frozen: str) -> Network:
    stage = [whole(PLAN.network)]
    return freeze(build_network(PLAN.network, stage, 0, torch.device("cpu")), frozen)


def averaging(network: Network, decay: float = 0.5, kind: Kind | None = None) -> LiveAverage:
    weights = FlatWeights(network.slice.named_weights())
    optimizer = Optimizer(weights, rule_of(CONFIG.optimizer, 1), kind=kind)
    return LiveAverage(AverageConfig(ema_decay=decay), network, [optimizer], Alone())


def as_they_are(statistics: Tensor) -> Tensor:
    return statistics


def shift(network: Network) -> None:
    with torch.no_grad():
        for one in network.tensors().values():
            one.add_(1.0)


def test_it_follows_when_an_update_ends_and_sees_its_statistics():
    network = built()
    average = averaging(network)
    before = network.tensors()["bn1.running_mean"].clone()
    end = average.behind(lambda _: shift(network))

    assert not average.begun and average.named() == {}
    end(as_they_are)
    assert average.begun
    assert torch.equal(average.named()["bn1.running_mean"], before + 1)


def test_an_update_that_is_skipped_never_comes_to_its_end_and_is_not_followed():
    network = built()
    average = averaging(network)
    end = average.behind(lambda _: None)
    before = network.tensors()["fc.weight"].clone()
    end(as_they_are)
    shift(network)  # by an update that does not end

    assert torch.equal(average.named()["fc.weight"], before)


def test_without_a_decay_an_update_ends_as_it_did():
    average = averaging(built(), decay=0.0)

    def absorb(_: Gather) -> None:
        """Nothing waits."""

    assert average.behind(absorb) is absorb
    assert not average.begun


def test_every_tensor_of_a_network_has_its_average_frozen_ones_too():
    network = built("conv1", "bn1")
    average = averaging(network)
    end = average.behind(lambda _: None)
    for _ in range(3):
        end(as_they_are)
    live, found = network.tensors(), average.named()

    assert found.keys() == live.keys()
    assert all(torch.equal(found[name], live[name]) for name in live)


def validated(loss: float) -> Validated:
    return Validated(3, 1.0, 0.1, 0.5, loss, 10, 1.0, 10.0)


@pytest.mark.parametrize("used", [FLOAT32, BFLOAT16])
def test_the_average_is_measured_in_the_numbers_of_the_network_which_is_left_as_it_was(
    used: NumberType,
):
    network = built()
    average = averaging(network, kind=Kind(used=used))
    end = average.behind(lambda _: shift(network))
    for _ in range(2):
        end(as_they_are)
    before = {name: one.clone() for name, one in network.tensors().items()}
    seen: list[Tensor] = []

    def measure(*_: float) -> Validated:
        seen.append(network.tensors()["fc.weight"].clone())
        return validated(loss=float(len(seen)))

    told = average.beside(measure, 3, 1.0)
    expected = used.nearest(average.named()["fc.weight"])

    assert torch.equal(seen[0], before["fc.weight"])
    assert torch.equal(seen[1], expected)
    assert not torch.equal(seen[1], seen[0])
    assert (told.loss, told.average_loss) == (1.0, 2.0)
    assert all(torch.equal(one, before[name]) for name, one in network.tensors().items())


def test_weights_without_an_average_are_measured_once():
    told = averaging(built()).beside(lambda *_: validated(0.7), 3, 1.0)

    assert told == validated(0.7)


def test_weights_come_back_when_measuring_fails():
    network = built()
    average = averaging(network)
    average.behind(lambda _: None)(as_they_are)
    shift(network)
    before = network.tensors()["fc.weight"].clone()
    calls: list[int] = []

    def measure(update: int, _: float) -> Validated:
        calls.append(update)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return validated(0.7)

    with pytest.raises(KeyboardInterrupt):
        average.beside(measure, 3, 1.0)

    assert torch.equal(network.tensors()["fc.weight"], before)


def test_an_average_of_another_network_is_refused_where_one_is_wanted():
    network = built()
    optimizer = Optimizer(FlatWeights(network.slice.named_weights()), rule_of(CONFIG.optimizer, 1))
    meter = {"loss": 0.0, "right": 0, "micro_batches": 0, "samples": 0}
    contents = Contents(
        model=network.tensors(),
        optimizer=optimizer.named_state(),
        averages={"fc.weight": torch.zeros(3, 3)},
        state={"update": 3, "meter": meter},
    )
    averages = replace(CONFIG, average=AverageConfig(ema_decay=0.9))

    refuse_misfit(PLAN, contents)  # nobody asks for it
    with pytest.raises(CheckpointError, match="does not fit this average"):
        refuse_misfit(plan_run(averages), contents)
