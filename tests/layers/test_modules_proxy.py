"""Proxy norm against its formula in float64, with gradients and recomputation."""

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


def proxy_spec(kind: str, scaled: bool = True, recompute: bool = False) -> ProxyActivationSpec:
    return ProxyActivationSpec(CHANNELS, kind, EPS, scaled, recompute)


def gate(kind: str, recompute: bool = False) -> ProxySqueezeExciteSpec:
    reduce, expand = (
        ConvSpec(CHANNELS, INNER, 1, bias=True),
        ConvSpec(INNER, CHANNELS, 1, bias=True),
    )
    return ProxySqueezeExciteSpec(proxy_spec(kind, False, recompute), reduce, expand)


def build_module(operation: ProxyActivationSpec | ProxySqueezeExciteSpec) -> nn.Module:
    """A float64 module with random weights."""
    (module,) = build_layers([LayerPlan("proxy", operation)], seed=0).values()
    module.double()
    for seed, weight in enumerate(module.parameters(), start=1):
        weight.data = 0.5 * noise(*weight.shape, seed=seed) + (weight.dim() == 1)
    return module


def function(kind: str, x: Tensor) -> Tensor:
    return x * torch.sigmoid(x) if kind == "swish" else x.clamp(min=0)


def moments(kind: str, gamma: Tensor, beta: Tensor, proxy: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the inverse standard deviation of each channel over 200 quantiles."""
    probabilities = [(index + 0.5) / 200 for index in range(200)]
    quantiles = torch.tensor(
        [NormalDist().inv_cdf(probability) for probability in probabilities], dtype=torch.float64
    )
    means, scales = [], []
    for channel in range(CHANNELS):
        z = (1 + proxy[0, channel]) * quantiles + proxy[1, channel]
        outputs = function(kind, gamma[channel] * z + beta[channel])
        mean = outputs.sum() / 200
        means.append(mean)
        scales.append(1 / torch.sqrt(((outputs - mean) ** 2).sum() / 200 + EPS))
    return torch.stack(means).view(-1, 1, 1), torch.stack(scales).view(-1, 1, 1)


def reference_proxy(kind: str, inputs: Tensor, weights: list[Tensor], scaled: bool) -> Tensor:
    gamma, beta, proxy = weights
    mean, scale = moments(kind, gamma, beta, proxy)
    outputs = function(kind, gamma.view(-1, 1, 1) * inputs + beta.view(-1, 1, 1)) - mean
    return outputs * scale if scaled else outputs


def forward_backward(outputs: Tensor, inputs: Tensor, module: nn.Module) -> list[Tensor]:
    grad_output = noise(*outputs.shape, seed=9)
    return [outputs, *torch.autograd.grad(outputs, [inputs, *module.parameters()], grad_output)]


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("kind", ["swish", "relu"])
def test_a_proxy_activation_follows_its_formula(kind: str, scaled: bool):
    module = build_module(proxy_spec(kind, scaled))
    inputs = noise(2, CHANNELS, 3, 3).requires_grad_()
    weights = [module.get_parameter(name) for name in NAMES]
    expected = forward_backward(reference_proxy(kind, inputs, weights, scaled), inputs, module)
    outputs = forward_backward(module(inputs), inputs, module)

    # The quantiles of convoy are stored in float32.
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["swish", "relu"])
def test_the_scale_is_applied_after_the_gate(kind: str):
    module = build_module(gate(kind))
    inputs = noise(2, CHANNELS, 3, 3).requires_grad_()
    weights = [module.get_parameter(f"act.{name}") for name in NAMES]
    centered = reference_proxy(kind, inputs, weights, scaled=False)
    _, scale = moments(kind, *weights)
    reduce, expand = (
        [module.get_parameter(f"{name}.{part}") for part in ("weight", "bias")]
        for name in ("conv_reduce", "conv_expand")
    )
    inner = function(kind, centered.mean((2, 3)) @ reduce[0][:, :, 0, 0].T + reduce[1])
    gates = torch.sigmoid(inner @ expand[0][:, :, 0, 0].T + expand[1])
    expected = forward_backward(centered * gates[:, :, None, None] * scale, inputs, module)

    torch.testing.assert_close(
        forward_backward(module(inputs), inputs, module), expected, rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("operation", [proxy_spec("swish"), gate("swish")], ids=["plain", "gated"])
def test_gradients_flow_to_every_weight(operation: ProxyActivationSpec | ProxySqueezeExciteSpec):
    module = build_module(operation)
    module(noise(2, CHANNELS, 3, 3)).square().sum().backward()

    for name, weight in module.named_parameters():
        assert weight.grad is not None, name
        assert bool(weight.grad.abs().sum(tuple(range(1, weight.dim()))).all()), name


@pytest.mark.parametrize("kind", ["swish", "relu"])
@pytest.mark.parametrize("gated", [False, True])
def test_recomputation_gives_the_same_bits(gated: bool, kind: str):
    results = []
    for recompute in (False, True):
        module = build_module(
            gate(kind, recompute) if gated else proxy_spec(kind, recompute=recompute)
        ).float()
        inputs = noise(2, CHANNELS, 3, 3).float().requires_grad_()
        outputs = module(inputs)
        results.append(
            [outputs, *torch.autograd.grad(outputs.square().sum(), [inputs, *module.parameters()])]
        )

    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("gated", [False, True])
def test_with_recomputation_only_the_input_is_saved(gated: bool):
    module = build_module(gate("swish", True) if gated else proxy_spec("swish", recompute=True))
    saved: list[Tensor] = []

    def record(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        module(noise(2, CHANNELS, 3, 3).requires_grad_())

    assert [tuple(tensor.shape) for tensor in saved] == [(2, CHANNELS, 3, 3)]


def test_a_new_proxy_activation_is_a_standardized_activation():
    (module,) = build_layers([LayerPlan("proxy", proxy_spec("relu"))], seed=0).values()
    inputs = torch.randn(20000, CHANNELS, 1, 1, generator=torch.Generator().manual_seed(1))
    outputs = module(inputs).detach()

    assert abs(float(outputs.mean())) < 0.02
    assert float(outputs.var()) == pytest.approx(0.3408 / (0.3408 + EPS), rel=0.03)  # ½ − ½π⁻¹
    assert set(dict(module.named_parameters())) == set(module.state_dict()) == set(NAMES)


def test_samples_are_independent_of_each_other():
    module = build_module(gate("swish"))
    inputs = noise(3, CHANNELS, 2, 2)

    torch.testing.assert_close(module(inputs)[1:2], module(inputs[1:2]), rtol=1e-12, atol=1e-12)
