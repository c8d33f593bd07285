"""A user's own network as named layers: traced for the plan, with convoy's norm and dropout layers.

Batch norm and dropout are replaced by convoy's layers, so that results are bit-identical for every
layout. Other layers with state or randomness are refused by name.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from inspect import Parameter, signature
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from convoy.errors import ConfigError
from convoy.layers.dropout import Dropout, DropoutRng
from convoy.layers.modules import sequential_layers
from convoy.layers.norms import BatchNorm
from convoy.models.layers import LayerPlan, ModuleSpec, NormSpec
from convoy.models.network import IMAGE_CHANNELS
from convoy.models.user_networks import register_user_network
from convoy.rng import StepPosition

NetworkSource = nn.Module | Mapping[str, nn.Module] | Callable[..., "NetworkSource"]
LAYERS_METHOD = "pipeline_layers"  # of a module that says where it can be split

_TRACED_SAMPLES = 2
# Layers whose outputs are random in a way that convoy cannot reproduce.
_RANDOM_LAYERS = (
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
    nn.RReLU,
    nn.FractionalMaxPool2d,
    nn.FractionalMaxPool3d,
)
_OTHER_BATCH_NORMS = (nn.BatchNorm3d, nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d)


class UserNetwork:
    """A network that the user defines; registered under its name as a value of `--model`."""

    def __init__(self, name: str, source: NetworkSource) -> None:
        self.name = name
        self._source = source
        self.layers = lru_cache(maxsize=4)(self._make_layers)
        self._describe = lru_cache(maxsize=8)(self._describe_layers)
        USER_NETWORKS[name] = self
        register_user_network(name, self._describe)

    def _make_layers(self, classes: int, seed: int) -> dict[str, nn.Module]:
        """The layers by name, with the initial weights. A factory runs with a seeded generator."""
        source = self._source
        if not isinstance(source, nn.Module | Mapping):
            source = _call_factory(source, self.name, classes, seed)
        layers = dict(_named_layers(source, self.name))
        if not layers:
            raise ConfigError(f"--model {self.name} has no layers")
        _check_not_shared(layers, self.name)
        return layers

    def build(self, name: str, classes: int, seed: int, position: StepPosition) -> nn.Module:
        """Copy a layer, with convoy's norm and dropout layers."""
        layer = deepcopy(self.layers(classes, seed)[name])
        return _convert(layer, name, self.name, seed, position)

    def _describe_layers(self, image_size: int, classes: int, seed: int) -> tuple[LayerPlan, ...]:
        """Run two random images through the network and record shapes and costs."""
        generator = torch.Generator().manual_seed(0)
        shape = (_TRACED_SAMPLES, IMAGE_CHANNELS, image_size, image_size)
        tensor = torch.randn(shape, generator=generator)
        plans = []
        for name in self.layers(classes, seed):
            module = self.build(name, classes, seed, StepPosition()).train()
            tensor, traced = _trace(module, tensor, f"layer {name} of --model {self.name}")
            plans.append(LayerPlan(name, ModuleSpec(self.name, classes, seed, *traced)))
        if tuple(tensor.shape) != (_TRACED_SAMPLES, classes):
            raise ConfigError(
                f"--model {self.name} has the output shape {_batch_shape(tensor)}, but the dataset "
                f"has {classes} classes; expected (N, {classes})"
            )
        return tuple(plans)


USER_NETWORKS: dict[str, UserNetwork] = {}


def _batch_shape(tensor: Tensor) -> str:
    return f"({', '.join(['N', *map(str, tensor.shape[1:])])})"


