"""The rate that words of a dialect come to, update by update; figures are worked out by hand."""

import math

import pytest
from spoken_words import problems, rates, read, said

from convoy.config.problems import Dropped


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
def test_the_usual_exponent_scales_with_all_samples_of_an_update(line: str, rate: float) -> None:
    assert rates("tensorflow", line).initial == rate


@pytest.mark.parametrize("flag", ["--base-learning-rate", "--base-learning-rate-exponent"])
@pytest.mark.parametrize(
    ("exponent", "rate"),
    [
        ("-11", 6.0),  # 12288 / 2048
        ("-13", 1.5),
        ("-9.5", 16.97056274847714),  # 12288 / (512 × √2) = 24 / √2
        ("0", 48.0),  # counts as unsaid: 12288 / 2⁸
    ],
)
def test_an_exponent_that_was_said_scales_too(flag: str, exponent: str, rate: float) -> None:
    line = f"--batch-size 3 --gradient-accumulation-count 256 --replicas 16 {flag} {exponent}"

    assert rates("tensorflow", line).initial == pytest.approx(rate, rel=1e-15)


def test_an_exponent_of_nothing_is_told() -> None:
    assert read("tensorflow", "--base-learning-rate 0").dropped == [
        Dropped("--base-learning-rate 0", "an exponent of 0 counts as unsaid")
    ]


def test_an_absolute_rate_wins_over_an_exponent_in_any_order() -> None:
    for line in (
        "--abs-learning-rate 12.5 --base-learning-rate-exponent -9",
        "--base-learning-rate-exponent -9 --abs-learning-rate 12.5",
    ):
        assert rates("tensorflow", line).initial == 12.5
        assert read("tensorflow", line).dropped == [
            Dropped("--base-learning-rate-exponent -9", "--abs-learning-rate wins")
        ]


def test_an_absolute_rate_does_not_scale() -> None:
    assert rates("tensorflow", "--abs-learning-rate 0.3 --replicas 16").initial == 0.3
    assert rates("pytorch", "--lr 0.3 --replicas 16 --micro-batch-size 8").initial == 0.3
    assert rates("pytorch", "").initial == 0.01


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        ("", 0.5),  # 32 × 2⁻⁶
        ("--batch-size 48", 0.75),  # 48 × 2⁻⁶
        ("--batch-size 48 --replication-factor 4", 0.75),  # the 48 are of all replicas
        ("--batch-size 48 --gradient-accumulation-factor 8", 0.75),  # which do not count
        ("--batch-size 4 --base-learning-rate -4", 0.25),  # 4 × 2⁻⁴
        ("--base-learning-rate 0", 32.0),  # 32 × 2⁰: here 0 is a number
    ],
)
def test_popart_scales_by_one_pass_of_all_replicas(line: str, rate: float) -> None:
    assert rates("popart", line).initial == rate


# CIFAR has 50,000 samples: 100 updates of 500 in an epoch.
CIFAR = "--dataset cifar-10 --batch-size 500 --warmup-epochs 0 --abs-learning-rate 1"


@pytest.mark.parametrize(
    ("update", "drops"), [(0, 0), (298, 0), (302, 1), (598, 1), (602, 2), (802, 3), (999, 4)]
)
def test_stepped_drops_at_shares_of_the_run(update: int, drops: int) -> None:
    plan = rates("tensorflow", f"{CIFAR} --epochs 10 --learning-rate-schedule 0.3,0.6,0.8,0.9")

    assert plan.rate(update) == pytest.approx(0.1**drops)


def test_stepped_drops_by_a_factor_of_its_own() -> None:
    plan = rates("tensorflow", f"{CIFAR} --epochs 10 --learning-rate-decay 0.5")

    # Of 1000 updates the usual two drops stand at 500 and 750.
    assert [plan.rate(update) for update in (498, 502, 748, 752)] == [1.0, 0.5, 0.5, 0.25]


