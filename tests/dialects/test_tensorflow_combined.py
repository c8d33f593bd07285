"""Flags that combine: with each other, with a named configuration, with a launcher."""

from typing import Any

import pytest
from spoken_words import config, meant, problems, read, run, said

from convoy.config.schema import flat_values
from convoy.config.settings import Dropped, Setting, values_of

WORKERS = 'TF_CONFIG={"cluster":{"worker":["a:1","b:1","c:1"]},"task":{"index":0}}'


def changed(config: str, words: str) -> dict[str, Any]:
    """What words change in a shipped configuration of the TensorFlow program."""
    before = flat_values(run(f"python3 train.py --config {config}"))
    after = flat_values(run(f"python3 train.py --config {config} {words}"))
    return {name: value for name, value in after.items() if value != before[name]}


@pytest.mark.parametrize(
    ("config", "words", "model"),
    [
        ("resnext101_16ipus", "--model-size 50", "resnext50"),
        ("resnet50_gn_16ipus", "--model-size 101", "resnet101"),
        ("efficientnet_b4_g16_16ipus", "--model-size 0", "efficientnet-b0"),
        ("resnet50_gn_16ipus", "--model resnext", "resnext14"),
    ],
)
def test_a_size_alone_keeps_the_family(config: str, words: str, model: str) -> None:
    assert changed(config, words) == {"model": model}


def test_a_family_that_is_the_same_keeps_the_size() -> None:
    assert changed("resnet50_gn_16ipus", "--model resnet") == {}


@pytest.mark.parametrize(
    ("config", "values"),
    [
        ("resnet8_test", {"samples": 50000, "num_classes": 10, "image_size": 32}),
        ("resnet50_gn_16ipus", {"samples": 1281167, "num_classes": 1000}),
    ],
)
def test_made_data_stands_for_the_data_of_the_configuration(
    config: str, values: dict[str, Any]
) -> None:
    found = changed(config, "--synthetic-data")
    assert found.pop("use_bbox_info", False) is False
    assert found.pop("crop_rule", "pytorch") == "pytorch"

    assert found == {"data": "synthetic", **values}


@pytest.mark.parametrize("classes", [10, 100])
def test_made_data_of_another_kind_keeps_its_classes(classes: int) -> None:
    under = {"data": "generated", "num_classes": classes, "samples": 640}

    assert said("tensorflow", "--synthetic-data", under)["num_classes"] == classes


def test_another_schedule_brings_its_own_figures() -> None:
    assert changed("efficientnet_b4_g1_16ipus", "--lr-schedule stepped") == {
        "lr_schedule": "step",
        "lr_decay": 0.1,
        "lr_drops": None,
        "lr_share_decay": (0.3, 0.6, 0.8, 0.9),
    }


def test_another_schedule_takes_the_figures_that_were_said() -> None:
    words = "--lr-schedule stepped --learning-rate-decay 0.5 --learning-rate-schedule 0.5"

    assert changed("efficientnet_b4_g1_16ipus", words) == {
        "lr_schedule": "step",
        "lr_decay": 0.5,
        "lr_drops": None,
        "lr_share_decay": (0.5,),
    }


def test_what_a_word_unsets_has_no_words_of_its_own() -> None:
    found = read("tensorflow", "--lr-schedule stepped", {"lr_schedule": "exponential"})

    assert [one.to for one in found.mapped] == ["--lr-decay 0.1", "--lr-schedule step"]


def test_a_schedule_without_drops_leaves_those_of_another_behind() -> None:
    assert changed("efficientnet_b4_g1_16ipus", "--lr-schedule cosine") == {
        "lr_schedule": "cosine",
        "lr_decay": 0.5,  # ours, which cosine does not look at
        "lr_drops": None,
    }


def test_a_schedule_of_drops_over_one_without() -> None:
    assert changed("resnet50_gn_16ipus", "--lr-schedule exponential") == {
        "lr_schedule": "exponential",
        "lr_decay": 0.97,
        "lr_drops": 146,
    }


