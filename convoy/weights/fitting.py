"""Weights of other programs ↔ the weights of one of our networks, every name and shape checked.

On import a classifier for another number of classes is initialised anew, and a stem for one more
channel is padded; everything else that does not fit is refused, all of it together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from convoy.checkpoint.contents import Tensors, list_names, shape_text
from convoy.checkpoint.format import TensorFile
from convoy.errors import CheckpointError, ConfigError
from convoy.weights.naming import CONVOY, NAMINGS, TRACKED, detect, foreign_names
from convoy.weights.reading import ForeignWeights

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
    renamed = {name: foreign[other.name] for name, other in names.items() if other.name in foreign}
    notes: list[str] = []
    new_head = _new_head(renamed, target, notes)
    fitted = {**_reshape(renamed, target, notes), **new_head}
    unknown = foreign.keys() - {other.name for other in names.values()}
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
        raise ConfigError(f"{naming} has no such network; use --naming {_possible(list(model))}")
    renamed = {
        names[name].name: weight.flatten(1) if names[name].linear else weight
        for name, weight in model.items()
    }
    if naming == CONVOY:
        return renamed
    means = [name for name in renamed if name.endswith(_MEAN)]
    return renamed | {
        f"{name.removesuffix(_MEAN)}{TRACKED}": torch.tensor(batches) for name in means
    }


def _possible(names: Sequence[str]) -> str:
    return " or ".join(naming for naming in NAMINGS if foreign_names(naming, names) is not None)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file."""
    with path.open("wb") as file:
        file.writelines(TensorFile(tensors).chunks())
