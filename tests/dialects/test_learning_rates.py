"""The learning rates of the applications, for single updates and for complete runs.

Expected values are computed by hand, or in float64 from the formulas of the applications. Some
applications change the rate one update later or earlier than documented, and convoy follows the
documentation; the last two tests check the difference.
"""

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from support.dialect_words import option_values, problems, rates, read

from convoy.config.schema import DroppedWord


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        # 2 ^ exponent × samples of an update
        ("--dataset imagenet", 0.015625),  # 4 × 2⁻⁸
        ("--dataset imagenet --optimiser momentum", 0.001953125),  # 4 × 2⁻¹¹
        ("--dataset imagenet --model resnext", 0.00390625),  # 1 × 2⁻⁸
        ("--dataset imagenet --model resnext --optimiser momentum", 0.00048828125),  # 1 × 2⁻¹¹
        ("--dataset cifar-10", 0.5),  # 32 × 2⁻⁶
        ("--dataset cifar-10 --optimiser momentum", 0.5),
        ("--dataset cifar-10 --model resnext", 0.125),  # 8 × 2⁻⁶
        ("--dataset cifar-100 --model squeezenet", 0.125),  # 128 × 2⁻¹⁰
        ("--dataset imagenet --model efficientnet", 0.03125),  # 4 × 2⁻⁷
        ("--dataset imagenet --model efficientnet --optimiser momentum", 0.00390625),  # 4 × 2⁻¹⁰
        ("--dataset imagenet --model efficientnet --optimiser RMSprop", 0.000244140625),  # 4 × 2⁻¹⁴
        ("--dataset cifar-10 --model efficientnet", 0.125),  # 8 × 2⁻⁶
        ("--dataset cifar-10 --model efficientnet --optimiser RMSprop", 0.125),
        ("--generated-data --dataset cifar-10", 0.5),
        # 8 × 16 × 16 = 2048 = 2¹¹ samples
        (
            "--optimiser momentum --batch-size 8 --gradient-accumulation-count 16 --replicas 16",
            1.0,
        ),
    ],
)
def test_the_default_exponent_scales_with_the_samples_of_an_update(line: str, rate: float) -> None:
    assert rates("tensorflow", line).initial_lr == rate


@pytest.mark.parametrize("flag", ["--base-learning-rate", "--base-learning-rate-exponent"])
@pytest.mark.parametrize(
    ("exponent", "rate"),
    [
        ("-11", 6.0),  # 12288 / 2048
        ("-13", 1.5),
        ("-9.5", 16.97056274847714),  # 12288 / (512 × √2) = 24 / √2
        ("0", 48.0),  # selects the default: 12288 / 2⁸
    ],
)
def test_a_given_exponent_scales_with_the_samples_of_an_update(
    flag: str, exponent: str, rate: float
) -> None:
    line = f"--batch-size 3 --gradient-accumulation-count 256 --replicas 16 {flag} {exponent}"

    assert rates("tensorflow", line).initial_lr == pytest.approx(rate, rel=1e-15)


def test_an_exponent_of_zero_is_reported() -> None:
    assert read("tensorflow", "--base-learning-rate 0").dropped == [
        DroppedWord("--base-learning-rate 0", "an exponent of 0 selects the default")
    ]


def test_an_absolute_rate_overrides_an_exponent_in_any_order() -> None:
    for line in (
        "--abs-learning-rate 12.5 --base-learning-rate-exponent -9",
        "--base-learning-rate-exponent -9 --abs-learning-rate 12.5",
    ):
        assert rates("tensorflow", line).initial_lr == 12.5
        assert read("tensorflow", line).dropped == [
            DroppedWord("--base-learning-rate-exponent -9", "--abs-learning-rate takes precedence")
        ]