def test_the_words_of_a_schedule_change_it_in_its_configuration() -> None:
    words = "--lr-drops 100 --lr-decay-rate 0.9"

    assert changed("efficientnet_b4_g1_16ipus", words) == {"lr_drops": 100, "lr_decay": 0.9}


def test_one_device_folds_the_stages_of_a_configuration() -> None:
    found = run("python3 train.py --config mk2_resnet50_bn_16ipus --shards 1").pipeline

    assert found.shards == 1
    assert found.pipeline_schedule == "sequential"
    assert found.pipeline_splits == ("b1/2/relu", "b2/3/relu", "b3/3/relu")


def test_a_pipelined_configuration_needs_no_second_word_for_it() -> None:
    words = "--shards 2 --pipeline-splits b3/0/relu"

    assert changed("mk2_resnet50_bn_16ipus", words) == {
        "shards": 2,
        "pipeline_splits": ("b3/0/relu",),
    }


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("--BN-span 2", {"bn_span": 2}),
        ("--epochs 2.5", {"epoch": 2.5}),
        ("--batch-size 4", {"micro_batch_size": 4}),
        ("--iterations 70", {"epoch": None, "updates": 70}),
        ("--abs-learning-rate 0.5", {"lr": 0.5, "base_learning_rate_exponent": None}),
        ("--base-learning-rate -12", {"base_learning_rate_exponent": -12.0}),
        ("--base-learning-rate 0", {}),
        ("--no-validation", {"validation_mode": "none"}),
        ("--momentum 0.8", {"momentum": 0.8}),
        ("--optimiser SGD", {"optimizer": "sgd", "momentum": 0.0}),
        ("--label-smoothing 0", {"label_smoothing": 0.0}),
        ("--BN-decay 0.9", {"batchnorm_momentum": 0.1}),
        ("--logs-per-epoch 4", {"logs_per_epoch": 4}),
    ],
)
def test_a_word_changes_what_it_speaks_of_alone(words: str, values: dict[str, Any]) -> None:
    assert changed("mk2_resnet50_bn_16ipus", words) == values


def test_the_kind_of_length_of_a_configuration_decides_which_reports_count() -> None:
    assert said("tensorflow", "--log-freq 20", {"updates": 100}) == {"log_freq": 20}
    assert read("tensorflow", "--logs-per-epoch 2", {"updates": 100}).dropped == [
        Dropped("--logs-per-epoch 2", "--log-freq counts for this kind of length")
    ]
    assert said("tensorflow", "--logs-per-epoch 2 --epochs 3", {"updates": 100}) == {
        "logs_per_epoch": 2,
        "epoch": 3.0,
    }


def test_another_optimizer_keeps_the_momentum_of_the_configuration() -> None:
    under = {"optimizer": "lars", "momentum": 0.885}

    assert said("tensorflow", "--optimiser momentum", under) == {
        "optimizer": "sgd_combined",
        "momentum": 0.885,
    }
    assert said("tensorflow", "--optimiser LARS", {"momentum": 0.0})["momentum"] == 0.9


def test_a_launcher_decides_the_replicas_and_says_so() -> None:
    line = "poprun --num-instances 8 --num-replicas 16 python3 train.py --config"
    found = meant(f"{line} resnet50_gn_16ipus --replicas 4")

    assert found.asked.command_line["replicas"] == Setting(16, "poprun")
    assert found.asked.command_line["instances"] == Setting(8, "poprun")
    assert Dropped("--replicas 4", "poprun says 16") in found.dropped


def test_a_launcher_that_agrees_is_not_worth_a_word() -> None:
    found = read("tensorflow", "--replicas 4", above={"replicas": 4})

    assert found.dropped == []
    assert found.given["replicas"] == Setting(4, "launcher")


