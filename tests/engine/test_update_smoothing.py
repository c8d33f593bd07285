"""Label smoothing in both conventions: targets written out in 64 bits, hard and mixed labels."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from convoy.batch import MixedTargets
from convoy.config.sections.data import MixingConfig
from convoy.config.sections.training import LossConfig
from convoy.data.mix import Mixing
from convoy.engine.update import CrossEntropy

F64 = npt.NDArray[np.float64]
SAMPLES = 6

conventions = pytest.mark.parametrize("over", ["all", "others"])
shares = pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.45, 0.9, 1.0])
sizes = pytest.mark.parametrize("classes", [2, 3, 10, 1000])


def target_of(label: int, classes: int, epsilon: float, over: str) -> F64:
    """What one label asks for."""
    if over == "others":
        target = np.full(classes, epsilon / (classes - 1))
        target[label] = 1 - epsilon
    else:
        target = np.full(classes, epsilon / classes)
        target[label] = 1 - epsilon + epsilon / classes
    return target


def loss_and_gradient(logits: F64, target: F64) -> tuple[float, F64]:
    """Mean cross-entropy with these targets; its gradient is (softmax − target) / samples."""
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    softmax = shifted / shifted.sum(1, keepdims=True)
    return float(-(target * np.log(softmax)).sum(1).mean()), (softmax - target) / len(logits)


def drawn(classes: int) -> tuple[F64, npt.NDArray[np.int64]]:
    chance = np.random.default_rng(classes)
    logits = chance.normal(scale=2, size=(SAMPLES, classes)).astype(np.float32)
    return logits.astype(np.float64), chance.integers(classes, size=(4, SAMPLES))


def found(
    logits: F64, targets: torch.Tensor | MixedTargets, epsilon: float, over: str
) -> tuple[float, F64]:
    values = torch.from_numpy(logits).float().requires_grad_()
    loss = CrossEntropy(LossConfig(label_smoothing=epsilon, label_smoothing_over=over))
    output = loss(values, targets)
    output.backward()
    assert values.grad is not None
    return output.item(), values.grad.double().numpy()


@conventions
@shares
@sizes
def test_smoothing_of_a_hard_label_follows_the_formula(classes: int, epsilon: float, over: str):
    logits, labels = drawn(classes)
    target = np.stack([target_of(label, classes, epsilon, over) for label in labels[0]])
    loss, gradient = loss_and_gradient(logits, target)
    ours, slope = found(logits, torch.from_numpy(labels[0]), epsilon, over)

    assert ours == pytest.approx(loss, rel=2e-6)
    np.testing.assert_allclose(slope, gradient, rtol=1e-5, atol=1e-7)


@conventions
@shares
@sizes
@pytest.mark.parametrize("several", [2, 4])
def test_smoothing_of_mixed_labels_follows_the_formula(
    several: int, classes: int, epsilon: float, over: str
):
    logits, labels = drawn(classes)
    weights = np.random.default_rng(several).dirichlet(np.ones(several), SAMPLES).T
    weights = weights.astype(np.float32).astype(np.float64)
    target = np.zeros((SAMPLES, classes))
    for item, share in zip(labels, weights, strict=False):
        target += share[:, None] * np.stack(
            [target_of(label, classes, epsilon, over) for label in item]
        )
    loss, gradient = loss_and_gradient(logits, target)
    mixed = MixedTargets(torch.from_numpy(labels[:several]), torch.from_numpy(weights).float())
    ours, slope = found(logits, mixed, epsilon, over)

    assert ours == pytest.approx(loss, rel=2e-6)
    np.testing.assert_allclose(slope, gradient, rtol=1e-5, atol=1e-7)


@conventions
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize(
    "wish",
    [
        MixingConfig(mixup_alpha=0.4),
        MixingConfig(cutmix_lambda_low=0.3, cutmix_lambda_high=0.6),
        MixingConfig(mixup_alpha=0.4, cutmix_lambda_low=0.3, cutmix_lambda_high=0.6),
    ],
    ids=["mixup", "cutmix", "both"],
)
def test_the_loss_of_a_mixed_batch_is_that_of_its_mixed_targets(
    wish: MixingConfig, epsilon: float, over: str
):
    """One target a class: each label spread, blended with the one before, cut with two before."""
    logits, labels = drawn(10)
    mix = Mixing(wish, seed=2, image_size=16).sample(0, 1, SAMPLES)
    assert mix is not None
    target = np.stack([target_of(label, 10, epsilon, over) for label in labels[0]])
    if mix.mixup_lambda is not None:
        local = mix.mixup_lambda[:, None]
        target = local * target + (1 - local) * np.roll(target, 1, 0)
    if mix.box is not None:
        target = mix.box.lam * target + (1 - mix.box.lam) * np.roll(target, 2, 0)
    loss, gradient = loss_and_gradient(logits, target)
    ours, slope = found(logits, mix.mix_targets(torch.from_numpy(labels[0])), epsilon, over)

    assert ours == pytest.approx(loss, rel=2e-6)
    np.testing.assert_allclose(slope, gradient, rtol=1e-5, atol=1e-7)


@sizes
def test_the_smoothing_conventions_can_be_converted(classes: int):
    logits, labels = drawn(classes)
    hard = torch.from_numpy(labels[0])
    others, _ = found(logits, hard, 0.3, "others")
    over_all, _ = found(logits, hard, 0.3 * classes / (classes - 1), "all")

    assert others == pytest.approx(over_all, rel=1e-6)


def test_the_example_of_the_documentation():
    logits = np.log([[0.7, 0.2, 0.1, 0.1, 0.1]])  # of 1.2 in all
    hard = torch.tensor([0])
    logs = np.log([0.7, 0.2, 0.1, 0.1, 0.1]) - np.log(1.2)

    assert found(logits, hard, 0.1, "all")[0] == pytest.approx(
        -np.dot([0.92, 0.02, 0.02, 0.02, 0.02], logs), rel=1e-6
    )
    assert found(logits, hard, 0.1, "others")[0] == pytest.approx(
        -np.dot([0.9, 0.025, 0.025, 0.025, 0.025], logs), rel=1e-6
    )


def test_others_without_smoothing_has_the_bits_of_plain_cross_entropy():
    logits, labels = drawn(10)
    hard = torch.from_numpy(labels[0])

    assert found(logits, hard, 0.0, "others")[0] == found(logits, hard, 0.0, "all")[0]
