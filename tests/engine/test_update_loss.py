"""Cross-entropy with smoothed labels against the formula in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from convoy.batch import MixedTargets
from convoy.config.sections.training import LossConfig
from convoy.engine.update import CrossEntropy


def formula(logits: np.ndarray, labels: np.ndarray, smoothing: float) -> float:
    """Mean cross-entropy with targets of 1 − e + e/K and e/K."""
    samples, classes = logits.shape
    shifted = logits - logits.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    targets = np.full((samples, classes), smoothing / classes)
    targets[np.arange(samples), labels] += 1 - smoothing
    return float(-(targets * logs).sum(1).mean())


@pytest.mark.parametrize("smoothing", [0.0, 0.05, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_the_loss_follows_the_formula(classes: int, smoothing: float):
    rng = np.random.default_rng(classes)
    logits = rng.normal(scale=3, size=(8, classes))
    labels = rng.integers(classes, size=8)
    loss = CrossEntropy(LossConfig(label_smoothing=smoothing))
    loss_value = loss(torch.tensor(logits, dtype=torch.float32), torch.tensor(labels))

    assert float(loss_value) == pytest.approx(formula(logits, labels, smoothing), rel=1e-5)


def test_without_smoothing_only_the_target_class_counts():
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    loss_value = CrossEntropy(LossConfig())(logits, torch.tensor([1]))

    assert float(loss_value) == pytest.approx(np.log(np.exp([1.0, 0.0, -1.0]).sum()))


def test_equal_logits_have_the_loss_of_the_log_of_the_classes():
    for smoothing in (0.0, 0.1, 1.0):
        loss = CrossEntropy(LossConfig(label_smoothing=smoothing))

        assert float(loss(torch.zeros(4, 10), torch.arange(4))) == pytest.approx(np.log(10))


def test_huge_logits_stay_finite():
    logits = torch.tensor([[1e30, -1e30], [-1e30, 1e30]])
    loss_value = CrossEntropy(LossConfig(label_smoothing=0.1))(logits, torch.tensor([0, 1]))

    assert bool(torch.isfinite(loss_value))


SMOOTHINGS = pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])


def mixed_samples(
    num_labels: int, samples: int = 7, classes: int = 10
) -> tuple[np.ndarray, MixedTargets]:
    """Logits and mixed labels; the first sample has the same label twice."""
    rng = np.random.default_rng(num_labels)
    shares = rng.random((num_labels, samples))
    shares = (shares / shares.sum(0)).astype(np.float32)
    labels = rng.integers(classes, size=(num_labels, samples))
    labels[-1, 0] = labels[0, 0]
    logits = rng.normal(scale=3, size=(samples, classes)).astype(np.float32)
    return logits, MixedTargets(torch.from_numpy(labels), torch.from_numpy(shares))


def reference_loss(logits: torch.Tensor, mixed: MixedTargets, smoothing: float) -> torch.Tensor:
    """Cross-entropy with dense targets, in the dtype of the logits."""
    samples, classes = logits.shape
    target = torch.full((samples, classes), smoothing / classes, dtype=logits.dtype)
    for labels, shares in zip(mixed.labels, mixed.weights.to(logits.dtype), strict=True):
        target[torch.arange(samples), labels] += (1 - smoothing) * shares
    return -(target * logits.log_softmax(1)).sum(1).mean()


@SMOOTHINGS
@pytest.mark.parametrize("num_labels", [1, 2, 4])
def test_mixed_labels_are_weighted(num_labels: int, smoothing: float):
    logits, mixed = mixed_samples(num_labels)
    ours = torch.from_numpy(logits).requires_grad_()
    plain = torch.from_numpy(logits).double().requires_grad_()
    loss_value = CrossEntropy(LossConfig(label_smoothing=smoothing))(ours, mixed)
    expected = reference_loss(plain, mixed, smoothing)
    loss_value.backward()
    expected.backward()

    assert loss_value.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(ours.grad.double(), plain.grad, rtol=1e-5, atol=1e-7)


@SMOOTHINGS
def test_the_loss_of_mixed_labels_is_the_sum_of_their_losses(smoothing: float):
    logits, mixed = mixed_samples(4, samples=1)
    loss = CrossEntropy(LossConfig(label_smoothing=smoothing))
    values = torch.from_numpy(logits)
    losses = [float(loss(values, labels)) for labels in mixed.labels]
    expected = np.dot(mixed.weights[:, 0].tolist(), losses)

    assert float(loss(values, mixed)) == pytest.approx(expected, rel=1e-6)


@SMOOTHINGS
def test_a_single_label_has_the_bits_of_plain_cross_entropy(smoothing: float):
    logits, mixed = mixed_samples(1)
    ours, plain = (torch.from_numpy(logits).requires_grad_() for _ in range(2))
    loss_value = CrossEntropy(LossConfig(label_smoothing=smoothing))(ours, mixed.labels[0])
    expected = F.cross_entropy(plain, mixed.labels[0], label_smoothing=smoothing)
    loss_value.backward()
    expected.backward()

    assert torch.equal(loss_value, expected)
    assert torch.equal(ours.grad, plain.grad)


def test_a_label_with_zero_weight_does_not_count():
    logits, _ = mixed_samples(2)
    labels = torch.randint(10, (2, 7))
    targets = MixedTargets(labels, torch.tensor([1.0, 0.0])[:, None].expand(2, 7))
    loss_value = CrossEntropy(LossConfig())(torch.from_numpy(logits), targets)

    assert float(loss_value) == pytest.approx(
        float(F.cross_entropy(torch.from_numpy(logits), labels[0])), rel=1e-6
    )