def test_an_absolute_rate_does_not_scale() -> None:
    assert rates("tensorflow", "--abs-learning-rate 0.3 --replicas 16").initial_lr == 0.3
    assert rates("pytorch", "--lr 0.3 --replicas 16 --micro-batch-size 8").initial_lr == 0.3
    assert rates("pytorch", "").initial_lr == 0.01


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        ("", 0.5),  # 32 × 2⁻⁶
        ("--batch-size 48", 0.75),  # 48 × 2⁻⁶
        ("--batch-size 48 --replication-factor 4", 0.75),  # 48 for all replicas together
        ("--batch-size 48 --gradient-accumulation-factor 8", 0.75),  # without accumulation
        ("--batch-size 4 --base-learning-rate -4", 0.25),  # 4 × 2⁻⁴
        ("--base-learning-rate 0", 32.0),  # 32 × 2⁰: 0 does not select a default here
    ],
)
def test_popart_scales_by_the_batch_of_all_replicas(line: str, rate: float) -> None:
    assert rates("popart", line).initial_lr == rate


# 50,000 samples of CIFAR are 100 updates of 500 samples.
CIFAR = "--dataset cifar-10 --batch-size 500 --warmup-epochs 0 --abs-learning-rate 1"


@pytest.mark.parametrize(
    ("update", "drops"),
    [(0, 0), (298, 0), (302, 1), (598, 1), (602, 2), (802, 3), (999, 4)],
)
def test_stepped_drops_at_fractions_of_the_run(update: int, drops: int) -> None:
    plan = rates("tensorflow", f"{CIFAR} --epochs 10 --learning-rate-schedule 0.3,0.6,0.8,0.9")

    assert plan.rate(update) == pytest.approx(0.1**drops)


def test_stepped_drops_by_a_given_factor() -> None:
    plan = rates("tensorflow", f"{CIFAR} --epochs 10 --learning-rate-decay 0.5")

    # The default drops of 1000 updates are at 500 and 750.
    assert [plan.rate(update) for update in (498, 502, 748, 752)] == [1.0, 0.5, 0.5, 0.25]


@pytest.mark.parametrize(("update", "factor"), [(10, 1.0), (22, 0.1), (38, 0.01), (46, 0.001)])
def test_popart_switches_to_absolute_factors(update: int, factor: float) -> None:
    line = (
        "--batch-size 1000 --epochs 1 --base-learning-rate 0 "
        "--learning-rate-schedule 0.4,0.75,0.9 --learning-rate-decay 1,0.1,0.01,0.001"
    )

    # 50 updates with drops at 20, 37.5 and 45; the initial rate is 2⁰ × 1000.
    assert rates("popart", line).rate(update) == pytest.approx(1000 * factor)


def test_factors_that_do_not_fit_the_drops_are_refused() -> None:
    line = "--learning-rate-schedule 0.5 --learning-rate-decay 1,0.1,0.01"

    with pytest.raises(Exception, match="needs 2 rates for 1 milestone, got 3"):
        rates("popart", line)


@pytest.mark.parametrize(
    ("update", "drops"), [(0, 0), (49, 0), (50, 1), (3649, 72), (3650, 73), (7299, 145)]
)
def test_exponential_drops_146_times_in_a_run(update: int, drops: int) -> None:
    plan = rates("tensorflow", f"{CIFAR} --lr-schedule exponential --epochs 73")
    epoch = update / 100

    # 146 drops in 73 epochs of 100 updates: one every 50.
    assert drops == math.floor(epoch * 146 / 73)
    assert plan.rate(update) == pytest.approx(0.97**drops)


def test_exponential_uses_the_given_factor_and_number_of_drops() -> None:
    line = f"{CIFAR} --lr-schedule exponential --epochs 10 --lr-decay-rate 0.9 --lr-drops 20"
    plan = rates("tensorflow", line)

    # 1000 updates, a drop every 50.
    assert [plan.rate(update) for update in (0, 49, 50, 999)] == pytest.approx(
        [1.0, 1.0, 0.9, 0.9**19]
    )


