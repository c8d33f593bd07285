"""What is made small."""

import torch
import torch.nn.functional as F
from torch import Tensor

from convoy.config.sections.optimizer import LossConfig
from convoy.parallel.targets import Mixed, Targets


class CrossEntropy:
    """Mean cross-entropy; smoothing gives every class an even share of the target.

    With smoothing e over K classes the target is 1 − e + e/K for the right class, e/K for the rest.
    Of several labels each one counts with its share.
    """

    def __init__(self, config: LossConfig) -> None:
        self.smoothing = config.label_smoothing

    def __call__(self, logits: Tensor, targets: Targets) -> Tensor:
        if isinstance(targets, Mixed):
            return self._shared(F.log_softmax(logits, 1), targets)
        return F.cross_entropy(logits, targets, label_smoothing=self.smoothing)

    def _shared(self, logs: Tensor, mixed: Mixed) -> Tensor:
        """The even share is the same for every label, and their shares add up to 1."""
        each = torch.stack([F.nll_loss(logs, one, reduction="none") for one in mixed.labels])
        loss = (each * mixed.shares).sum(0).mean()
        if self.smoothing:
            loss = (1 - self.smoothing) * loss - self.smoothing * logs.mean()
        return loss
