"""One SHA-256 for a set of named tensors: equal exactly when every bit of every tensor is."""

import hashlib
import json
from collections.abc import Mapping

import torch
from torch import Tensor


def raw_bytes(tensor: Tensor) -> memoryview:
    """The elements in row order, whatever the strides and the device; a view where possible."""
    return tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data


def weights_sha256(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over sorted names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        # A line of JSON cannot run into its neighbors, and fixes how many bytes follow it.
        label = [name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        digest.update(json.dumps(label).encode() + b"\n")
        digest.update(raw_bytes(tensor))
    return digest.hexdigest()
