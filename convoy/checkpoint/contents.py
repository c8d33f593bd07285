"""What a checkpoint contains: named tensors and plain values, independent of the layout."""

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from convoy.checkpoint.format import JSON, raw_bytes
from convoy.errors import CheckpointError

Tensors = dict[str, Tensor]
_NAMES_SHOWN = 4


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


@dataclass(frozen=True)
class Contents:
    """Model, optimizer and averages by name; `state` is everything that is not a tensor."""

    model: Tensors  # parameters and buffers
    optimizer: Tensors = field(default_factory=dict)  # `<parameter>/<slot>`
    averages: Tensors = field(default_factory=dict)
    state: dict[str, JSON] = field(default_factory=dict)  # `update` is always there

    @property
    def update(self) -> int:
        """The number of updates done."""
        update = self.state.get("update")
        if not isinstance(update, int) or isinstance(update, bool) or update < 0:
            raise CheckpointError(f"the state of a checkpoint needs its update, not {update!r:.80}")
        return update

    @property
    def tensors(self) -> dict[str, Tensors]:
        """By field."""
        return {"model": self.model, "optimizer": self.optimizer, "averages": self.averages}

    def copy(self, reuse: "Contents | None" = None) -> "Contents":
        """A copy on the CPU that later training cannot change; `reuse` gives up its memory."""
        spent = (reuse or Contents(model={})).tensors
        copies = {part: _copy_tensors(named, spent[part]) for part, named in self.tensors.items()}
        return Contents(**copies, state=deepcopy(self.state))


def _copy_tensors(tensors: Mapping[str, Tensor], spent: Mapping[str, Tensor]) -> Tensors:
    return {name: _copy_tensor(tensor, spent.get(name)) for name, tensor in tensors.items()}


def _copy_tensor(tensor: Tensor, spent: Tensor | None) -> Tensor:
    """One memcpy; fresh memory costs a page fault every 4 KiB on top, so it is used again."""
    if spent is None or spent.shape != tensor.shape or spent.dtype != tensor.dtype:
        spent = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return spent.copy_(tensor.detach())


def match(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], of: str = "model") -> None:
    """CheckpointError unless names, shapes and dtypes are exactly those expected."""
    other = [name for name in found if name in expected and _differ(found[name], expected[name])]
    problems = [
        list_names("missing", [name for name in expected if name not in found]),
        list_names("unexpected", [name for name in found if name not in expected]),
        list_names(
            "of another shape or type",
            [
                f"{name} {shape_text(found[name])} for {shape_text(expected[name])}"
                for name in other
            ],
        ),
    ]
    if any(problems):
        raise CheckpointError(
            f"the checkpoint does not fit this {of}: {'; '.join(filter(None, problems))}; "
            "train or validate with the options it was saved under"
        )


def _differ(tensor: Tensor, other: Tensor) -> bool:
    return tensor.shape != other.shape or tensor.dtype != other.dtype


def shape_text(tensor: Tensor) -> str:
    """`10×64 float32`."""
    shape = "×".join(map(str, tensor.shape)) or "scalar"
    return f"{shape} {str(tensor.dtype).removeprefix('torch.')}"


def list_names(what: str, names: list[str]) -> str:
    """`2 missing (fc.bias, fc.weight)`; empty if there are none."""
    if not names:
        return ""
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names):,} {what} ({', '.join(names[:_NAMES_SHOWN])}{more})"
