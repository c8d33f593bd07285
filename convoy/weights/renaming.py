"""The weights of a network of ours → a file of named tensors that another program loads."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from convoy.checkpoint.contents import Tensors
from convoy.checkpoint.tensors import TensorFile
from convoy.checkpoint.writing import write_file
from convoy.errors import ConfigError
from convoy.weights.naming import CONVOY, NAMINGS, TRACKED, foreign_names

_MEAN = ".running_mean"


def foreign_tensors(model: Mapping[str, Tensor], naming: str, batches: int) -> Tensors:
    """Their names and shapes; beside each batch norm the count of batches that torch keeps."""
    names = foreign_names(naming, list(model))
    if names is None:
        raise ConfigError(f"{naming} has no such network; use --naming {_others(list(model))}")
    renamed = {
        names[name].name: one.flatten(1) if names[name].linear else one
        for name, one in model.items()
    }
    if naming == CONVOY:
        return renamed
    means = [name for name in renamed if name.endswith(_MEAN)]
    return renamed | {
        f"{name.removesuffix(_MEAN)}{TRACKED}": torch.tensor(batches) for name in means
    }


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file, on disk when this returns."""
    path.unlink(missing_ok=True)
    write_file(path, TensorFile(tensors).chunks())


def _others(names: Sequence[str]) -> str:
    return " or ".join(one for one in NAMINGS if foreign_names(one, names) is not None)