@pytest.mark.parametrize("dialect", ["tensorflow", "pytorch"])
@pytest.mark.parametrize(
    ("line", "under", "replicas"),
    [
        ("", {}, 3),  # 3 instances of 1
        ("--replicas 4", {}, 12),  # 3 × 4
        ("", {"replicas": 16}, 48),  # 3 × 16
        ("--replicas 4", {"replicas": 16}, 12),
    ],
)
def test_instances_alone_have_so_many_replicas_each(
    dialect: str, line: str, under: dict[str, Any], replicas: int
) -> None:
    found = read(dialect, line, under, above={"instances": 3})

    assert found.given["replicas"].value == replicas
    assert found.given["instances"] == Setting(3, "launcher")


def test_workers_of_a_variable_are_instances() -> None:
    line = "python3 train.py --model-size 50 --replicas 4 --distributed --batches-per-step 1"
    found = run(f"{WORKERS} {line}")

    assert (found.device.instances, found.batch.replicas) == (3, 12)  # 3 × 4


def test_processes_of_mpirun_are_instances() -> None:
    found = run("mpirun -np 2 python3 train.py --model-size 50 --replicas 4 --distributed")

    assert (found.device.instances, found.batch.replicas) == (2, 8)  # 2 × 4


@pytest.mark.parametrize(
    ("line", "under", "replicas"),
    [
        ("--shards 4", {}, 4),
        ("--shards 4 --pipeline --replicas 2", {}, 8),  # 4 × 2
        ("", {"shards": 4, "replicas": 4, "pipeline_splits": ("a", "b", "c")}, 16),
        ("--replicas 1", {"shards": 4, "replicas": 4}, 4),
    ],
)
def test_stages_become_replicas_in_validation(
    line: str, under: dict[str, Any], replicas: int
) -> None:
    found = values_of(read("tensorflow validation", line, under).given)

    assert (found["replicas"], found["shards"]) == (replicas, 1)
    assert not found.get("pipeline_splits")


def test_one_stage_in_validation_leaves_the_replicas_alone() -> None:
    under = {"shards": 4, "replicas": 4, "pipeline_splits": ("a", "b", "c")}
    found = values_of(read("tensorflow validation", "--shards 1", under).given)

    assert found == {"shards": 1, "pipeline_splits": ()}


def test_words_of_a_pipeline_are_left_out_of_validation() -> None:
    line = "--shards 2 --pipeline --pipeline-splits a --pipeline-schedule Grouped"
    found = read("tensorflow validation", line)

    assert found.problems == []
    assert [one.word for one in found.dropped] == [
        "--pipeline",
        "--pipeline-splits a",
        "--pipeline-schedule Grouped",
    ]


def test_a_launcher_has_counted_the_copies_of_a_validation_already() -> None:
    under = {"shards": 4, "replicas": 4}
    found = read("tensorflow validation", "", under, above={"replicas": 16}).given

    assert (found["replicas"], found["shards"].value) == (Setting(16, "launcher"), 1)


def test_validation_takes_the_first_of_the_proportions_that_were_said() -> None:
    line = "--shards 2 --available-memory-proportion 0.6 0.5 0.4 0.3"
    found = read("tensorflow validation", line)

    assert found.problems == []
    assert found.given["available_memory_proportion"].value == (0.6,)


def test_validation_takes_the_first_of_the_proportions_of_stages() -> None:
    found = run("python3 validation.py --config mk1_resnet50_16ipus")

    assert found.memory.available_memory_proportion == (0.6,)
    assert (found.pipeline.shards, found.batch.replicas) == (1, 16)


def test_a_launcher_counts_the_copies_of_a_validation() -> None:
    line = "poprun --num-instances 8 --num-replicas 16 --ipus-per-replica 1 python3 validation.py"
    found = run(f"{line} --config mk2_resnet50_bn_16ipus --shards 1")

    assert (found.batch.replicas, found.pipeline.shards) == (16, 1)


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
