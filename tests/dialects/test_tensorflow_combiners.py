"""Flags that combine: with each other, with a named configuration, with a launcher."""

from typing import Any

import pytest
from support.dialect_words import config, interpret_command, option_values, problems, read, run

from convoy.config.schema import DroppedWord, Setting, flatten_config, setting_values

WORKERS = 'TF_CONFIG={"cluster":{"worker":["a:1","b:1","c:1"]},"task":{"index":0}}'


def changed_settings(config: str, words: str) -> dict[str, Any]:
    """The settings that arguments change in a shipped TensorFlow configuration."""
    before = flatten_config(run(f"python3 train.py --config {config}"))
    after = flatten_config(run(f"python3 train.py --config {config} {words}"))
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
def test_a_size_without_a_family_keeps_the_family_of_the_configuration(
    config: str, words: str, model: str
) -> None:
    assert changed_settings(config, words) == {"model": model}


def test_the_same_family_keeps_the_size() -> None:
    assert changed_settings("resnet50_gn_16ipus", "--model resnet") == {}


@pytest.mark.parametrize(
    ("config", "values"),
    [
        ("resnet8_test", {"samples": 50000, "num_classes": 10, "image_size": 32}),
        ("resnet50_gn_16ipus", {"samples": 1281167, "num_classes": 1000}),
    ],
)
def test_generated_data_replaces_the_data_of_the_configuration(
    config: str, values: dict[str, Any]
) -> None:
    result = changed_settings(config, "--synthetic-data")
    assert result.pop("use_bbox_info", False) is False
    assert result.pop("crop_rule", "pytorch") == "pytorch"

    assert result == {"data": "synthetic", **values}


@pytest.mark.parametrize("classes", [10, 100])
def test_synthetic_data_keeps_the_classes_of_generated_data(classes: int) -> None:
    base = {"data": "generated", "num_classes": classes, "samples": 640}

    assert option_values("tensorflow", "--synthetic-data", base)["num_classes"] == classes


def test_another_schedule_has_other_defaults() -> None:
    assert changed_settings("efficientnet_b4_g1_16ipus", "--lr-schedule stepped") == {
        "lr_schedule": "step",
        "lr_decay": 0.1,
        "lr_drops": None,
        "lr_share_decay": (0.3, 0.6, 0.8, 0.9),
    }


def test_another_schedule_uses_the_given_values() -> None:
    words = "--lr-schedule stepped --learning-rate-decay 0.5 --learning-rate-schedule 0.5"

    assert changed_settings("efficientnet_b4_g1_16ipus", words) == {
        "lr_schedule": "step",
        "lr_decay": 0.5,
        "lr_drops": None,
        "lr_share_decay": (0.5,),
    }


def test_an_option_unset_by_another_is_not_written() -> None:
    result = read("tensorflow", "--lr-schedule stepped", {"lr_schedule": "exponential"})

    assert [word.mapped_to for word in result.mapped] == ["--lr-decay 0.1", "--lr-schedule step"]


def test_a_schedule_without_drops_unsets_those_of_the_configuration() -> None:
    assert changed_settings("efficientnet_b4_g1_16ipus", "--lr-schedule cosine") == {
        "lr_schedule": "cosine",
        "lr_decay": 0.5,  # the default, which cosine does not use
        "lr_drops": None,
    }


def test_a_schedule_with_drops_sets_its_default_drops() -> None:
    assert changed_settings("resnet50_gn_16ipus", "--lr-schedule exponential") == {
        "lr_schedule": "exponential",
        "lr_decay": 0.97,
        "lr_drops": 146,
    }


def test_arguments_of_a_schedule_change_that_of_the_configuration() -> None:
    words = "--lr-drops 100 --lr-decay-rate 0.9"

    assert changed_settings("efficientnet_b4_g1_16ipus", words) == {
        "lr_drops": 100,
        "lr_decay": 0.9,
    }


