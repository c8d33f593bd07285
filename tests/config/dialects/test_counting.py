"""Where applications count in other ways: each conversion, with its calculation."""

from typing import Any

import pytest
from spoken_words import config, problems, read, said

from convoy.config.problems import Dropped


@pytest.mark.parametrize(
    ("typed", "momentum"),
    [
        ("0.97", 0.03),  # 1 − 0.97, and not 0.030000000000000027
        ("0.9", 0.1),
        ("0.999", 0.001),
        ("1e-3", 0.999),
        ("0", 0.03),  # counts as unsaid, which is 0.97
        ("0.0", 0.03),
    ],
)
def test_a_share_of_the_old_statistics_becomes_one_of_the_new(typed: str, momentum: float) -> None:
    assert said("tensorflow", f"--BN-decay {typed}") == {"batchnorm_momentum": momentum}


@pytest.mark.parametrize("typed", ["1", "-0.1", "97"])
def test_a_share_of_everything_or_less_than_nothing_is_refused(typed: str) -> None:
    assert problems("tensorflow", f"--BN-decay {typed}") == [
        f"--BN-decay must be at least 0 and below 1, got {typed}"
    ]


@pytest.mark.parametrize("data", ["", "--dataset cifar-10", "--synthetic-data", "--generated-data"])
def test_label_smoothing_goes_to_the_other_classes_whatever_the_data(data: str) -> None:
    found = said("tensorflow", f"{data} --label-smoothing 0.1")

    assert found["label_smoothing"] == 0.1
    assert found["label_smoothing_over"] == "others"


def test_no_label_smoothing_says_nothing_of_classes() -> None:
    assert said("tensorflow", "--label-smoothing 0") == {"label_smoothing": 0.0}


def test_label_smoothing_is_the_same_number_in_the_pytorch_program() -> None:
    assert said("pytorch", "--label-smoothing 0.1") == {"label_smoothing": 0.1}


@pytest.mark.parametrize(
    ("line", "checkpoints"),
    [
        ("--weight-avg-N 10", 11),  # of epochs e − 10, …, e
        ("--weight-avg-N 10 --ckpts-per-epoch 2", 21),  # 10 × 2 + 1
        ("--weight-avg-N 10 --epochs-per-ckpt 4", 3),  # of epochs e − 8, e − 4, e
        ("--weight-avg-N 8 --epochs-per-ckpt 4", 3),
        ("--weight-avg-N 0", 1),
    ],
)
def test_epochs_back_from_the_end_become_checkpoints(line: str, checkpoints: int) -> None:
    found = said("tensorflow", line)

    assert found["weight_avg_strategy"] == "mean"
    assert found["weight_avg_n"] == checkpoints


def test_epochs_back_are_counted_in_the_rhythm_of_the_configuration() -> None:
    under = {"epochs_per_ckpt": 5, "ckpts_per_epoch": 1}

    assert said("tensorflow", "--weight-avg-N 10", under)["weight_avg_n"] == 3  # 10 ÷ 5 + 1


@pytest.mark.parametrize(
    ("line", "left_out"),
    [
        ("--weight-avg-N 5 10", ["--weight-avg-N 10"]),
        ("--weight-avg-exp 0.97 0.99", ["--weight-avg-exp 0.99"]),
        ("--weight-avg-exp 0.97 --weight-avg-N 5", ["--weight-avg-N 5"]),
    ],
)
def test_a_run_makes_one_average_and_tells_of_the_others(line: str, left_out: list[str]) -> None:
    assert [one.word for one in read("tensorflow", line).dropped] == left_out


def test_the_tool_counts_checkpoints_itself() -> None:
    assert said("tensorflow", "-N 10 --mode mean --decay 0.9 --discard-last 0") == {
        "weight_avg_n": 10,
        "weight_avg_strategy": "mean",
        "weight_avg_exp_decay": 0.9,
    }


@pytest.mark.parametrize(
    ("typed", "shards", "proportions"),
    [
        ("0.4", 1, (0.4,)),
        ("0.4", 4, (0.4,)),
        ("0.6 0.5 0.4 0.3", 2, (0.6, 0.4)),  # of convolutions, of products, twice
        ("0.6 0.6 0.6 0.6 0.6 0.6 0.16 0.2", 4, (0.6, 0.6, 0.6, 0.16)),
    ],
)
def test_of_two_proportions_a_stage_that_of_convolutions_counts(
    typed: str, shards: int, proportions: tuple[float, ...]
) -> None:
    line = f"--available-memory-proportion {typed} --shards {shards} --pipeline"

    assert said("tensorflow", line)["available_memory_proportion"] == proportions


