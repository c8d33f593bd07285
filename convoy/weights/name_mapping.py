"""Convert weights between convoy and other programs, checking every name and shape.

On import, a classifier for a different number of classes is reinitialized, and a stem with one more
input channel is padded with zeros. All other mismatches are reported together.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from convoy.checkpoint.format import Tensors, describe_tensor, summarize_names
from convoy.errors import CheckpointError, ConfigError
from convoy.weights.reading import ExternalWeights

_STAGES = (1, 2, 3, 4, 3, 3, 1)  # blocks per stage of MobileNet v2
_TIMM_BLOCK = re.compile(r"features\.(\d+)\.conv\.(.+)")
# The first block has no expansion.
_DEPTHWISE_SEPARABLE_LAYERS = {"0.0": "conv_dw", "0.1": "bn1", "1": "conv_pw", "2": "bn2"}
_INVERTED_RESIDUAL_LAYERS = {
    "0.0": "conv_pw",
    "0.1": "bn1",
    "1.0": "conv_dw",
    "1.1": "bn2",
    "2": "conv_pwl",
    "3": "bn3",
}
_OUTER_LAYERS = {
    "features.0.0": "conv_stem",
    "features.0.1": "bn1",
    "features.18.0": "conv_head",
    "features.18.1": "bn2",
    "classifier.1": "classifier",
}


def timm_layers(layers: Sequence[str]) -> dict[str, str] | None:
    """Map convoy's layer names to timm's; None if timm does not have the network."""
    if any(layer.startswith("fire") for layer in layers):
        return None
    if layers[0] != "features.0.0":
        return {layer: layer for layer in layers}
    return {layer: _OUTER_LAYERS.get(layer) or _timm_block_layer(layer) for layer in layers}


def _timm_block_layer(layer: str) -> str:
    match = _TIMM_BLOCK.fullmatch(layer)
    assert match, f"{layer} is not a layer of MobileNet v2"
    number, name_in_block = int(match[1]), match[2]
    blocks = [(stage, index) for stage, count in enumerate(_STAGES) for index in range(count)]
    stage, index = blocks[number - 1]
    layers = _DEPTHWISE_SEPARABLE_LAYERS if number == 1 else _INVERTED_RESIDUAL_LAYERS
    return f"blocks.{stage}.{index}.{layers[name_in_block]}"


_BLOCK = re.compile(r"(blocks\.(\d+)\.(\d+))\.(.+)")
_SAME_NAMES = ("conv1", "features.0.0")  # first layers of networks with identical names


def torchvision_layers(layers: Sequence[str]) -> dict[str, str] | None:
    """Map convoy's layer names to torchvision's; None if torchvision does not have the network."""
    if layers[0] in _SAME_NAMES and not any(layer.startswith("fire") for layer in layers):
        return {layer: layer for layer in layers}
    if layers[0] != "conv_stem":
        return None
    return dict(_torchvision_pairs(layers))


def _torchvision_pairs(layers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the names of the stem, the blocks, and the head (after the pooling in MobileNet v3)."""
    ends_in_conv = any(_name_in_block(layer) == "conv" for layer in layers)
    yield from (("conv_stem", "features.0.0"), ("bn1", "features.0.1"))
    blocks = groupby(filter(None, map(_BLOCK.match, layers)), key=lambda match: match[1])
    feature = 0
    for count, (block, matches) in enumerate(blocks, start=1):
        _, stage, index = block.split(".")
        feature = count if ends_in_conv else int(stage) + 1
        prefix = f"features.{feature}" if ends_in_conv else f"features.{feature}.{index}"
        yield from _torchvision_block_pairs([match[0] for match in matches], prefix)
    if ends_in_conv:
        yield from (("conv_head", "classifier.0"), ("classifier", "classifier.3"))
    else:
        head = f"features.{feature + 1}"
        yield from (("conv_head", f"{head}.0"), ("bn2", f"{head}.1"))
        yield "classifier", "classifier.1"


def _torchvision_block_pairs(layers: list[str], prefix: str) -> Iterator[tuple[str, str]]:
    """Yield the names within a block; a convolution or squeeze starts the next submodule."""
    if _name_in_block(layers[0]) == "conv":
        yield from zip(layers, (f"{prefix}.0", f"{prefix}.1"), strict=False)
        return
    submodule = -1
    for layer in layers:
        name = _name_in_block(layer)
        starts = name.startswith("conv") or name == "se.conv_reduce"
        submodule += starts
        ending = {"se.conv_reduce": "fc1", "se.conv_expand": "fc2"}.get(name)
        yield layer, f"{prefix}.block.{submodule}.{ending or ('0' if starts else '1')}"