def test_one_device_runs_the_stages_of_a_configuration_sequentially() -> None:
    result = run("python3 train.py --config mk2_resnet50_bn_16ipus --shards 1").pipeline

    assert result.shards == 1
    assert result.pipeline_schedule == "sequential"
    assert result.pipeline_splits == ("b1/2/relu", "b2/3/relu", "b3/3/relu")


def test_a_pipelined_configuration_needs_no_pipeline_flag() -> None:
    words = "--shards 2 --pipeline-splits b3/0/relu"

    assert changed_settings("mk2_resnet50_bn_16ipus", words) == {
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
def test_an_argument_changes_no_other_options(words: str, values: dict[str, Any]) -> None:
    assert changed_settings("mk2_resnet50_bn_16ipus", words) == values


def test_the_unit_of_the_training_length_selects_the_log_interval() -> None:
    assert option_values("tensorflow", "--log-freq 20", {"updates": 100}) == {"log_freq": 20}
    assert read("tensorflow", "--logs-per-epoch 2", {"updates": 100}).dropped == [
        DroppedWord("--logs-per-epoch 2", "the length is in updates; use --log-freq")
    ]
    assert option_values("tensorflow", "--logs-per-epoch 2 --epochs 3", {"updates": 100}) == {
        "logs_per_epoch": 2,
        "epoch": 3.0,
    }


def test_another_optimizer_keeps_the_momentum_of_the_configuration() -> None:
    base = {"optimizer": "lars", "momentum": 0.885}

    assert option_values("tensorflow", "--optimiser momentum", base) == {
        "optimizer": "sgd_combined",
        "momentum": 0.885,
    }
    assert option_values("tensorflow", "--optimiser LARS", {"momentum": 0.0})["momentum"] == 0.9


def test_a_launcher_overrides_the_replicas_which_is_reported() -> None:
    line = "poprun --num-instances 8 --num-replicas 16 python3 train.py --config"
    result = interpret_command(f"{line} resnet50_gn_16ipus --replicas 4")

    assert result.request.command_line["replicas"] == Setting(16, "poprun")
    assert result.request.command_line["instances"] == Setting(8, "poprun")
    assert DroppedWord("--replicas 4", "poprun sets 16") in result.dropped


def test_a_launcher_that_agrees_is_not_reported() -> None:
    result = read("tensorflow", "--replicas 4", launcher={"replicas": 4})

    assert result.dropped == []
    assert result.settings["replicas"] == Setting(4, "launcher")


@pytest.mark.parametrize("dialect", ["tensorflow", "pytorch"])
@pytest.mark.parametrize(
    ("line", "base", "replicas"),
    [
        ("", {}, 3),  # 3 instances of 1
        ("--replicas 4", {}, 12),  # 3 × 4
        ("", {"replicas": 16}, 48),  # 3 × 16
        ("--replicas 4", {"replicas": 16}, 12),
    ],
)
def test_replicas_are_counted_per_instance(
    dialect: str, line: str, base: dict[str, Any], replicas: int
) -> None:
    result = read(dialect, line, base, launcher={"instances": 3})

    assert result.settings["replicas"].value == replicas
    assert result.settings["instances"] == Setting(3, "launcher")


def test_workers_of_a_variable_are_instances() -> None:
    line = "python3 train.py --model-size 50 --replicas 4 --distributed --batches-per-step 1"
    result = run(f"{WORKERS} {line}")

    assert (result.device.instances, result.batch.replicas) == (3, 12)  # 3 × 4


def test_processes_of_mpirun_are_instances() -> None:
    result = run("mpirun -np 2 python3 train.py --model-size 50 --replicas 4 --distributed")

    assert (result.device.instances, result.batch.replicas) == (2, 8)  # 2 × 4


@pytest.mark.parametrize(
    ("line", "base", "replicas"),
    [
        ("--shards 4", {}, 4),
        ("--shards 4 --pipeline --replicas 2", {}, 8),  # 4 × 2
        ("", {"shards": 4, "replicas": 4, "pipeline_splits": ("a", "b", "c")}, 16),
        ("--replicas 1", {"shards": 4, "replicas": 4}, 4),
    ],
)
def test_stages_are_converted_to_replicas_in_validation(
    line: str, base: dict[str, Any], replicas: int
) -> None:
    result = setting_values(read("tensorflow validation", line, base).settings)

    assert (result["replicas"], result["shards"]) == (replicas, 1)
    assert not result.get("pipeline_splits")


def test_one_stage_in_validation_does_not_change_the_replicas() -> None:
    base = {"shards": 4, "replicas": 4, "pipeline_splits": ("a", "b", "c")}
    result = setting_values(read("tensorflow validation", "--shards 1", base).settings)

    assert result == {"shards": 1, "pipeline_splits": ()}


def test_pipeline_arguments_are_dropped_in_validation() -> None:
    line = "--shards 2 --pipeline --pipeline-splits a --pipeline-schedule Grouped"
    result = read("tensorflow validation", line)

    assert result.problems == []
    assert [word.word for word in result.dropped] == [
        "--pipeline",
        "--pipeline-splits a",
        "--pipeline-schedule Grouped",
    ]


def test_the_replicas_of_a_launcher_are_not_multiplied_in_validation() -> None:
    base = {"shards": 4, "replicas": 4}
    result = read("tensorflow validation", "", base, launcher={"replicas": 16}).settings

    assert (result["replicas"], result["shards"].value) == (Setting(16, "launcher"), 1)


def test_validation_uses_the_first_of_the_given_proportions() -> None:
    line = "--shards 2 --available-memory-proportion 0.6 0.5 0.4 0.3"
    result = read("tensorflow validation", line)

    assert result.problems == []
    assert result.settings["available_memory_proportion"].value == (0.6,)


def test_validation_uses_the_first_of_the_stage_proportions() -> None:
    result = run("python3 validation.py --config mk1_resnet50_16ipus")

    assert result.memory.available_memory_proportion == (0.6,)
    assert (result.pipeline.shards, result.batch.replicas) == (1, 16)


def test_a_launcher_sets_the_replicas_of_a_validation() -> None:
    line = "poprun --num-instances 8 --num-replicas 16 --ipus-per-replica 1 python3 validation.py"
    result = run(f"{line} --config mk2_resnet50_bn_16ipus --shards 1")

    assert (result.batch.replicas, result.pipeline.shards) == (16, 1)


@pytest.mark.parametrize(
    ("typed", "momentum"),
    [
        ("0.97", 0.03),  # 1 − 0.97, and not 0.030000000000000027
        ("0.9", 0.1),
        ("0.999", 0.001),
        ("1e-3", 0.999),
        ("0", 0.03),  # selects the default, 0.97
        ("0.0", 0.03),
    ],
)
def test_a_decay_is_converted_to_a_momentum(typed: str, momentum: float) -> None:
    assert option_values("tensorflow", f"--BN-decay {typed}") == {"batchnorm_momentum": momentum}


@pytest.mark.parametrize("typed", ["1", "-0.1", "97"])
def test_a_decay_out_of_range_is_refused(typed: str) -> None:
    assert problems("tensorflow", f"--BN-decay {typed}") == [
        f"--BN-decay must be at least 0 and below 1, got {typed}"
    ]


@pytest.mark.parametrize("data", ["", "--dataset cifar-10", "--synthetic-data", "--generated-data"])
def test_label_smoothing_applies_to_the_other_classes_for_all_data(data: str) -> None:
    result = option_values("tensorflow", f"{data} --label-smoothing 0.1")

    assert result["label_smoothing"] == 0.1
    assert result["label_smoothing_over"] == "others"


def test_without_label_smoothing_label_smoothing_over_is_not_set() -> None:
    assert option_values("tensorflow", "--label-smoothing 0") == {"label_smoothing": 0.0}


def test_label_smoothing_is_the_same_number_in_the_pytorch_program() -> None:
    assert option_values("pytorch", "--label-smoothing 0.1") == {"label_smoothing": 0.1}


@pytest.mark.parametrize(
    ("line", "checkpoints"),
    [
        ("--weight-avg-N 10", 11),  # of the epochs e − 10, …, e
        ("--weight-avg-N 10 --ckpts-per-epoch 2", 21),  # 10 × 2 + 1
        ("--weight-avg-N 10 --epochs-per-ckpt 4", 3),  # of the epochs e − 8, e − 4, e
        ("--weight-avg-N 8 --epochs-per-ckpt 4", 3),
        ("--weight-avg-N 0", 1),
    ],
)
def test_the_last_epochs_are_converted_to_checkpoints(line: str, checkpoints: int) -> None:
    result = option_values("tensorflow", line)

    assert result["weight_avg_strategy"] == "mean"
    assert result["weight_avg_n"] == checkpoints


def test_the_last_epochs_use_the_checkpoint_interval_of_the_configuration() -> None:
    base = {"epochs_per_ckpt": 5, "ckpts_per_epoch": 1}

    assert option_values("tensorflow", "--weight-avg-N 10", base)["weight_avg_n"] == 3  # 10 ÷ 5 + 1


@pytest.mark.parametrize(
    ("line", "dropped"),
    [
        ("--weight-avg-N 5 10", ["--weight-avg-N 10"]),
        ("--weight-avg-exp 0.97 0.99", ["--weight-avg-exp 0.99"]),
        ("--weight-avg-exp 0.97 --weight-avg-N 5", ["--weight-avg-N 5"]),
    ],
)
def test_a_run_computes_one_average_and_reports_the_others(line: str, dropped: list[str]) -> None:
    assert [word.word for word in read("tensorflow", line).dropped] == dropped


def test_weight_avg_py_counts_checkpoints() -> None:
    assert option_values("tensorflow", "-N 10 --mode mean --decay 0.9 --discard-last 0") == {
        "weight_avg_n": 10,
        "weight_avg_strategy": "mean",
        "weight_avg_exp_decay": 0.9,
    }


@pytest.mark.parametrize(
    ("typed", "shards", "proportions"),
    [
        ("0.4", 1, (0.4,)),
        ("0.4", 4, (0.4,)),
        # For each stage: the proportion for convolutions and that for matrix products.
        ("0.6 0.5 0.4 0.3", 2, (0.6, 0.4)),
        ("0.6 0.6 0.6 0.6 0.6 0.6 0.16 0.2", 4, (0.6, 0.6, 0.6, 0.16)),
    ],
)
def test_the_first_of_two_proportions_per_stage_applies(
    typed: str, shards: int, proportions: tuple[float, ...]
) -> None:
    line = f"--available-memory-proportion {typed} --shards {shards} --pipeline"

    assert option_values("tensorflow", line)["available_memory_proportion"] == proportions


def test_proportions_that_do_not_match_the_stages_are_refused() -> None:
    line = "--shards 2 --pipeline --available-memory-proportion 0.6 0.5 0.4"

    assert problems("tensorflow", line) == [
        "--available-memory-proportion takes 1 value, or 2 for each of 2 shards (4), got 3"
    ]


@pytest.mark.parametrize(
    ("line", "mixing"),
    [
        ("--cutmix-lambda 0.85", (0.85, 0.85, 1)),
        ("--cutmix-lambda 0.85 --cutmix-version 2", (0.85, 0.85, 2)),
        ("--cutmix-lambda 1", (0.0, 0.0, None)),  # the complete image is kept, so CutMix is off
        ("--cutmix-lambda 1.0 --cutmix-version 2", (0.0, 0.0, 2)),
        ("--mixup-alpha 0.2", (None, None, None)),
    ],
)
def test_the_lambda_of_cutmix_sets_both_bounds(line: str, mixing: tuple[Any, ...]) -> None:
    result = option_values("tensorflow", line)
    names = ("cutmix_lambda_low", "cutmix_lambda_high", "cutmix_version")

    assert tuple(result.get(name) for name in names) == mixing


def test_the_version_of_cutmix_is_that_of_the_configuration() -> None:
    result = option_values("tensorflow", "--cutmix-lambda 0.7", {"cutmix_version": 2})

    assert "cutmix_version" not in result


def test_a_cutmix_lambda_of_zero_is_refused() -> None:
    assert problems("tensorflow", "--cutmix-lambda 0") == [
        "--cutmix-lambda 0 must be greater than 0: it is the fraction of the image that is kept"
    ]


@pytest.mark.parametrize("flag", ["--generated-data", "--synthetic-data"])
def test_generated_data_is_not_mixed_and_dropped_flags_are_reported(flag: str) -> None:
    result = read("tensorflow", f"{flag} --mixup-alpha 0.2 --cutmix-lambda 0.5 --cutmix-version 2")

    assert {"mixup_alpha", "cutmix_lambda_low", "cutmix_version"} & result.settings.keys() == set()
    assert result.dropped == [
        DroppedWord("--mixup-alpha 0.2", "generated data is not mixed"),
        DroppedWord("--cutmix-lambda 0.5", "generated data is not mixed"),
        DroppedWord("--cutmix-version 2", "generated data is not mixed"),
    ]


def test_generated_data_disables_the_mixing_of_a_configuration() -> None:
    base = {"mixup_alpha": 0.2, "cutmix_lambda_low": 0.85, "cutmix_lambda_high": 0.85}
    result = option_values("tensorflow", "--generated-data", {"data": "imagenet", **base})

    assert {name: result[name] for name in base} == dict.fromkeys(base, 0.0)


@pytest.mark.parametrize(
    ("line", "samples"),
    [
        # iterations × micro-batch size × accumulation × replicas × device iterations
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
def test_loader_steps_of_generated_data_are_converted_to_samples(line: str, samples: int) -> None:
    assert option_values("pytorch", line)["samples"] == samples


def test_loader_steps_multiply_the_values_of_the_configuration() -> None:
    base = {"data": "generated", "micro_batch_size": 16, "replicas": 2, "samples": 5}

    assert option_values("pytorch", "--iterations 3", base)["samples"] == 96  # 3 × 16 × 2
    assert "samples" not in option_values("pytorch", "--seed 1", base)


def test_loader_steps_of_a_dataset_are_dropped_with_the_reason() -> None:
    assert read("pytorch", "--data imagenet --iterations 7").dropped == [
        DroppedWord(
            "--iterations 7", "it sets the length of generated data, and the data is imagenet"
        )
    ]


def test_iterations_are_updates_in_the_tensorflow_program() -> None:
    result = read("tensorflow", "--iterations 70 --epochs 3 --logs-per-epoch 4")

    assert result.settings["updates"].value == 70
    assert result.dropped == [
        DroppedWord("--epochs 3", "--iterations sets the length"),
        DroppedWord("--logs-per-epoch 4", "the length is in updates; use --log-freq"),
    ]


def test_the_same_flags_have_other_meanings_in_other_programs() -> None:
    line = "--batch-size 8"

    assert option_values("tensorflow", line) == {"micro_batch_size": 8}
    assert option_values("pytorch", line) == {"micro_batch_size": 8}
    assert config("popart", f"{line} --replication-factor 4").batch.micro_batch_size == 2


@pytest.mark.parametrize("data", ["generated", "synthetic"])
def test_a_folder_does_not_replace_the_generated_data_of_a_configuration(data: str) -> None:
    base = {"data": data, "num_classes": 10, "samples": 640}
    values = option_values("tensorflow", "--data-dir cifar10", base)

    assert values.get("data", data) == data
