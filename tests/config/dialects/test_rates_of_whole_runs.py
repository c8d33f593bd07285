"""Every schedule of the three applications over a whole run, in 64-bit numbers from their formulas.

Where an application drops one update late, or one or two changes early, we drop when its users were
told; the last tests say by how much that differs.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from spoken_words import rates

F64 = npt.NDArray[np.float64]

# 50,000 samples of CIFAR: 97 updates of 512 an epoch.
PER_EPOCH, EPOCHS = 97, 12
LENGTH = PER_EPOCH * EPOCHS
UPDATES = np.arange(LENGTH, dtype=np.float64)
EPOCH_OF = UPDATES / PER_EPOCH

TENSORFLOW = (
    "--dataset cifar-10 --batch-size 32 --gradients-to-accumulate 16 "
    f"--epochs {EPOCHS} --base-learning-rate -9"
)
START = 2.0**-9 * 512
PYTORCH = (
    f"--data cifar10 --micro-batch-size 32 --gradient-accumulation 16 --epoch {EPOCHS} --lr 0.3"
)
POPART = f"--dataset CIFAR-10 --batch-size 64 --gradient-accumulation-factor 8 --epochs {EPOCHS}"


def seen(dialect: str, line: str) -> F64:
    plan = rates(dialect, line)
    assert (plan.updates, plan.updates_per_epoch) == (LENGTH, PER_EPOCH)
    return np.array([plan.rate(update) for update in range(LENGTH)])


def drops(points: F64) -> F64:
    """How many of these updates have come."""
    return (points[:, None] <= UPDATES).sum(0).astype(np.float64)


def stepped() -> F64:
    return START * 0.1 ** drops(np.array([0.5, 0.75]) * LENGTH)


def stepped_elsewhere() -> F64:
    return START * 0.3 ** drops(np.array([0.2, 0.6, 0.9]) * LENGTH)


def cosine() -> F64:
    return START * 0.5 * (1 + np.cos(np.pi * UPDATES / LENGTH))


def exponential(decay: float, count: int) -> Callable[[], F64]:
    return lambda: START * decay ** np.floor(EPOCH_OF * count / EPOCHS)


def polynomial(end: float, power: float, warm: int) -> Callable[[], F64]:
    def value() -> F64:
        left = 1 - (UPDATES - warm) / (LENGTH - warm)
        falling = (START - end) * np.maximum(left, 0) ** power + end
        return np.where(warm >= UPDATES, START, falling)

    return value


@pytest.mark.parametrize("warm_up", [0, 1, 5])
@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--lr-schedule stepped", lambda _: stepped()),
        (
            "--learning-rate-schedule 0.2,0.6,0.9 --learning-rate-decay 0.3",
            lambda _: stepped_elsewhere(),
        ),
        ("--lr-schedule cosine", lambda _: cosine()),
        ("--lr-schedule exponential", lambda _: exponential(0.97, 146)()),
        (
            "--lr-schedule exponential --lr-decay-rate 0.9 --lr-drops 7",
            lambda _: exponential(0.9, 7)(),
        ),
        (
            "--lr-schedule polynomial_decay_lr",
            lambda warm: polynomial(1e-5 * START, 2.0, warm * PER_EPOCH)(),
        ),
        (
            "--lr-schedule polynomial_decay_lr --poly-lr-decay-power 1.5 --poly-lr-end-ratio 0.2",
            lambda warm: polynomial(0.2 * START, 1.5, warm * PER_EPOCH)(),
        ),
        (
            "--lr-schedule polynomial_decay_lr --abs-end-learning-rate 0.01",
            lambda warm: polynomial(0.01, 2.0, warm * PER_EPOCH)(),
        ),
    ],
)
def test_rates_of_tensorflow_follow_its_formulas(
    words: str, value: Callable[[int], F64], warm_up: int
) -> None:
    warm = warm_up * PER_EPOCH
    expected = value(warm_up) * np.where(warm > UPDATES, UPDATES / (warm or 1), 1.0)
    found = seen("tensorflow", f"{TENSORFLOW} {words} --warmup-epochs {warm_up}")

    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-18)


def index(frequency: float) -> F64:
    """How often the schedule was to have moved before each update."""
    return np.floor(UPDATES * (frequency or PER_EPOCH) / PER_EPOCH + 1e-9)


def pytorch_value(schedule: str, often: float) -> F64:
    k, all_changes = index(often), EPOCHS * (often or PER_EPOCH)
    match schedule:
        case "step":
            passed = sum(
                (epoch * (often or PER_EPOCH) <= k).astype(float) for epoch in (3, 7.5, 10)
            )
            return 0.3 * 0.25**passed
        case "cosine":
            return 0.3 * 0.5 * (1 + np.cos(np.pi * k / all_changes))
        case _:
            return 0.3 * 0.97**k


@pytest.mark.parametrize("warm_up", [0, 1, 2.5])
@pytest.mark.parametrize("often", [0, 1, 4, 0.424])
@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("step", "--lr-schedule step --lr-decay 0.25 --lr-epoch-decay 3 7.5 10"),
        ("cosine", "--lr-schedule cosine"),
        ("exponential", "--lr-schedule exponential --lr-decay 0.97"),
    ],
)
def test_rates_of_pytorch_follow_its_formulas(
    schedule: str, words: str, often: float, warm_up: float
) -> None:
    value = pytorch_value(schedule, often)
    expected = np.where(warm_up > EPOCH_OF, value * EPOCH_OF / (warm_up or 1), value)
    line = f"{PYTORCH} {words} --lr-scheduler-freq {often} --warmup-epoch {warm_up}"

    np.testing.assert_allclose(seen("pytorch", line), expected, rtol=1e-12, atol=1e-18)


def test_rates_of_popart_follow_its_formula() -> None:
    start = 2.0**-6 * 64  # accumulation does not enter
    multipliers = np.array([1.0, 0.1, 0.01])
    passed = drops(np.array([0.5, 0.75]) * LENGTH).astype(int)

    np.testing.assert_allclose(seen("popart", POPART), start * multipliers[passed], rtol=1e-15)


def test_popart_with_points_and_multipliers_of_its_own() -> None:
    words = "--learning-rate-schedule 0.1,0.9 --learning-rate-decay 1,2,0.5 --base-learning-rate -4"
    multipliers = np.array([1.0, 2.0, 0.5])
    passed = drops(np.array([0.1, 0.9]) * LENGTH).astype(int)

    np.testing.assert_allclose(
        seen("popart", f"{POPART} {words}"), 4 * multipliers[passed], rtol=1e-15
    )


def test_a_drop_comes_with_its_share_and_not_an_update_later() -> None:
    """TensorFlow and PopART wait until the number of the update exceeds the point."""
    literally = START * 0.1 ** ((UPDATES > LENGTH // 2).astype(float) + (UPDATES > LENGTH * 3 // 4))
    found = seen("tensorflow", f"{TENSORFLOW} --warmup-epochs 0")
    other = np.flatnonzero(~np.isclose(found, literally, rtol=1e-12))

    assert other.tolist() == [LENGTH // 2, LENGTH * 3 // 4]


def test_a_schedule_begins_with_its_first_value_and_not_one_or_two_changes_on() -> None:
    """The scheduler of the PyTorch program had been advanced before its first update."""
    words = "--lr-schedule exponential --lr-decay 0.5 --lr-scheduler-freq 0.424"
    theirs = 0.3 * 0.5 ** np.maximum(index(0.424) + 1, 2)
    found = seen("pytorch", f"{PYTORCH} {words} --warmup-epoch 0")

    assert found[0] == 0.3
    assert set(np.round(np.log2(found / theirs)).tolist()) == {1.0, 2.0}