@pytest.mark.parametrize(
    ("update", "rate"),
    [
        (0, 0.0),
        (100, 0.5),  # 100 / 200 of warm-up
        (200, 1.0),
        (400, 0.60625),  # 0.9 × (1 − 200 / 800)² + 0.1 = 0.9 × 0.5625 + 0.1
        (600, 0.325),  # 0.9 × (1 − 400 / 800)² + 0.1
        (999, 0.10000140625),  # 0.9 × (1 / 800)² + 0.1
    ],
)
def test_polynomial_ends_at_an_absolute_rate(update: int, rate: float) -> None:
    line = (
        "--dataset cifar-10 --batch-size 500 --abs-learning-rate 1 --epochs 10 --warmup-epochs 2 "
        "--lr-schedule polynomial_decay_lr --abs-end-learning-rate 0.1 --poly-lr-end-ratio 0.7"
    )

    assert rates("tensorflow", line).rate(update) == pytest.approx(rate)


def test_polynomial_ends_at_a_fraction_with_the_given_power() -> None:
    line = (
        f"{CIFAR} --epochs 10 --lr-schedule polynomial_decay_lr --poly-lr-decay-power 1 "
        "--poly-lr-end-ratio 0.5"
    )

    assert rates("tensorflow", line).rate(500) == pytest.approx(0.75)  # 0.5 × 0.5 + 0.5


def test_deprecated_names_of_polynomial_set_both_ends() -> None:
    assert option_values("tensorflow", "--poly-lr-initial-lr 0.4 --poly-lr-end-lr 0.01") == {
        "lr": 0.4,
        "abs_end_learning_rate": 0.01,
    }


@pytest.mark.parametrize(
    ("update", "rate"),
    [(0, 0.0), (250, 0.5 * 0.5 * (1 + math.cos(math.pi / 4))), (500, 0.5)],
)
def test_cosine_includes_the_updates_of_the_warm_up(update: int, rate: float) -> None:
    line = (
        "--dataset cifar-10 --batch-size 500 --abs-learning-rate 1 --epochs 10 --warmup-epochs 5 "
        "--lr-schedule cosine"
    )

    # 1000 updates, 500 of them warm-up: i / 500 × ½ (1 + cos(π i / 1000)).
    assert rates("tensorflow", line).rate(update) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("line", "dropped"),
    [
        ("--lr-schedule exponential --learning-rate-decay 0.2", "--learning-rate-decay 0.2"),
        ("--lr-schedule stepped --lr-decay-rate 0.9", "--lr-decay-rate 0.9"),
        ("--lr-schedule cosine --lr-decay-rate 0.9", "--lr-decay-rate 0.9"),
        ("--lr-drops 20", "--lr-drops 20"),
        ("--lr-schedule cosine --lr-drops 20", "--lr-drops 20"),
    ],
)
def test_arguments_of_another_schedule_are_dropped(line: str, dropped: str) -> None:
    result = read("tensorflow", line)
    schedule = {"exponential": "exponential", "cosine": "cosine"}
    selected = next((name for name in schedule if name in line), "step")

    assert result.dropped == [DroppedWord(dropped, f"the schedule is {selected}")]
    assert {"lr_decay", "lr_drops"} & result.settings.keys() == set()


@pytest.mark.parametrize("word", ["linear", "Stepped", "step"])
def test_an_unknown_schedule_is_refused_with_the_known_ones(word: str) -> None:
    assert problems("tensorflow", f"--lr-schedule {word}") == [
        "--lr-schedule must be one of stepped, cosine, exponential, polynomial_decay_lr, "
        f"got '{word}'"
    ]


Float64Array = npt.NDArray[np.float64]

# 50,000 samples of CIFAR are 97 updates of 512 samples.
UPDATES_PER_EPOCH, EPOCHS = 97, 12
TOTAL_UPDATES = UPDATES_PER_EPOCH * EPOCHS
UPDATES = np.arange(TOTAL_UPDATES, dtype=np.float64)
EPOCH_OF_UPDATE = UPDATES / UPDATES_PER_EPOCH

