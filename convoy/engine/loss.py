"""What is made small."""

import torch.nn.functional as F
from torch import Tensor

from convoy.config.sections.optimizer import LossConfig


class CrossEntropy:
    """Mean cross-entropy; smoothing gives every class an even share of the target.

    With smoothing e over K classes the target is 1 − e + e/K for the right class, e/K for the rest.
    """

    def __init__(self, config: LossConfig) -> None:
        self.smoothing = config.label_smoothing

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=self.smoothing)
