"""Foreign weights → the weights of one of our networks, every name and shape checked.

A head for another number of classes and a stem for one more channel are made; all else that does
not fit is refused, all of it together.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from convoy.checkpoint.contents import Tensors, form, listed
from convoy.errors import CheckpointError
from convoy.weights.naming import TRACKED, detect, foreign_names
from convoy.weights.reading import ForeignWeights

_ROUNDED = (torch.float16, torch.bfloat16, torch.float64)


@dataclass(frozen=True)
class Wanted:
    """A network that waits for weights."""

    model: str
    forms: Mapping[str, Tensor]  # every tensor, on no device, in the order of the layers
    head: Mapping[str, Tensor]  # what the classifier begins with if it is new
    stem: str  # the weight that meets the image


@dataclass(frozen=True)
class Fitted:
    """Weights under our names, and what was done to make them fit."""

    model: Tensors
    naming: str
    notes: list[str]
    batches_tracked: int | None  # torch's count beside its batch norms, if there is one


def fit(found: ForeignWeights, wanted: Wanted) -> Fitted:
    """The weights for this very network; CheckpointError lists everything that is wrong."""
    counts = {name: one for name, one in found.tensors.items() if name.endswith(TRACKED)}
    others = {name: one for name, one in found.tensors.items() if name not in counts}
    naming = detect(others, list(wanted.forms))
    names = foreign_names(naming, list(wanted.forms))
    assert names is not None, "our own naming has every network"
    given = {name: others[one.name] for name, one in names.items() if one.name in others}
    notes: list[str] = []
    new = _new_head(given, wanted, notes)
    given = _shaped(given, wanted, notes)
    fitting = {**given, **new}
    known = {one.name for one in names.values()}
    _refuse_misfits(found, wanted, fitting, others.keys() - known)
    made = _rounded({name: fitting[name] for name in wanted.forms}, notes)
    _refuse_broken(found.place, made)
    return Fitted(made, naming, notes, _count(counts))


def _new_head(given: Tensors, wanted: Wanted, notes: list[str]) -> Tensors:
    """The whole classifier anew if only its number of classes is another."""
    pairs = [(given[name], wanted.forms[name]) for name in wanted.head if name in given]
    complete = len(pairs) == len(wanted.head)
    if not complete or any(_features(one) != _features(ours) for one, ours in pairs):
        return {}
    classes, ours = len(pairs[0][0]), len(pairs[0][1])
    if classes == ours or any(len(one) != classes for one, _ in pairs):
        return {}
    layer = next(iter(wanted.head)).rpartition(".")[0]
    notes.append(f"{layer} begins anew: the weights know {classes:,} classes, {ours:,} are wanted")
    return dict(wanted.head)


def _features(tensor: Tensor) -> tuple[int, ...]:
    """What a head is given, whatever its classes; a convolution of one pixel is linear."""
    return (tensor.dim() > 0, *tensor.shape[1:2], *(size for size in tensor.shape[2:] if size > 1))


def _shaped(given: Tensors, wanted: Wanted, notes: list[str]) -> Tensors:
    """Linear layers as the convolutions of one pixel that they are; a stem for padded images."""
    shaped = dict(given)
    for name, one in given.items():
        expected = wanted.forms[name].shape
        if one.dim() == 2 and expected == (*one.shape, 1, 1):
            shaped[name] = one[:, :, None, None]
        padded = (one.shape[0], one.shape[1] + 1, *one.shape[2:]) if one.dim() == 4 else None
        if name == wanted.stem and expected == padded:
            shaped[name] = torch.cat([one, torch.zeros_like(one[:, :1])], 1)
            notes.append(f"{name} got a channel of zeros for the padding of the images")
    return shaped


def _refuse_misfits(
    found: ForeignWeights, wanted: Wanted, given: Tensors, left_over: set[str]
) -> None:
    forms = wanted.forms
    other = [name for name in given if given[name].shape != forms[name].shape]
    strange = [name for name in given if not _is_weight(given[name])]
    problems = [
        listed("missing", [name for name in forms if name not in given]),
        listed("left over", [name for name in found.tensors if name in left_over]),
        listed(
            "of another shape",
            [f"{name} {form(given[name])} for {form(forms[name])}" for name in other],
        ),
        listed("of a type that is no weight", [f"{name} {form(given[name])}" for name in strange]),
    ]
    if any(problems):
        raise CheckpointError(
            f"{found.place} does not fit {wanted.model}: {'; '.join(filter(None, problems))}; "
            "give the --model and the network options that it was trained with"
        )


def _is_weight(tensor: Tensor) -> bool:
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return plain and tensor.dtype in (torch.float32, *_ROUNDED)


def _rounded(model: Tensors, notes: list[str]) -> Tensors:
    """All in 32 bits, whatever the file has."""
    kinds = sorted({str(one.dtype).removeprefix("torch.") for one in model.values()} - {"float32"})
    if kinds:
        notes.append(f"converted from {' and '.join(kinds)} to float32")
    return {name: one.to(torch.float32).contiguous() for name, one in model.items()}


def _refuse_broken(place: str, model: Tensors) -> None:
    broken = [name for name, one in model.items() if not bool(torch.isfinite(one).all())]
    if broken:
        raise CheckpointError(f"{place} holds {listed('not finite', broken)}; it cannot be used")
    variances = {name: one for name, one in model.items() if name.endswith(".running_var")}
    negative = [name for name, one in variances.items() if bool((one < 0).any())]
    if negative:
        raise CheckpointError(f"{place} holds {listed('below zero', negative)}; it cannot be used")


def _count(counts: Tensors) -> int | None:
    """One number for all norms, as a training leaves it; anything else tells nothing."""
    plain = [one for one in counts.values() if one.dtype == torch.int64 and one.dim() == 0]
    values = {int(one) for one in plain if one.layout == torch.strided}
    return values.pop() if len(values) == 1 else None