TENSORFLOW = (
    "--dataset cifar-10 --batch-size 32 --gradients-to-accumulate 16 "
    f"--epochs {EPOCHS} --base-learning-rate -9"
)
INITIAL_RATE = 2.0**-9 * 512
PYTORCH = (
    f"--data cifar10 --micro-batch-size 32 --gradient-accumulation 16 --epoch {EPOCHS} --lr 0.3"
)
POPART = f"--dataset CIFAR-10 --batch-size 64 --gradient-accumulation-factor 8 --epochs {EPOCHS}"


def planned_rates(dialect: str, line: str) -> Float64Array:
    plan = rates(dialect, line)
    assert (plan.updates, plan.updates_per_epoch) == (TOTAL_UPDATES, UPDATES_PER_EPOCH)
    return np.array([plan.rate(update) for update in range(TOTAL_UPDATES)])


def drops_before(points: Float64Array) -> Float64Array:
    """The number of drops before each update."""
    return (points[:, None] <= UPDATES).sum(0).astype(np.float64)


def stepped() -> Float64Array:
    return INITIAL_RATE * 0.1 ** drops_before(np.array([0.5, 0.75]) * TOTAL_UPDATES)


def stepped_with_factor() -> Float64Array:
    return INITIAL_RATE * 0.3 ** drops_before(np.array([0.2, 0.6, 0.9]) * TOTAL_UPDATES)


def cosine() -> Float64Array:
    return INITIAL_RATE * 0.5 * (1 + np.cos(np.pi * UPDATES / TOTAL_UPDATES))


def exponential(decay: float, count: int) -> Callable[[], Float64Array]:
    return lambda: INITIAL_RATE * decay ** np.floor(EPOCH_OF_UPDATE * count / EPOCHS)


def polynomial(end: float, power: float, warm_up_updates: int) -> Callable[[], Float64Array]:
    def value() -> Float64Array:
        remaining = 1 - (UPDATES - warm_up_updates) / (TOTAL_UPDATES - warm_up_updates)
        decayed = (INITIAL_RATE - end) * np.maximum(remaining, 0) ** power + end
        return np.where(warm_up_updates >= UPDATES, INITIAL_RATE, decayed)

    return value


@pytest.mark.parametrize("warm_up", [0, 1, 5])
@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--lr-schedule stepped", lambda _: stepped()),
        (
            "--learning-rate-schedule 0.2,0.6,0.9 --learning-rate-decay 0.3",
            lambda _: stepped_with_factor(),
        ),
        ("--lr-schedule cosine", lambda _: cosine()),
        ("--lr-schedule exponential", lambda _: exponential(0.97, 146)()),
        (
            "--lr-schedule exponential --lr-decay-rate 0.9 --lr-drops 7",
            lambda _: exponential(0.9, 7)(),
        ),
        (
            "--lr-schedule polynomial_decay_lr",
            lambda epochs: polynomial(1e-5 * INITIAL_RATE, 2.0, epochs * UPDATES_PER_EPOCH)(),
        ),
        (
            "--lr-schedule polynomial_decay_lr --poly-lr-decay-power 1.5 --poly-lr-end-ratio 0.2",
            lambda epochs: polynomial(0.2 * INITIAL_RATE, 1.5, epochs * UPDATES_PER_EPOCH)(),
        ),
        (
            "--lr-schedule polynomial_decay_lr --abs-end-learning-rate 0.01",
            lambda epochs: polynomial(0.01, 2.0, epochs * UPDATES_PER_EPOCH)(),
        ),
    ],
)
def test_rates_of_tensorflow_follow_its_formulas(
    words: str, value: Callable[[int], Float64Array], warm_up: int
) -> None:
    warm_up_updates = warm_up * UPDATES_PER_EPOCH
    expected = value(warm_up) * np.where(
        warm_up_updates > UPDATES, UPDATES / (warm_up_updates or 1), 1.0
    )
    result = planned_rates("tensorflow", f"{TENSORFLOW} {words} --warmup-epochs {warm_up}")

    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-18)