@pytest.mark.parametrize(("update", "factor"), [(10, 1.0), (22, 0.1), (38, 0.01), (46, 0.001)])
def test_popart_switches_to_absolute_factors(update: int, factor: float) -> None:
    line = (
        "--batch-size 1000 --epochs 1 --base-learning-rate 0 "
        "--learning-rate-schedule 0.4,0.75,0.9 --learning-rate-decay 1,0.1,0.01,0.001"
    )

    # 50 updates with drops at 20, 37.5 and 45; 2⁰ × 1000 is the first rate.
    assert rates("popart", line).rate(update) == pytest.approx(1000 * factor)


def test_factors_that_do_not_fit_the_drops_are_refused() -> None:
    line = "--learning-rate-schedule 0.5 --learning-rate-decay 1,0.1,0.01"

    with pytest.raises(Exception, match="gives 3 rates for 1 drops; give 2"):
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


def test_exponential_has_a_factor_and_a_number_of_drops() -> None:
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
def test_polynomial_falls_to_an_absolute_end(update: int, rate: float) -> None:
    line = (
        "--dataset cifar-10 --batch-size 500 --abs-learning-rate 1 --epochs 10 --warmup-epochs 2 "
        "--lr-schedule polynomial_decay_lr --abs-end-learning-rate 0.1 --poly-lr-end-ratio 0.7"
    )

    assert rates("tensorflow", line).rate(update) == pytest.approx(rate)


def test_polynomial_falls_to_a_share_with_a_power_of_its_own() -> None:
    line = (
        f"{CIFAR} --epochs 10 --lr-schedule polynomial_decay_lr --poly-lr-decay-power 1 "
        "--poly-lr-end-ratio 0.5"
    )

    assert rates("tensorflow", line).rate(500) == pytest.approx(0.75)  # 0.5 × 0.5 + 0.5


def test_older_names_of_polynomial_say_both_ends() -> None:
    assert said("tensorflow", "--poly-lr-initial-lr 0.4 --poly-lr-end-lr 0.01") == {
        "lr": 0.4,
        "abs_end_learning_rate": 0.01,
    }


@pytest.mark.parametrize(
    ("update", "rate"),
    [(0, 0.0), (250, 0.5 * 0.5 * (1 + math.cos(math.pi / 4))), (500, 0.5)],
)
def test_cosine_runs_over_the_whole_training_below_the_warm_up(update: int, rate: float) -> None:
    line = (
        "--dataset cifar-10 --batch-size 500 --abs-learning-rate 1 --epochs 10 --warmup-epochs 5 "
        "--lr-schedule cosine"
    )

    # 1000 updates, 500 of them warm-up: i / 500 × ½ (1 + cos(π i / 1000)).
    assert rates("tensorflow", line).rate(update) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("line", "left_out"),
    [
        ("--lr-schedule exponential --learning-rate-decay 0.2", "--learning-rate-decay 0.2"),
        ("--lr-schedule stepped --lr-decay-rate 0.9", "--lr-decay-rate 0.9"),
        ("--lr-schedule cosine --lr-decay-rate 0.9", "--lr-decay-rate 0.9"),
        ("--lr-drops 20", "--lr-drops 20"),
        ("--lr-schedule cosine --lr-drops 20", "--lr-drops 20"),
    ],
)
def test_the_words_of_another_schedule_are_left_out(line: str, left_out: str) -> None:
    found = read("tensorflow", line)
    schedule = {"exponential": "exponential", "cosine": "cosine"}
    chosen = next((name for name in schedule if name in line), "step")

    assert found.dropped == [Dropped(left_out, f"the schedule is {chosen}")]
    assert {"lr_decay", "lr_drops"} & found.given.keys() == set()


@pytest.mark.parametrize("word", ["linear", "Stepped", "step"])
def test_a_schedule_that_is_none_is_refused_with_all_there_are(word: str) -> None:
    assert problems("tensorflow", f"--lr-schedule {word}") == [
        f"--lr-schedule is one of stepped, cosine, exponential, polynomial_decay_lr, got '{word}'"
    ]
