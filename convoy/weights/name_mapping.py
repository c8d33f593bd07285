"""Weights of other programs ↔ the weights of one of our networks, every name and shape checked.

On import a classifier for another number of classes is initialised anew, and a stem for one more
channel is padded; everything else that does not fit is refused, all of it together.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from convoy.checkpoint.format import TensorFile, Tensors, list_names, shape_text
from convoy.errors import CheckpointError, ConfigError
from convoy.weights.reading import ForeignWeights

_STAGES = (1, 2, 3, 4, 3, 3, 1)  # blocks of one width in MobileNet v2
_TIMM_BLOCK = re.compile(r"features\.(\d+)\.conv\.(.+)")
_NARROW = {"0.0": "conv_dw", "0.1": "bn1", "1": "conv_pw", "2": "bn2"}  # without expansion
_WIDE = {
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
    """timm's name of each layer; None for a network that it does not have."""
    if any(layer.startswith("fire") for layer in layers):
        return None
    if layers[0] != "features.0.0":
        return {layer: layer for layer in layers}
    return {layer: _OUTER_LAYERS.get(layer) or _in_block(layer) for layer in layers}


def _in_block(layer: str) -> str:
    found = _TIMM_BLOCK.fullmatch(layer)
    assert found, f"{layer} is not a layer of MobileNet v2"
    number, part = int(found[1]), found[2]
    blocks = [(stage, index) for stage, count in enumerate(_STAGES) for index in range(count)]
    stage, index = blocks[number - 1]
    return f"blocks.{stage}.{index}.{(_NARROW if number == 1 else _WIDE)[part]}"


_BLOCK = re.compile(r"(blocks\.(\d+)\.(\d+))\.(.+)")
_SAME_NAMES = ("conv1", "features.0.0")  # first layers of networks whose names are the same


def torchvision_layers(layers: Sequence[str]) -> dict[str, str] | None:
    """torchvision's name of each layer; None for a network that it does not have."""
    if layers[0] in _SAME_NAMES and not any(layer.startswith("fire") for layer in layers):
        return {layer: layer for layer in layers}
    if layers[0] != "conv_stem":
        return None
    return dict(_counted(layers))