def test_proportions_that_fit_no_stages_are_refused() -> None:
    line = "--shards 2 --pipeline --available-memory-proportion 0.6 0.5 0.4"

    assert problems("tensorflow", line) == [
        "--available-memory-proportion takes 1 value, or 2 for each of 2 shards (4), got 3"
    ]


@pytest.mark.parametrize(
    ("line", "mixing"),
    [
        ("--cutmix-lambda 0.85", (0.85, 0.85, 1)),
        ("--cutmix-lambda 0.85 --cutmix-version 2", (0.85, 0.85, 2)),
        ("--cutmix-lambda 1", (0.0, 0.0, None)),  # all of the image stays: off
        ("--cutmix-lambda 1.0 --cutmix-version 2", (0.0, 0.0, 2)),
        ("--mixup-alpha 0.2", (None, None, None)),
    ],
)
def test_one_share_of_cutmix_is_both_bounds(line: str, mixing: tuple[Any, ...]) -> None:
    found = said("tensorflow", line)
    names = ("cutmix_lambda_low", "cutmix_lambda_high", "cutmix_version")

    assert tuple(found.get(name) for name in names) == mixing


def test_the_way_of_cutmix_is_that_of_the_configuration() -> None:
    found = said("tensorflow", "--cutmix-lambda 0.7", {"cutmix_version": 2})

    assert "cutmix_version" not in found


def test_a_cut_that_leaves_nothing_is_refused() -> None:
    assert problems("tensorflow", "--cutmix-lambda 0") == [
        "--cutmix-lambda 0 must be above 0, the share of an image that stays"
    ]


@pytest.mark.parametrize("made", ["--generated-data", "--synthetic-data"])
def test_made_data_is_not_mixed_and_every_word_of_it_is_told(made: str) -> None:
    found = read("tensorflow", f"{made} --mixup-alpha 0.2 --cutmix-lambda 0.5 --cutmix-version 2")

    assert {"mixup_alpha", "cutmix_lambda_low", "cutmix_version"} & found.given.keys() == set()
    assert found.dropped == [
        Dropped("--mixup-alpha 0.2", "made data is not mixed"),
        Dropped("--cutmix-lambda 0.5", "made data is not mixed"),
        Dropped("--cutmix-version 2", "made data is not mixed"),
    ]


def test_made_data_undoes_the_mixing_of_a_configuration() -> None:
    under = {"mixup_alpha": 0.2, "cutmix_lambda_low": 0.85, "cutmix_lambda_high": 0.85}
    found = said("tensorflow", "--generated-data", {"data": "imagenet", **under})

    assert {name: found[name] for name in under} == dict.fromkeys(under, 0.0)


@pytest.mark.parametrize(
    ("line", "samples"),
    [
        # iterations × micro-batch × accumulated × replicas × updates of a call
        ("--data generated", 100),  # 100 × 1 × 1 × 1 × 1
        ("--data synthetic --iterations 7", 7),
        ("--data generated --iterations 7 --micro-batch-size 4", 28),
        (
            "--data generated --iterations 7 --micro-batch-size 4 --gradient-accumulation 3 "
            "--replicas 2 --device-iterations 5",
            840,  # 7 × 4 × 3 × 2 × 5
        ),
        ("--data generated --batch-size 16 --replicas 4", 6400),  # 100 × 16 × 4
    ],
)
def test_loader_steps_of_made_data_become_samples(line: str, samples: int) -> None:
    assert said("pytorch", line)["samples"] == samples


def test_loader_steps_multiply_what_the_configuration_says() -> None:
    under = {"data": "generated", "micro_batch_size": 16, "replicas": 2, "samples": 5}

    assert said("pytorch", "--iterations 3", under)["samples"] == 96  # 3 × 16 × 2
    assert "samples" not in said("pytorch", "--seed 1", under)


def test_loader_steps_of_a_data_set_are_left_out_with_the_reason() -> None:
    assert read("pytorch", "--data imagenet --iterations 7").dropped == [
        Dropped("--iterations 7", "it is the length of made data; imagenet has its own")
    ]


def test_iterations_are_updates_in_the_tensorflow_program() -> None:
    found = read("tensorflow", "--iterations 70 --epochs 3 --logs-per-epoch 4")

    assert found.given["updates"].value == 70
    assert found.dropped == [
        Dropped("--epochs 3", "--iterations sets the length"),
        Dropped("--logs-per-epoch 4", "--log-freq counts for this kind of length"),
    ]


def test_the_same_words_mean_other_things_in_other_programs() -> None:
    line = "--batch-size 8"

    assert said("tensorflow", line) == {"micro_batch_size": 8}
    assert said("pytorch", line) == {"micro_batch_size": 8}
    assert config("popart", f"{line} --replication-factor 4").batch.micro_batch_size == 2
