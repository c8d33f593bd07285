"""What is made small."""

import torch
import torch.nn.functional as F
from torch import Tensor

from convoy.batch import Mixed, Targets
from convoy.config.sections.optimizer import LossConfig


class CrossEntropy:
    """Mean cross-entropy; smoothing spreads a share e of the target evenly over K classes.

    over all     1 − e + e/K for the right class, e/K for each of the rest
    over others  1 − e for the right class, e/(K − 1) for each of the rest

    Of several labels each one counts with its share.
    """

    def __init__(self, config: LossConfig) -> None:
        self.share = config.label_smoothing
        self.spares_the_right = config.label_smoothing_over == "others"

    def __call__(self, logits: Tensor, targets: Targets) -> Tensor:
        smoothing = self._over_all(logits.shape[1])
        if isinstance(targets, Tensor) and smoothing <= 1:
            return F.cross_entropy(logits, targets, label_smoothing=smoothing)
        logs = F.log_softmax(logits, 1)
        loss = _shared(logs, targets) if isinstance(targets, Mixed) else F.nll_loss(logs, targets)
        return (1 - smoothing) * loss - smoothing * logs.mean() if smoothing else loss

    def _over_all(self, classes: int) -> float:
        """What would have to be spread over all classes to come to the same target.

        It may be above 1, where the right class is to be less likely than the others.
        """
        return self.share * classes / (classes - 1) if self.spares_the_right else self.share


def _shared(logs: Tensor, mixed: Mixed) -> Tensor:
    """The even share is the same for every label, and their shares add up to 1."""
    each = torch.stack([F.nll_loss(logs, one, reduction="none") for one in mixed.labels])
    return (each * mixed.shares).sum(0).mean()