def _counted(layers: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The stem, the blocks, and the head, which MobileNet v3 has behind its pooling."""
    ends_in_conv = any(_part(layer) == "conv" for layer in layers)
    yield from (("conv_stem", "features.0.0"), ("bn1", "features.0.1"))
    blocks = groupby(filter(None, map(_BLOCK.match, layers)), key=lambda found: found[1])
    feature = 0
    for count, (block, parts) in enumerate(blocks, start=1):
        _, stage, index = block.split(".")
        feature = count if ends_in_conv else int(stage) + 1
        inside = f"features.{feature}" if ends_in_conv else f"features.{feature}.{index}"
        yield from _of_block([found[0] for found in parts], inside)
    if ends_in_conv:
        yield from (("conv_head", "classifier.0"), ("classifier", "classifier.3"))
    else:
        yield from (
            ("conv_head", f"features.{feature + 1}.0"),
            ("bn2", f"features.{feature + 1}.1"),
        )
        yield "classifier", "classifier.1"


def _of_block(layers: list[str], prefix: str) -> Iterator[tuple[str, str]]:
    """A convolution or a squeeze begins the next part; MobileNet v3 ends with a bare one."""
    if _part(layers[0]) == "conv":
        yield from zip(layers, (f"{prefix}.0", f"{prefix}.1"), strict=False)
        return
    part = -1
    for layer in layers:
        word = _part(layer)
        begins = word.startswith("conv") or word == "se.conv_reduce"
        part += begins
        ending = {"se.conv_reduce": "fc1", "se.conv_expand": "fc2"}.get(word)
        yield layer, f"{prefix}.block.{part}.{ending or ('0' if begins else '1')}"


def _part(layer: str) -> str:
    """The name within its block."""
    found = _BLOCK.match(layer)
    return found[4] if found else ""


CONVOY = "convoy"
_PROXY = ".proxy"  # of proxy-normalised activations, which other programs do not have
TRACKED = ".num_batches_tracked"  # a count that torch keeps for each batch norm; it has no effect


# Our layers → their names elsewhere. Where two fit equally well, as for ResNet, the first is taken.
NAMINGS: dict[str, Callable[[Sequence[str]], dict[str, str] | None]] = {
    "torchvision": torchvision_layers,
    "timm": timm_layers,
    CONVOY: lambda layers: dict(zip(layers, layers, strict=True)),
}


def foreign_names(naming: str, names: Sequence[str]) -> dict[str, str] | None:
    """Our name of each tensor → the foreign one; None if the naming has no such network."""
    if naming != CONVOY and any(name.endswith(_PROXY) for name in names):
        return None
    parts = {name: name.rpartition(".") for name in names}
    layers = NAMINGS[naming](list(dict.fromkeys(layer for layer, _, _ in parts.values())))
    if layers is None:
        return None
    return {name: f"{layers[layer]}.{weight}" for name, (layer, _, weight) in parts.items()}


def detect(found: Collection[str], names: Sequence[str]) -> str:
    """The naming that knows most of the names found."""
    known = {naming: foreign_names(naming, names) or {} for naming in NAMINGS}
    return max(known, key=lambda naming: sum(name in found for name in known[naming].values()))


_CONVERTED_DTYPES = (torch.float16, torch.bfloat16, torch.float64)
_MEAN = ".running_mean"


@dataclass(frozen=True)
class TargetNetwork:
    """The network that weights are imported into."""

    model: str
    tensors: Mapping[str, Tensor]  # every tensor, on the meta device, in the order of the layers
    head: Mapping[str, Tensor]  # initial values of a new classifier
    stem: str  # name of the first weight


@dataclass(frozen=True)
class FittedWeights:
    """Weights under our names, and what was done to make them fit."""

    model: Tensors
    naming: str
    notes: list[str]
    batches_tracked: int | None  # torch's count next to its batch norms, if there is one


def fit(found: ForeignWeights, target: TargetNetwork) -> FittedWeights:
    """The weights for exactly this network; CheckpointError lists everything that is wrong."""
    counts = {name: one for name, one in found.tensors.items() if name.endswith(TRACKED)}
    foreign = {name: one for name, one in found.tensors.items() if name not in counts}
    naming = detect(foreign, list(target.tensors))
    names = foreign_names(naming, list(target.tensors))
    assert names is not None, "our own naming has every network"
    renamed = {name: foreign[other] for name, other in names.items() if other in foreign}
    notes: list[str] = []
    new_head = _new_head(renamed, target, notes)
    fitted = {**_reshape(renamed, target, notes), **new_head}
    unknown = foreign.keys() - names.values()
    _check_fit(found, target, fitted, unknown)
    model = _to_float32({name: fitted[name] for name in target.tensors}, notes)
    _check_values(found.source, model)
    return FittedWeights(model, naming, notes, _batch_count(counts))


def _new_head(weights: Tensors, target: TargetNetwork, notes: list[str]) -> Tensors:
    """The initial classifier, if the number of classes is all that differs."""
    pairs = [(weights[name], target.tensors[name]) for name in target.head if name in weights]
    complete = len(pairs) == len(target.head)
    if not complete or any(_features(theirs) != _features(ours) for theirs, ours in pairs):
        return {}
    classes, our_classes = len(pairs[0][0]), len(pairs[0][1])
    if classes == our_classes or any(len(theirs) != classes for theirs, _ in pairs):
        return {}
    layer = next(iter(target.head)).rpartition(".")[0]
    notes.append(
        f"{layer} begins anew: the weights know {classes:,} classes, {our_classes:,} are wanted"
    )
    return dict(target.head)


def _features(tensor: Tensor) -> tuple[int, ...]:
    """The input features of a head, whatever its classes; a 1 × 1 convolution is linear."""
    return (tensor.dim() > 0, *tensor.shape[1:2], *(size for size in tensor.shape[2:] if size > 1))


def _reshape(weights: Tensors, target: TargetNetwork, notes: list[str]) -> Tensors:
    """Linear layers to the 1 × 1 convolutions that they are here; a stem for padded images."""
    reshaped = dict(weights)
    for name, weight in weights.items():
        expected = target.tensors[name].shape
        if weight.dim() == 2 and expected == (*weight.shape, 1, 1):
            reshaped[name] = weight[:, :, None, None]
        if name == target.stem and weight.dim() == 4:
            outputs, channels, *kernel = weight.shape
            if expected == (outputs, channels + 1, *kernel):
                reshaped[name] = torch.cat([weight, torch.zeros_like(weight[:, :1])], 1)
                notes.append(f"{name} got a channel of zeros for the padding of the images")
    return reshaped


def _check_fit(
    found: ForeignWeights, target: TargetNetwork, weights: Tensors, unknown: set[str]
) -> None:
    expected = target.tensors
    shapes = {
        name: f"{name} {shape_text(weight)} for {shape_text(expected[name])}"
        for name, weight in weights.items()
        if weight.shape != expected[name].shape
    }
    types = [f"{name} {shape_text(one)}" for name, one in weights.items() if not _is_weight(one)]
    problems = [
        list_names("missing", [name for name in expected if name not in weights]),
        list_names("left over", [name for name in found.tensors if name in unknown]),
        list_names("of another shape", list(shapes.values())),
        list_names("of a type that is no weight", types),
    ]
    if any(problems):
        raise CheckpointError(
            f"{found.source} does not fit {target.model}: {'; '.join(filter(None, problems))}; "
            "give the --model and the network options that it was trained with"
        )


def _is_weight(tensor: Tensor) -> bool:
    is_dense = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return is_dense and tensor.dtype in (torch.float32, *_CONVERTED_DTYPES)


def _to_float32(model: Tensors, notes: list[str]) -> Tensors:
    dtypes = sorted({str(one.dtype).removeprefix("torch.") for one in model.values()} - {"float32"})
    if dtypes:
        notes.append(f"converted from {' and '.join(dtypes)} to float32")
    return {name: weight.to(torch.float32).contiguous() for name, weight in model.items()}


def _check_values(source: str, model: Tensors) -> None:
    """Refuse weights that are not finite, and variances below zero."""
    wrong = {
        "not finite": [name for name, one in model.items() if not bool(torch.isfinite(one).all())],
        "below zero": [
            name
            for name, one in model.items()
            if name.endswith(".running_var") and bool((one < 0).any())
        ],
    }
    for what, names in wrong.items():
        if names:
            raise CheckpointError(f"{source} holds {list_names(what, names)}; it cannot be used")


def _batch_count(counts: Tensors) -> int | None:
    """One number for all norms, as a training leaves it; None for anything else."""
    scalars = [one for one in counts.values() if one.dtype == torch.int64 and one.dim() == 0]
    values = {int(one) for one in scalars if one.layout == torch.strided}
    return values.pop() if len(values) == 1 else None


def foreign_tensors(model: Mapping[str, Tensor], naming: str, batches: int) -> Tensors:
    """Our weights under another program's names and shapes, with torch's count of batches."""
    names = foreign_names(naming, list(model))
    if names is None:
        possible = [one for one in NAMINGS if foreign_names(one, list(model)) is not None]
        raise ConfigError(f"{naming} has no such network; use --naming {' or '.join(possible)}")
    renamed = {names[name]: weight for name, weight in model.items()}
    if naming == CONVOY:
        return renamed
    for name, weight in renamed.items():
        if name.startswith("classifier") and weight.dim() == 4:  # a 1 × 1 convolution of ours
            renamed[name] = weight.flatten(1)
    means = [name for name in renamed if name.endswith(_MEAN)]
    return renamed | {
        f"{name.removesuffix(_MEAN)}{TRACKED}": torch.tensor(batches) for name in means
    }


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    with path.open("wb") as file:
        file.writelines(TensorFile(tensors).chunks())