def _call_factory(
    factory: Callable[..., NetworkSource], name: str, classes: int, seed: int
) -> NetworkSource:
    """Create the network; `num_classes` is passed to a factory that takes it."""
    parameters = signature(factory).parameters.values()
    takes_classes = any(
        item.name == "num_classes" or item.kind is Parameter.VAR_KEYWORD for item in parameters
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = factory(num_classes=classes) if takes_classes else factory()
    if isinstance(network, nn.Module | Mapping):
        return network
    raise ConfigError(
        f"--model {name} returned {type(network).__name__}; it must return a torch.nn.Module or a "
        "mapping of named layers"
    )


def _named_layers(source: NetworkSource, model: str) -> Iterator[tuple[str, nn.Module]]:
    """Layers in order. Sequential modules are split into their children, at any depth."""
    if isinstance(source, Mapping):
        entries = source
    elif hasattr(source, LAYERS_METHOD):
        entries = getattr(source, LAYERS_METHOD)()
    elif isinstance(source, nn.Sequential):
        entries = dict(sequential_layers(source))
    else:
        assert isinstance(source, nn.Module)
        yield "model", source
        return
    for name, module in entries.items():
        if not isinstance(module, nn.Module):
            raise ConfigError(f"layer {name} of --model {model} is a {type(module).__name__}")
        path = str(name).replace(".", "/")
        if isinstance(module, nn.Sequential) and len(module):
            yield from ((f"{path}/{inner}", layer) for inner, layer in _named_layers(module, model))
        else:
            yield path, module


def _check_not_shared(layers: Mapping[str, nn.Module], model: str) -> None:
    owners: dict[Tensor, str] = {}
    for name, layer in layers.items():
        for parameter in layer.parameters():
            other = owners.setdefault(parameter, name)
            if other != name:
                raise ConfigError(
                    f"layers {other} and {name} of --model {model} share a parameter; each layer "
                    "needs its own, or put both into one module"
                )


def _convert(
    layer: nn.Module, name: str, model: str, seed: int, position: StepPosition
) -> nn.Module:
    """Replace batch norm and dropout by convoy's layers, and in-place operations by plain ones."""
    for path, module in list(layer.named_modules()):
        full_name = f"{name}/{path.replace('.', '/')}" if path else name
        replaced = _replacement(module, full_name, model, seed, position)
        if replaced is module:
            continue
        if not path:
            return replaced
        parent, _, attribute = path.rpartition(".")
        setattr(layer.get_submodule(parent), attribute, replaced)
    return layer


def _replacement(
    module: nn.Module, name: str, model: str, seed: int, position: StepPosition
) -> nn.Module:
    where = f"layer {name} of --model {model}"
    match module:
        case nn.BatchNorm1d() | nn.BatchNorm2d() | nn.SyncBatchNorm():
            return _convert_batch_norm(module, where)
        case nn.Dropout():
            return Dropout(module.p, DropoutRng(seed, name, position))
        case _ if isinstance(module, _RANDOM_LAYERS + _OTHER_BATCH_NORMS):
            raise ConfigError(
                f"{where} is a {type(module).__name__}, which cannot be trained bit-exactly; use "
                "nn.Dropout or nn.BatchNorm2d"
            )
    if getattr(module, "inplace", False):
        module.inplace = False  # type: ignore[assignment]  # the input may belong to another stage
    return module


def _convert_batch_norm(
    module: nn.BatchNorm1d | nn.BatchNorm2d | nn.SyncBatchNorm, where: str
) -> BatchNorm:
    running_mean, running_var = module.running_mean, module.running_var
    if module.momentum is None or running_mean is None or running_var is None:
        raise ConfigError(
            f"{where}: batch norm with track_running_stats=False or momentum=None is not supported"
        )
    affine = module.affine
    spec = NormSpec(
        module.num_features, "batch", 1, module.eps, module.momentum, scale=affine, offset=affine
    )
    norm = BatchNorm(spec)
    norm.load_state_dict(
        {key: value for key, value in module.state_dict().items() if key in norm.state_dict()}
    )
    for key, parameter in norm.named_parameters():
        parameter.requires_grad_(module.get_parameter(key).requires_grad)
    return norm


class TracedLayer(NamedTuple):
    """What a trace shows of a layer; see `ModuleSpec`."""

    parameter_sizes: tuple[tuple[str, int], ...]
    output_dims: tuple[int, ...]
    multiply_adds: int
    saved_elements: int


def _trace(module: nn.Module, inputs: Tensor, where: str) -> tuple[Tensor, TracedLayer]:
    """Run a layer forward and backward; return its output and its description."""
    saved_buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    source = inputs.detach().requires_grad_()
    saved: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter) and tensor.data_ptr() != source.data_ptr():
            saved[tensor.data_ptr()] = tensor.numel()
        return tensor

    with FlopCounterMode(display=False) as flops, saved_tensors_hooks(record, lambda kept: kept):
        outputs = _run_layer(module, source, where)
    with torch.no_grad():
        again = _run_layer(module, source.detach(), where)
    changed = [
        name
        for name, buffer in module.named_buffers()
        if not torch.equal(buffer, saved_buffers[name])
    ]
    if changed:
        raise ConfigError(
            f"{where} changes its buffer {changed[0]} in the forward pass; only batch norm may "
            "have running statistics"
        )
    if not torch.equal(outputs, again):
        raise ConfigError(
            f"{where} returns different outputs for the same input: it draws random numbers that "
            "convoy cannot reproduce; use nn.Dropout"
        )
    _check_gradients(module, outputs, where)
    parameters = tuple((name, weight.numel()) for name, weight in module.named_parameters())
    return outputs.detach(), TracedLayer(
        parameters,
        tuple(outputs.shape[1:]),
        flops.get_total_flops() // 2 // _TRACED_SAMPLES,
        sum(saved.values()) // _TRACED_SAMPLES,
    )


def _run_layer(module: nn.Module, inputs: Tensor, where: str) -> Tensor:
    try:
        outputs = module(inputs)
    except Exception as error:
        shape = tuple(inputs.shape)
        raise ConfigError(f"{where} fails on an input of shape {shape}: {error}") from error
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != inputs.shape[:1]:
        described = (
            f"shape {tuple(outputs.shape)}"
            if isinstance(outputs, Tensor)
            else type(outputs).__name__
        )
        raise ConfigError(
            f"{where} returns {described}; a layer takes one tensor and returns one, with the same "
            "number of samples"
        )
    return outputs


def _check_gradients(module: nn.Module, outputs: Tensor, where: str) -> None:
    """Refuse parameters that the output does not depend on."""
    trained = {name: weight for name, weight in module.named_parameters() if weight.requires_grad}
    if not trained:
        return
    gradients = torch.autograd.grad(outputs.sum(), list(trained.values()), allow_unused=True)
    for name, gradient in zip(trained, gradients, strict=True):
        if gradient is None:
            raise ConfigError(f"{where} does not use its parameter {name}; remove or freeze it")
