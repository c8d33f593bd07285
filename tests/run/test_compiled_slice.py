"""Compiled slices: one program each, equal to the eager slice, with statistics recorded once."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.networks import build_slice, images_and_labels, small_layers
from support.small_run import small_network
from torch import Tensor
from torch._dynamo.utils import counters

from convoy.layers.build import build_layers
from convoy.layers.norms import SingleReplica
from convoy.models.layers import (
    AddSpec,
    ConvSpec,
    DropoutSpec,
    DropPathSpec,
    GlobalPoolSpec,
    LayerPlan,
    LinearSpec,
    NormSpec,
    Route,
)
from convoy.parallel.slice import Slice
from convoy.planning.memory import RecomputePlan
from convoy.rng import StepPosition
from convoy.run.compile import CompiledSlice
from convoy.run.network import Network, with_recomputation


class FakePeers(SingleReplica):
    """Two replicas with equal tensors."""

    size = 2

    def all_gather(self, tensor: Tensor) -> Tensor:
        return torch.stack([tensor, tensor])


@pytest.fixture
def _without_compiler() -> Iterator[None]:
    """Run the programs eagerly, to test the surrounding code quickly."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture
def _traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trace the programs and their backward passes, but generate no code."""
    torch.compiler.reset()
    counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    yield
    torch.compiler.reset()


def network_of(layers: Slice, synced: bool = False) -> Network:
    network = Network((layers,), (layers,))
    for norm in network.norms if synced else []:
        norm.sync_with(FakePeers())
    return network


def compiled(network: Network) -> Network:
    return replace(network, stage_modules=tuple(map(CompiledSlice, network.slices)))


def trained(network: Network, passes: int = 2) -> list[Tensor]:
    """Return the outputs, gradients and statistics of training passes."""
    (module,), (images, labels) = network.stage_modules, images_and_labels(4, 8)
    module.train()
    outputs = []
    for _ in range(passes):
        (logits,) = module(images)
        F.cross_entropy(logits, labels).backward()
        outputs.append(logits.detach())
    gradients = [weight.grad for weight in network.slice.parameters()]
    statistics = [
        tensor for norm in network.norms for pair in norm.pending_statistics for tensor in pair
    ]
    assert len(statistics) == 2 * passes * len(network.norms)
    return [*outputs, *(tensor for tensor in gradients if tensor is not None), *statistics]


def differences(left: list[Tensor], right: list[Tensor]) -> list[float]:
    return [
        ((tensor - other).abs().max() / other.abs().max().clamp(min=1e-3)).item()
        for tensor, other in zip(left, right, strict=True)
    ]


RECOMPUTED = RecomputePlan(enabled=True, checkpoints=("layer1/0/relu", "layer2/0/bn1"))
STORED = RecomputePlan(enabled=False, checkpoints=())


@pytest.mark.usefixtures("_without_compiler")
@pytest.mark.parametrize("plan", [STORED, RECOMPUTED], ids=["stored", "recomputed"])
@pytest.mark.parametrize("synced", [False, True], ids=["single", "synced"])
def test_traced_programs_are_bit_identical_to_the_slice(plan: RecomputePlan, synced: bool) -> None:
    network = with_recomputation(compiled(network_of(build_slice(small_layers()), synced)), plan)
    expected = trained(network_of(build_slice(small_layers()), synced))

    assert differences(trained(network), expected) == [0.0] * len(expected)


@pytest.mark.usefixtures("_traced")
def test_a_slice_is_one_program_for_training_and_one_for_inference() -> None:
    network = compiled(network_of(build_slice(small_layers())))
    (module,), (images, _) = network.stage_modules, images_and_labels(4, 8)
    trained(network, passes=3)
    module.eval()
    with torch.inference_mode():
        module(images)
        module(images)
    trained(reset(network), passes=1)

    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


def reset(network: Network) -> Network:
    """Reset statistics and gradients, as after an update."""
    for norm in network.norms:
        norm.pending_statistics.clear()
    network.slice.zero_grad()
    return network


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("synced", [False, True], ids=["single", "synced"])
def test_recomputation_runs_the_same_program_and_records_no_statistics(synced: bool) -> None:
    layers = build_slice(small_layers())
    network = with_recomputation(compiled(network_of(layers, synced)), RECOMPUTED)
    expected = trained(network_of(build_slice(small_layers()), synced))
    outputs = trained(network)
    programs = counters["stats"]["unique_graphs"]
    trained(reset(network))

    assert max(differences(outputs, expected)) < 1e-4
    assert counters["stats"]["unique_graphs"] == programs
    assert not counters["graph_break"]


@pytest.mark.usefixtures("_traced")
def test_synced_norms_run_eagerly_between_programs() -> None:
    layers = build_slice(small_layers())
    network = network_of(layers, synced=True)
    outputs = trained(compiled(network))
    expected = trained(network_of(build_slice(small_layers()), synced=True))

    assert max(differences(outputs, expected)) < 1e-4
    assert counters["stats"]["unique_graphs"] == len(network.norms) + 1
    assert not counters["graph_break"]


NORM = NormSpec(8, "batch", groups=1, eps=1e-5, momentum=0.1)
RANDOM_LAYERS = (
    LayerPlan("stem", ConvSpec(3, 8, 3)),
    LayerPlan("conv", ConvSpec(8, 8, 3), Route.FORK),
    LayerPlan("norm", NORM),
    LayerPlan("drop_path", DropPathSpec(0.5)),
    LayerPlan("add", AddSpec(), Route.JOIN),
    LayerPlan("pool", GlobalPoolSpec()),
    LayerPlan("dropout", DropoutSpec(0.5)),
    LayerPlan("head", LinearSpec(8, 10)),
)


def random_slice() -> Slice:
    """A slice with dropout; each micro-batch has different masks."""
    position = StepPosition(range(4))
    return Slice(RANDOM_LAYERS, build_layers(RANDOM_LAYERS, 0, position), position)


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("checkpoints", [(), ("norm", "pool")], ids=["stored", "recomputed"])
def test_random_masks_are_new_for_each_micro_batch(checkpoints: tuple[str, ...]) -> None:
    plan = RecomputePlan(enabled=bool(checkpoints), checkpoints=checkpoints)
    outputs = trained(with_recomputation(compiled(network_of(random_slice())), plan), passes=4)
    programs = counters["stats"]["unique_graphs"]
    expected = trained(network_of(random_slice()), passes=4)

    assert max(differences(outputs, expected)) < 1e-4
    assert len({tensor.sum().item() for tensor in expected[:4]}) == 4
    assert programs == (3 if checkpoints else 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
def test_compiled_results_are_close_to_eager_ones_and_deterministic(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    folder = tmp_path_factory.mktemp("programs")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))

    def train(transform: Any) -> list[Tensor]:
        return trained(transform(network_of(small_network(classes=10))))

    first, second, eager = train(compiled), train(compiled), train(lambda network: network)

    assert max(differences(first, eager)) < 1e-5
    assert all(torch.equal(tensor, other) for tensor, other in zip(first, second, strict=True))
    assert list(folder.rglob("*.so"))
