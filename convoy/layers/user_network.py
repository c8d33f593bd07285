"""A user's own network as named layers: traced for the plan, with convoy's norm and dropout layers.

Batch norm and dropout are replaced by convoy's layers, so that results are bit-identical for every
layout. Other layers with state or randomness are refused by name.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from functools import lru_cache
from inspect import Parameter, signature
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import is_lazy
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
        named = list(_named_layers(source, self.name))
        layers = dict(named)
        if not layers:
            raise ConfigError(f"--model {self.name} has no layers")
        names = [name for name, _ in named]
        for name in names:
            if not name or names.count(name) > 1:
                raise ConfigError(f"--model {self.name}: {name!r} must be the name of one layer")
        _check_not_shared(layers, self.name)
        _check_parameters(layers, self.name)
        return layers

    def build(self, name: str, classes: int, seed: int, position: StepPosition) -> nn.Module:
        """Copy a layer, with convoy's norm and dropout layers."""
        try:
            layer = deepcopy(self.layers(classes, seed)[name])
        except RuntimeError as error:  # a parameter that is computed, as by nn.utils.weight_norm
            raise ConfigError(
                f"layer {name} of --model {self.name} cannot be copied: {error}; use "
                "torch.nn.utils.parametrizations for computed parameters"
            ) from error
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
    if not callable(factory):
        raise ConfigError(_not_a_network(name, factory))
    parameters = signature(factory).parameters.values()
    takes_classes = any(
        item.name == "num_classes" or item.kind is Parameter.VAR_KEYWORD for item in parameters
    )
    try:
        signature(factory).bind(**({"num_classes": classes} if takes_classes else {}))
    except TypeError as error:
        text = f"--model {name} is called with num_classes, or without arguments: {error}"
        raise ConfigError(text) from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = factory(num_classes=classes) if takes_classes else factory()
    if isinstance(network, nn.Module | Mapping):
        return network
    raise ConfigError(_not_a_network(f"{name} returned", network))


def _not_a_network(subject: str, value: object) -> str:
    return (
        f"--model {subject} {type(value).__name__}; it must be a torch.nn.Module, a mapping of "
        "named layers, or a function that returns one"
    )


def _check_parameters(layers: Mapping[str, nn.Module], model: str) -> None:
    """Refuse networks whose parameters are not those that convoy can train."""
    tensors = [
        (f"{name}/{path}".replace(".", "/"), tensor)
        for name, layer in layers.items()
        for path, tensor in chain(layer.named_parameters(), layer.named_buffers())
    ]
    if any(map(is_lazy, (tensor for _, tensor in tensors))):
        raise ConfigError(
            f"--model {model} has lazy layers; run the network once on an example before, so that "
            "its parameters exist"
        )
    if any(isinstance(layer, torch.jit.ScriptModule) for layer in layers.values()):
        raise ConfigError(f"--model {model} is a ScriptModule; pass the module it was made from")
    parameters = [(path, item) for path, item in tensors if isinstance(item, nn.Parameter)]
    for path, item in parameters:
        is_float = item.is_floating_point() or item.is_complex()
        if is_float and item.dtype != torch.float32:
            raise ConfigError(
                f"{path} of --model {model} is {item.dtype}; pass a network with float32 weights, "
                "and choose --precision"
            )
    if not any(item.requires_grad for _, item in parameters):
        raise ConfigError(f"--model {model} has no parameters that can be trained")


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
    replacements: dict[nn.Module, nn.Module] = {}
    for path, module in list(layer.named_modules(remove_duplicate=False)):
        full_name = f"{name}/{path.replace('.', '/')}" if path else name
        if module not in replacements:
            replacements[module] = _replacement(module, full_name, model, seed, position)
        replaced = replacements[module]
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

    generator = torch.get_rng_state()
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
    is_random = not torch.equal(generator, torch.get_rng_state())
    if is_random or not torch.equal(outputs, again):
        raise ConfigError(
            f"{where} draws random numbers, which convoy cannot reproduce in every layout; use "
            "nn.Dropout"
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
        shape, text = tuple(inputs.shape), " ".join(str(error).split())
        raise ConfigError(f"{where} fails on an input of shape {shape}: {text}") from error
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
    if outputs.dtype != torch.float32:
        raise ConfigError(f"{where} returns {outputs.dtype}; a layer returns float32")
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
