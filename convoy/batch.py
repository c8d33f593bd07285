"""Micro-batches and their targets: the types that data, parallel and engine share."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class MixedTargets:
    """Several weighted labels per sample."""

    labels: Tensor  # (several, micro); the sample's original label first
    weights: Tensor  # (several, micro); they add up to 1 for each sample


Targets = Tensor | MixedTargets  # labels are (micro,)
Bundle = tuple[Tensor, ...]  # what a layer or stage passes to the next: usually one tensor
