"""Proxy norm against its formula in 64 bits, its gradients, and the pass computed again."""

from statistics import NormalDist

import pytest
import torch
from torch import Tensor, nn

from convoy.layers.build import build_layers
from convoy.models.layers import ConvSpec, LayerPlan, ProxyActivationSpec, ProxySqueezeExciteSpec

CHANNELS, INNER, EPS = 4, 3, 0.03
NAMES = ["weight", "bias", "proxy"]


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def planned(kind: str, scaled: bool = True, again: bool = False) -> ProxyActivationSpec:
    return ProxyActivationSpec(CHANNELS, kind, EPS, scaled, again)


def gate(kind: str, again: bool = False) -> ProxySqueezeExciteSpec:
    reduce, expand = (
        ConvSpec(CHANNELS, INNER, 1, bias=True),
        ConvSpec(INNER, CHANNELS, 1, bias=True),
    )
    return ProxySqueezeExciteSpec(planned(kind, False, again), reduce, expand)


def live(operation: ProxyActivationSpec | ProxySqueezeExciteSpec) -> nn.Module:
    """In 64 bits, with weights that are neither 0 nor 1."""
    (module,) = build_layers([LayerPlan("proxy", operation)], seed=0).values()
    module.double()
    for seed, weight in enumerate(module.parameters(), start=1):
        weight.data = 0.5 * noise(*weight.shape, seed=seed) + (weight.dim() == 1)
    return module


def function(kind: str, x: Tensor) -> Tensor:
    return x * torch.sigmoid(x) if kind == "swish" else x.clamp(min=0)


def moments(kind: str, gamma: Tensor, beta: Tensor, proxy: Tensor) -> tuple[Tensor, Tensor]:
    """The mean, and one over the deviation, of each channel at 200 quantiles."""
    chances = [(place + 0.5) / 200 for place in range(200)]
    quantiles = torch.tensor([NormalDist().inv_cdf(one) for one in chances], dtype=torch.float64)
    means, scales = [], []
    for channel in range(CHANNELS):
        z = (1 + proxy[0, channel]) * quantiles + proxy[1, channel]
        made = function(kind, gamma[channel] * z + beta[channel])
        mean = made.sum() / 200
        means.append(mean)
        scales.append(1 / torch.sqrt(((made - mean) ** 2).sum() / 200 + EPS))
    return torch.stack(means).view(-1, 1, 1), torch.stack(scales).view(-1, 1, 1)


def naive(kind: str, given: Tensor, weights: list[Tensor], scaled: bool) -> Tensor:
    gamma, beta, proxy = weights
    mean, scale = moments(kind, gamma, beta, proxy)
    made = function(kind, gamma.view(-1, 1, 1) * given + beta.view(-1, 1, 1)) - mean
    return made * scale if scaled else made


def passed(made: Tensor, given: Tensor, module: nn.Module) -> list[Tensor]:
    upward = noise(*made.shape, seed=9)
    return [made, *torch.autograd.grad(made, [given, *module.parameters()], upward)]


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("kind", ["swish", "relu"])
def test_a_proxy_activation_is_its_formula(kind: str, scaled: bool):
    module = live(planned(kind, scaled))
    given = noise(2, CHANNELS, 3, 3).requires_grad_()
    weights = [module.get_parameter(name) for name in NAMES]
    expected = passed(naive(kind, given, weights, scaled), given, module)
    made = passed(module(given), given, module)

    # Our quantiles are written in 32 bits.
    torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["swish", "relu"])
def test_the_scale_comes_behind_the_gate_which_sees_it_without(kind: str):
    module = live(gate(kind))
    given = noise(2, CHANNELS, 3, 3).requires_grad_()
    weights = [module.get_parameter(f"act.{name}") for name in NAMES]
    centered = naive(kind, given, weights, scaled=False)
    _, scale = moments(kind, *weights)
    reduce, expand = (
        [module.get_parameter(f"{name}.{part}") for part in ("weight", "bias")]
        for name in ("conv_reduce", "conv_expand")
    )
    inner = function(kind, centered.mean((2, 3)) @ reduce[0][:, :, 0, 0].T + reduce[1])
    opened = torch.sigmoid(inner @ expand[0][:, :, 0, 0].T + expand[1])
    expected = passed(centered * opened[:, :, None, None] * scale, given, module)

    torch.testing.assert_close(passed(module(given), given, module), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("operation", [planned("swish"), gate("swish")], ids=["plain", "gated"])
def test_gradients_flow_to_every_weight(operation: ProxyActivationSpec | ProxySqueezeExciteSpec):
    module = live(operation)
    module(noise(2, CHANNELS, 3, 3)).square().sum().backward()

    for name, weight in module.named_parameters():
        assert weight.grad is not None, name
        assert bool(weight.grad.abs().sum(tuple(range(1, weight.dim()))).all()), name


@pytest.mark.parametrize("kind", ["swish", "relu"])
@pytest.mark.parametrize("gated", [False, True])
def test_computed_again_it_leaves_the_same_bits(gated: bool, kind: str):
    seen = []
    for again in (False, True):
        module = live(gate(kind, again) if gated else planned(kind, again=again)).float()
        given = noise(2, CHANNELS, 3, 3).float().requires_grad_()
        made = module(given)
        seen.append(
            [made, *torch.autograd.grad(made.square().sum(), [given, *module.parameters()])]
        )

    assert all(map(torch.equal, *seen))


@pytest.mark.parametrize("gated", [False, True])
def test_computed_again_only_what_came_in_is_kept(gated: bool):
    module = live(gate("swish", True) if gated else planned("swish", again=True))
    kept: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        module(noise(2, CHANNELS, 3, 3).requires_grad_())

    assert [tuple(one.shape) for one in kept] == [(2, CHANNELS, 3, 3)]


def test_it_begins_as_the_plain_activation_made_standard():
    (module,) = build_layers([LayerPlan("proxy", planned("relu"))], seed=0).values()
    given = torch.randn(20000, CHANNELS, 1, 1, generator=torch.Generator().manual_seed(1))
    made = module(given).detach()

    assert abs(float(made.mean())) < 0.02
    assert float(made.var()) == pytest.approx(0.3408 / (0.3408 + EPS), rel=0.03)  # ½ − ½π⁻¹
    assert set(dict(module.named_parameters())) == set(module.state_dict()) == set(NAMES)


def test_samples_do_not_see_each_other():
    module = live(gate("swish"))
    given = noise(3, CHANNELS, 2, 2)

    torch.testing.assert_close(module(given)[1:2], module(given[1:2]), rtol=1e-12, atol=1e-12)
