"""What a checkpoint holds: named tensors and plain values, free of any layout.

A parameter has one name whatever the stages and replicas that trained it, so any layout can load
what any other saved.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from convoy.checkpoint.strict_json import JSON
from convoy.errors import CheckpointError

_NAMES_SHOWN = 4

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Contents:
    """Model, optimizer and averages by name; `state` is everything that is not a tensor."""

    model: Tensors  # parameters and buffers
    optimizer: Tensors = field(default_factory=dict)  # `<parameter>/<slot>`
    averages: Tensors = field(default_factory=dict)
    state: dict[str, JSON] = field(default_factory=dict)  # `update` is always there

    @property
    def update(self) -> int:
        """How many updates led here."""
        update = self.state.get("update")
        if not isinstance(update, int) or isinstance(update, bool) or update < 0:
            raise CheckpointError(f"the state of a checkpoint needs its update, not {update!r:.80}")
        return update

    def copy(self, reuse: "Contents | None" = None) -> "Contents":
        """A copy on the CPU that later training cannot change; `reuse` gives up its memory."""
        spent = reuse or Contents(model={})
        return Contents(
            model=_copy_tensors(self.model, spent.model),
            optimizer=_copy_tensors(self.optimizer, spent.optimizer),
            averages=_copy_tensors(self.averages, spent.averages),
            state=deepcopy(self.state),
        )


def _copy_tensors(tensors: Mapping[str, Tensor], spent: Mapping[str, Tensor]) -> Tensors:
    return {name: _copy_tensor(tensor, spent.get(name)) for name, tensor in tensors.items()}


def _copy_tensor(tensor: Tensor, spent: Tensor | None) -> Tensor:
    """One memcpy; fresh memory costs a page fault every 4 KiB on top, so it is used again."""
    if spent is None or spent.shape != tensor.shape or spent.dtype != tensor.dtype:
        spent = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    return spent.copy_(tensor.detach())


def match(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], of: str = "model") -> None:
    """Refuse tensors that are not exactly those of the model (or optimizer) that wants them."""
    other = [name for name in found if name in expected and _differ(found[name], expected[name])]
    problems = [
        listed("missing", [name for name in expected if name not in found]),
        listed("unexpected", [name for name in found if name not in expected]),
        listed(
            "of another shape or type",
            [f"{name} {form(found[name])} for {form(expected[name])}" for name in other],
        ),
    ]
    if any(problems):
        raise CheckpointError(
            f"the checkpoint does not fit this {of}: {'; '.join(filter(None, problems))}; "
            "train or validate with the options it was saved under"
        )


def _differ(one: Tensor, other: Tensor) -> bool:
    return one.shape != other.shape or one.dtype != other.dtype


def form(tensor: Tensor) -> str:
    """`10×64 float32`, the way a person says it."""
    shape = "×".join(map(str, tensor.shape)) or "scalar"
    return f"{shape} {str(tensor.dtype).removeprefix('torch.')}"


def listed(what: str, names: list[str]) -> str:
    """`2 missing (fc.bias, fc.weight)`; nothing if there are none."""
    if not names:
        return ""
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names):,} {what} ({', '.join(names[:_NAMES_SHOWN])}{more})"
