"""Cross-entropy with smoothed labels against the formula in 64 bits."""

import numpy as np
import pytest
import torch

from convoy.config.sections.optimizer import LossConfig
from convoy.engine.loss import CrossEntropy


def formula(logits: np.ndarray, labels: np.ndarray, smoothing: float) -> float:
    """Targets of 1 − e + e/K and e/K, the mean over the samples."""
    samples, classes = logits.shape
    shifted = logits - logits.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    targets = np.full((samples, classes), smoothing / classes)
    targets[np.arange(samples), labels] += 1 - smoothing
    return float(-(targets * logs).sum(1).mean())


@pytest.mark.parametrize("smoothing", [0.0, 0.05, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_the_loss_is_the_written_formula(classes: int, smoothing: float):
    chance = np.random.default_rng(classes)
    logits = chance.normal(scale=3, size=(8, classes))
    labels = chance.integers(classes, size=8)
    loss = CrossEntropy(LossConfig(label_smoothing=smoothing))
    found = loss(torch.tensor(logits, dtype=torch.float32), torch.tensor(labels))

    assert float(found) == pytest.approx(formula(logits, labels, smoothing), rel=1e-5)


def test_without_smoothing_only_the_right_class_counts():
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    found = CrossEntropy(LossConfig())(logits, torch.tensor([1]))

    assert float(found) == pytest.approx(np.log(np.exp([1.0, 0.0, -1.0]).sum()))


def test_even_logits_cost_the_logarithm_of_the_classes_whatever_the_smoothing():
    for smoothing in (0.0, 0.1, 1.0):
        loss = CrossEntropy(LossConfig(label_smoothing=smoothing))

        assert float(loss(torch.zeros(4, 10), torch.arange(4))) == pytest.approx(np.log(10))


def test_huge_logits_stay_finite():
    logits = torch.tensor([[1e30, -1e30], [-1e30, 1e30]])
    found = CrossEntropy(LossConfig(label_smoothing=0.1))(logits, torch.tensor([0, 1]))

    assert bool(torch.isfinite(found))
