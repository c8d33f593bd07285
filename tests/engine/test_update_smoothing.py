"""Label smoothing in both conventions against float64 targets, for hard and mixed labels."""

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
epsilons = pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.45, 0.9, 1.0])
sizes = pytest.mark.parametrize("classes", [2, 3, 10, 1000])


def target_of(label: int, classes: int, epsilon: float, over: str) -> F64:
    """The target distribution of one label."""
    if over == "others":
        target = np.full(classes, epsilon / (classes - 1))
        target[label] = 1 - epsilon
    else:
        target = np.full(classes, epsilon / classes)
        target[label] = 1 - epsilon + epsilon / classes
    return target


def reference(logits: F64, target: F64) -> tuple[float, F64]:
    """Mean cross-entropy with these targets; its gradient is (softmax − target) / samples."""
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    softmax = shifted / shifted.sum(1, keepdims=True)
    return float(-(target * np.log(softmax)).sum(1).mean()), (softmax - target) / len(logits)


def sample(classes: int) -> tuple[F64, npt.NDArray[np.int64]]:
    rng = np.random.default_rng(classes)
    logits = rng.normal(scale=2, size=(SAMPLES, classes)).astype(np.float32)
    return logits.astype(np.float64), rng.integers(classes, size=(4, SAMPLES))


def loss_and_gradient(
    logits: F64, targets: torch.Tensor | MixedTargets, epsilon: float, over: str
) -> tuple[float, F64]:
    values = torch.from_numpy(logits).float().requires_grad_()
    loss = CrossEntropy(LossConfig(label_smoothing=epsilon, label_smoothing_over=over))
    output = loss(values, targets)
    output.backward()
    assert values.grad is not None
    return output.item(), values.grad.double().numpy()


@conventions
@epsilons
@sizes
def test_smoothing_of_a_hard_label_follows_the_formula(classes: int, epsilon: float, over: str):
    logits, labels = sample(classes)
    target = np.stack([target_of(label, classes, epsilon, over) for label in labels[0]])
    loss, gradient = reference(logits, target)
    ours, grad = loss_and_gradient(logits, torch.from_numpy(labels[0]), epsilon, over)

    assert ours == pytest.approx(loss, rel=2e-6)
    np.testing.assert_allclose(grad, gradient, rtol=1e-5, atol=1e-7)


@conventions
@epsilons
@sizes
@pytest.mark.parametrize("num_labels", [2, 4])
def test_smoothing_of_mixed_labels_follows_the_formula(
    num_labels: int, classes: int, epsilon: float, over: str
):
    logits, labels = sample(classes)
    weights = np.random.default_rng(num_labels).dirichlet(np.ones(num_labels), SAMPLES).T
    weights = weights.astype(np.float32).astype(np.float64)
    target = np.zeros((SAMPLES, classes))
    for item, label_weights in zip(labels, weights, strict=False):
        target += label_weights[:, None] * np.stack(
            [target_of(label, classes, epsilon, over) for label in item]
        )
    loss, gradient = reference(logits, target)
    mixed = MixedTargets(torch.from_numpy(labels[:num_labels]), torch.from_numpy(weights).float())
    ours, grad = loss_and_gradient(logits, mixed, epsilon, over)

    assert ours == pytest.approx(loss, rel=2e-6)
    np.testing.assert_allclose(grad, gradient, rtol=1e-5, atol=1e-7)


@conventions
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize(
    "config",
    [
        MixingConfig(mixup_alpha=0.4),
        MixingConfig(cutmix_lambda_low=0.3, cutmix_lambda_high=0.6),
        MixingConfig(mixup_alpha=0.4, cutmix_lambda_low=0.3, cutmix_lambda_high=0.6),
    ],
    ids=["mixup", "cutmix", "both"],
)
def test_the_loss_of_a_mixed_batch_is_that_of_its_mixed_targets(
    config: MixingConfig, epsilon: float, over: str
):
    """Each target is mixed with the previous one by mixup and the one before that by cutmix."""
    logits, labels = sample(10)
    mix = Mixing(config, seed=2, image_size=16).sample(0, 1, SAMPLES)
    assert mix is not None
    target = np.stack([target_of(label, 10, epsilon, over) for label in labels[0]])
    if mix.mixup_lambda is not None:
        lam = mix.mixup_lambda[:, None]
        target = lam * target + (1 - lam) * np.roll(target, 1, 0)
    if mix.box is not None:
        target = mix.box.lam * target + (1 - mix.box.lam) * np.roll(target, 2, 0)
    loss, gradient = reference(logits, target)
    ours, grad = loss_and_gradient(
        logits, mix.mix_targets(torch.from_numpy(labels[0])), epsilon, over
    )

    assert ours == pytest.approx(loss, rel=2e-6)
    np.testing.assert_allclose(grad, gradient, rtol=1e-5, atol=1e-7)


@sizes
def test_the_smoothing_conventions_can_be_converted(classes: int):
    logits, labels = sample(classes)
    hard = torch.from_numpy(labels[0])
    others, _ = loss_and_gradient(logits, hard, 0.3, "others")
    over_all, _ = loss_and_gradient(logits, hard, 0.3 * classes / (classes - 1), "all")

    assert others == pytest.approx(over_all, rel=1e-6)


def test_the_example_in_the_documentation_is_correct():
    logits = np.log([[0.7, 0.2, 0.1, 0.1, 0.1]])  # the sum is 1.2
    hard = torch.tensor([0])
    logs = np.log([0.7, 0.2, 0.1, 0.1, 0.1]) - np.log(1.2)

    assert loss_and_gradient(logits, hard, 0.1, "all")[0] == pytest.approx(
        -np.dot([0.92, 0.02, 0.02, 0.02, 0.02], logs), rel=1e-6
    )
    assert loss_and_gradient(logits, hard, 0.1, "others")[0] == pytest.approx(
        -np.dot([0.9, 0.025, 0.025, 0.025, 0.025], logs), rel=1e-6
    )


def test_others_without_smoothing_has_the_bits_of_plain_cross_entropy():
    logits, labels = sample(10)
    hard = torch.from_numpy(labels[0])

    assert (
        loss_and_gradient(logits, hard, 0.0, "others")[0]
        == loss_and_gradient(logits, hard, 0.0, "all")[0]
    )