def _name_in_block(layer: str) -> str:
    """Return the name of a layer within its block, empty outside of blocks."""
    match = _BLOCK.match(layer)
    return match[4] if match else ""


CONVOY = "convoy"
_PROXY = ".proxy"  # proxy normalization, which other programs do not have
NUM_BATCHES_TRACKED = ".num_batches_tracked"  # a counter in torch batch norms; has no effect


# Maps convoy's layer names to external ones. If several fit equally (ResNet), the first is used.
NAMINGS: dict[str, Callable[[Sequence[str]], dict[str, str] | None]] = {
    "torchvision": torchvision_layers,
    "timm": timm_layers,
    CONVOY: lambda layers: dict(zip(layers, layers, strict=True)),
}


def external_names(naming: str, names: Sequence[str]) -> dict[str, str] | None:
    """Map convoy's tensor names to external ones; None if the naming has no such network."""
    if naming != CONVOY and any(name.endswith(_PROXY) for name in names):
        return None
    parts = {name: name.rpartition(".") for name in names}
    layers = NAMINGS[naming](list(dict.fromkeys(layer for layer, _, _ in parts.values())))
    if layers is None:
        return None
    return {name: f"{layers[layer]}.{weight}" for name, (layer, _, weight) in parts.items()}


def libraries_with_names(naming: str, names: Sequence[str]) -> list[str]:
    """The libraries that use the same names: for ResNet, both."""
    detected = external_names(naming, names)
    return [
        library
        for library in NAMINGS
        if library != CONVOY and external_names(library, names) == detected
    ]


def detect_naming(file_names: Collection[str], names: Sequence[str]) -> str:
    """Return the naming that matches most of the names in a file."""
    known = {naming: external_names(naming, names) or {} for naming in NAMINGS}
    return max(known, key=lambda naming: sum(name in file_names for name in known[naming].values()))


_CONVERTED_DTYPES = (torch.float16, torch.bfloat16, torch.float64)
_RUNNING_MEAN = ".running_mean"


@dataclass(frozen=True)
class TargetNetwork:
    """The network that weights are imported into."""

    model: str
    tensors: Mapping[str, Tensor]  # all tensors on the meta device, in layer order
    head: Mapping[str, Tensor]  # initial values of a new classifier
    stem: str  # name of the first weight


@dataclass(frozen=True)
class FittedWeights:
    """Weights under convoy's names, and notes on the conversions."""

    model: Tensors
    naming: str
    notes: list[str]
    num_batches_tracked: int | None  # of the batch norms, if present
    architecture: str | None = None  # name of the network in the library, if the file has it


def fit_weights(weights: ExternalWeights, target: TargetNetwork) -> FittedWeights:
    """Convert weights to exactly this network; CheckpointError lists every mismatch."""
    tensors = weights.tensors
    counts = {name: tensors[name] for name in tensors if name.endswith(NUM_BATCHES_TRACKED)}
    external = {name: tensor for name, tensor in tensors.items() if name not in counts}
    naming = detect_naming(external, list(target.tensors))
    names = external_names(naming, list(target.tensors))
    assert names is not None, "the convoy naming has every network"
    renamed = {name: external[other] for name, other in names.items() if other in external}
    notes: list[str] = []
    new_head = _replace_head(renamed, target, notes)
    fitted = {**_adapt_shapes(renamed, target, notes), **new_head}
    unknown = external.keys() - names.values()
    _check_fit(weights, target, fitted, unknown)
    dtypes = {str(weight.dtype).removeprefix("torch.") for weight in fitted.values()}
    if converted := sorted(dtypes - {"float32"}):
        notes.append(f"converted from {' and '.join(converted)} to float32")
    model = {name: fitted[name].to(torch.float32).contiguous() for name in target.tensors}
    _check_values(weights.source, model)
    return FittedWeights(model, naming, notes, _batch_count(counts), weights.architecture)


def _replace_head(weights: Tensors, target: TargetNetwork, notes: list[str]) -> Tensors:
    """Return the initial classifier if only the number of classes differs, else nothing."""
    pairs = [(weights[name], target.tensors[name]) for name in target.head if name in weights]
    features_differ = any(
        _head_features(imported) != _head_features(initial) for imported, initial in pairs
    )
    if len(pairs) < len(target.head) or features_differ:
        return {}
    classes, target_classes = len(pairs[0][0]), len(pairs[0][1])
    if classes == target_classes or any(len(imported) != classes for imported, _ in pairs):
        return {}
    layer = next(iter(target.head)).rpartition(".")[0]
    notes.append(
        f"{layer} is reinitialized: the weights have {classes:,} classes, but the model has "
        f"{target_classes:,}"
    )
    return dict(target.head)