def scheduler_steps(frequency: float) -> Float64Array:
    """The number of scheduler steps before each update."""
    return np.floor(UPDATES * (frequency or UPDATES_PER_EPOCH) / UPDATES_PER_EPOCH + 1e-9)


def pytorch_value(schedule: str, frequency: float) -> Float64Array:
    steps, total_steps = scheduler_steps(frequency), EPOCHS * (frequency or UPDATES_PER_EPOCH)
    match schedule:
        case "step":
            passed = sum(
                (epoch * (frequency or UPDATES_PER_EPOCH) <= steps).astype(float)
                for epoch in (3, 7.5, 10)
            )
            return 0.3 * 0.25**passed
        case "cosine":
            return 0.3 * 0.5 * (1 + np.cos(np.pi * steps / total_steps))
        case _:
            return 0.3 * 0.97**steps


@pytest.mark.parametrize("warm_up", [0, 1, 2.5])
@pytest.mark.parametrize("frequency", [0, 1, 4, 0.424])
@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ("step", "--lr-schedule step --lr-decay 0.25 --lr-epoch-decay 3 7.5 10"),
        ("cosine", "--lr-schedule cosine"),
        ("exponential", "--lr-schedule exponential --lr-decay 0.97"),
    ],
)
def test_rates_of_pytorch_follow_its_formulas(
    schedule: str, words: str, frequency: float, warm_up: float
) -> None:
    value = pytorch_value(schedule, frequency)
    expected = np.where(warm_up > EPOCH_OF_UPDATE, value * EPOCH_OF_UPDATE / (warm_up or 1), value)
    line = f"{PYTORCH} {words} --lr-scheduler-freq {frequency} --warmup-epoch {warm_up}"

    np.testing.assert_allclose(planned_rates("pytorch", line), expected, rtol=1e-12, atol=1e-18)


def test_rates_of_popart_follow_its_formula() -> None:
    start = 2.0**-6 * 64  # without accumulation
    multipliers = np.array([1.0, 0.1, 0.01])
    passed = drops_before(np.array([0.5, 0.75]) * TOTAL_UPDATES).astype(int)

    np.testing.assert_allclose(
        planned_rates("popart", POPART), start * multipliers[passed], rtol=1e-15
    )


def test_popart_with_given_points_and_multipliers() -> None:
    words = "--learning-rate-schedule 0.1,0.9 --learning-rate-decay 1,2,0.5 --base-learning-rate -4"
    multipliers = np.array([1.0, 2.0, 0.5])
    passed = drops_before(np.array([0.1, 0.9]) * TOTAL_UPDATES).astype(int)

    np.testing.assert_allclose(
        planned_rates("popart", f"{POPART} {words}"), 4 * multipliers[passed], rtol=1e-15
    )


def test_a_drop_happens_at_its_fraction_of_the_run() -> None:
    """TensorFlow and PopART drop one update later."""
    application_rates = INITIAL_RATE * 0.1 ** (
        (UPDATES > TOTAL_UPDATES // 2).astype(float) + (UPDATES > TOTAL_UPDATES * 3 // 4)
    )
    result = planned_rates("tensorflow", f"{TENSORFLOW} --warmup-epochs 0")
    different = np.flatnonzero(~np.isclose(result, application_rates, rtol=1e-12))

    assert different.tolist() == [TOTAL_UPDATES // 2, TOTAL_UPDATES * 3 // 4]


def test_the_first_update_has_the_initial_rate() -> None:
    """The PyTorch program advances its scheduler before the first update."""
    words = "--lr-schedule exponential --lr-decay 0.5 --lr-scheduler-freq 0.424"
    application_rates = 0.3 * 0.5 ** np.maximum(scheduler_steps(0.424) + 1, 2)
    result = planned_rates("pytorch", f"{PYTORCH} {words} --warmup-epoch 0")

    assert result[0] == 0.3
    assert set(np.round(np.log2(result / application_rates)).tolist()) == {1.0, 2.0}