def _head_features(tensor: Tensor) -> tuple[int, ...]:
    """Return the input features of a head; a 1 × 1 convolution counts as linear."""
    return (tensor.dim() > 0, *tensor.shape[1:2], *(size for size in tensor.shape[2:] if size > 1))


def _adapt_shapes(weights: Tensors, target: TargetNetwork, notes: list[str]) -> Tensors:
    """Convert linear layers to 1 × 1 convolutions, and pad the stem for padded images."""
    reshaped = dict(weights)
    for name, weight in weights.items():
        expected = target.tensors[name].shape
        if weight.dim() == 2 and expected == (*weight.shape, 1, 1):
            reshaped[name] = weight[:, :, None, None]
        if name == target.stem and weight.dim() == 4:
            outputs, channels, *kernel = weight.shape
            if expected == (outputs, channels + 1, *kernel):
                reshaped[name] = torch.cat([weight, torch.zeros_like(weight[:, :1])], 1)
                notes.append(f"added a zero input channel to {name} (--input-image-padding)")
    return reshaped


def _check_fit(
    weights: ExternalWeights, target: TargetNetwork, fitted: Tensors, unknown: set[str]
) -> None:
    expected = target.tensors
    shapes = [
        f"{name} {describe_tensor(weight)}, expected {describe_tensor(expected[name])}"
        for name, weight in fitted.items()
        if weight.shape != expected[name].shape
    ]
    dtypes = [
        f"{name} {describe_tensor(weight)}"
        for name, weight in fitted.items()
        if not _is_float_tensor(weight)
    ]
    problems = [
        summarize_names("missing", [name for name in expected if name not in fitted]),
        summarize_names("unexpected", [name for name in weights.tensors if name in unknown]),
        summarize_names("with the wrong shape", shapes),
        summarize_names("not dense floating-point tensors", dtypes),
    ]
    if any(problems):
        raise CheckpointError(
            f"{weights.source} does not match {target.model}: {'; '.join(filter(None, problems))}; "
            "use the --model and network options that it was trained with"
        )


def _is_float_tensor(tensor: Tensor) -> bool:
    is_dense = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return is_dense and tensor.dtype in (torch.float32, *_CONVERTED_DTYPES)


def _check_values(source: str, model: Tensors) -> None:
    """Refuse non-finite weights and negative variances."""
    infinite = [name for name, weight in model.items() if not torch.isfinite(weight).all()]
    variances = [name for name in model if name.endswith(".running_var")]
    negative = [name for name in variances if (model[name] < 0).any()]
    for what, names in (("non-finite tensors", infinite), ("negative variances", negative)):
        if names:
            raise CheckpointError(
                f"{source} is unusable: it contains {summarize_names(what, names)}"
            )


def _batch_count(counts: Tensors) -> int | None:
    """Return the count if all norms have the same, as after training; else None."""
    scalars = [
        count for count in counts.values() if count.dtype == torch.int64 and count.dim() == 0
    ]
    values = {int(count) for count in scalars if count.layout == torch.strided}
    return values.pop() if len(values) == 1 else None


def to_external(model: Mapping[str, Tensor], naming: str, batches: int) -> Tensors:
    """Convert convoy's weights to external names and shapes, with `num_batches_tracked`."""
    names = external_names(naming, list(model))
    if names is None:
        supported = [other for other in NAMINGS if external_names(other, list(model)) is not None]
        raise ConfigError(
            f"there is no {naming} key mapping for this model; "
            f"use --naming {' or '.join(supported)}"
        )
    renamed = {names[name]: weight for name, weight in model.items()}
    if naming == CONVOY:
        return renamed
    for name, weight in renamed.items():
        if name.startswith("classifier") and weight.dim() == 4:  # a 1 × 1 convolution in convoy
            renamed[name] = weight.flatten(1)
    means = [name for name in renamed if name.endswith(_RUNNING_MEAN)]
    return renamed | {
        f"{name.removesuffix(_RUNNING_MEAN)}{NUM_BATCHES_TRACKED}": torch.tensor(batches)
        for name in means
    }
