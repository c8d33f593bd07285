"""Rules between options: valid combinations, and the message of each rule."""

from typing import Any

import pytest

from convoy.config.resolve import check_rules
from convoy.config.schema import build_config
from convoy.config.sections.data import DATA

HALF_RES: dict[str, Any] = {
    "half_res_training": True,
    "fine_tune_epoch": 1,
    "fine_tune_first_trainable_layer": "fc",
    "weight_avg_strategy": "mean",
}


def rule_problems(**values: Any) -> list[str]:
    return [str(problem) for problem in check_rules(build_config(values))]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"epoch": None, "updates": 10},
        {"data": "cifar10", "data_dir": "DATA"},
        {"data": "cifar10", "data_dir": "DATA", "image_size": 32},
        {"data": "shapes", "image_size": 64, "samples": 10},
        {"data": "generated", "num_classes": 7, "image_size": 224, "samples": 10},
        HALF_RES,
        HALF_RES | {"ckpts_per_epoch": 0, "epochs_per_ckpt": 2, "data": "imagenet"},
        {"shards": 3},
        {"pipeline_splits": ("a", "b")},
        {"shards": 3, "pipeline_splits": ("a", "b")},
        {"shards": 4, "pipeline_splits": ("list",)},
        {"bn_span": 2, "replicas": 4},
        {"bn_span": 4, "replicas": 4},
        {"norm_type": "group", "replicas": 4},
        {"epochs_per_ckpt": 2, "ckpts_per_epoch": 1},
        {"epochs_per_ckpt": 2, "ckpts_per_epoch": 0, "ckpt_epochs_offset": 1},
        {"ckpts_per_epoch": 3, "ckpt_epochs_offset": 1},
        {"log_freq": 5, "logs_per_epoch": None},
    ],
)
def test_valid_combinations_pass(values: dict[str, Any]) -> None:
    assert rule_problems(**values) == []


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"model": "resnet51"}, "--model 'resnet51' is unknown; did you mean resnet65, resnet56"),
        (
            {"epoch": 1.0, "updates": 10},
            "--epochs and --updates both set the training length; use only one",
        ),
        ({"epoch": None}, "--epochs or --updates must set the training length"),
        (
            {"base_learning_rate_exponent": -8.0, "lr": 0.1},
            "--lr and --base-learning-rate-exponent both set the learning rate",
        ),
        (
            {"pretrained": "a.pth", "init_path": "run"},
            "--pretrained and --init-path both set the initial weights",
        ),
        ({"lr": None}, "--lr or --base-learning-rate-exponent must set the learning rate"),
        (
            {"lr_drops": 4, "lr_scheduler_freq": 1.0},
            "--lr-drops and --lr-scheduler-freq both set when the learning rate",
        ),
        (
            {"lr_multipliers": (1.0, 0.1), "lr_epoch_decay": (1.0,), "lr_share_decay": (0.5,)},
            "--lr-multipliers needs 3 rates for 2 milestones, got 2",
        ),
        (
            {"lr_multipliers": (1.0, 0.1, 0.01), "lr_epoch_decay": (1.0,)},
            "--lr-multipliers needs 2 rates for 1 milestone, got 3",
        ),
        (
            {"cutmix_lambda_low": 0.5, "cutmix_lambda_high": 0.25},
            "--cutmix-lambda-low 0.5 is greater than --cutmix-lambda-high 0.25",
        ),
        (
            {"mixup_alpha": 0.1, "micro_batch_size": 1},
            "--micro-batch-size 1 is too small for mixup and CutMix",
        ),
        (
            {"available_memory_proportion": (0.1, 0.2, 0.3), "shards": 2},
            "--available-memory-proportion takes one value, or one for each of the 2 stages, got 3",
        ),
        (
            {"available_memory_proportion": (0.1, 0.2)},
            "--available-memory-proportion takes one value, got 2",
        ),
        (
            HALF_RES | {"fine_tune_first_trainable_layer": None},
            "--half-res-training needs --fine-tune-first-trainable-layer",
        ),
        (
            HALF_RES | {"fine_tune_epoch": 0},
            "--half-res-training needs --fine-tune-epoch 1 or more",
        ),
        (
            HALF_RES | {"weight_avg_strategy": "none"},
            "--half-res-training fine-tunes averaged weights: "
            "use --weight-avg-strategy mean or exponential",
        ),
        (
            HALF_RES | {"ckpts_per_epoch": 0},
            "--half-res-training fine-tunes averaged checkpoints: use --ckpts-per-epoch 1 or more",
        ),
        (
            HALF_RES | {"data": "cifar10", "data_dir": "DATA"},
            "--half-res-training cannot train on smaller images: cifar10 images are always 32",
        ),
        (
            {"force_weight_to_fp16": ("a", "b"), "force_weight_to_fp32": ("b",)},
            "--force-weight-to-fp16 and --force-weight-to-fp32 both contain 'b'",
        ),
        (
            {"data": "cifar10", "data_dir": "DATA", "image_size": 64},
            "--image-size must be 32 for cifar10, got 64",
        ),
        ({"num_classes": 3}, "--num-classes cannot be set for shapes, which has 10 classes"),
        (
            {"data": "cifar10", "data_dir": "DATA", "samples": 9},
            "--samples cannot be set for cifar10",
        ),
        (
            {"shards": 4, "pipeline_splits": ("a", "b")},
            "--pipeline-splits defines 3 stages, but --shards is 4",
        ),
        (
            {"shards": 1, "pipeline_splits": ("a",)},
            "--pipeline-splits defines 2 stages, but --shards is 1",
        ),
        (
            {"bn_span": 4, "replicas": 6},
            "--bn-span 4 does not divide --replicas 6; use --bn-span 3 or 6, or --replicas 4 or 8",
        ),
        (
            {"bn_span": 4, "replicas": 2},
            "--bn-span 4 does not divide --replicas 2; use --bn-span 2, or --replicas 4",
        ),
        (
            {"bn_span": 2, "replicas": 4, "norm_type": "group"},
            "--bn-span 2 has no effect with --norm-type group: only batch norm has statistics to "
            "share; use --norm-type batch, or --bn-span 1",
        ),
        (
            {"bn_span": 2, "replicas": 4, "norm_type": "none"},
            "--bn-span 2 has no effect with --norm-type none",
        ),
        (
            {"epochs_per_ckpt": 3, "ckpts_per_epoch": 2},
            "--epochs-per-ckpt 3 and --ckpts-per-epoch 2 both set how often to save",
        ),
        (
            {"log_freq": 5, "logs_per_epoch": 0},
            "--log-freq and --logs-per-epoch both set how often to report; use only one",
        ),
    ],
)
def test_a_violated_rule_is_reported(values: dict[str, Any], text: str) -> None:
    (line,) = rule_problems(**values)

    assert line.startswith(text)


def test_all_violated_rules_are_reported() -> None:
    invalid = {"model": "x", "updates": 1, "data": "cifar10", "image_size": 64, "samples": 1}
    invalid |= {"shards": 2, "bn_span": 2, "norm_type": "group"}
    invalid |= {"epochs_per_ckpt": 2, "ckpts_per_epoch": 2, "log_freq": 5}
    lines = rule_problems(**invalid, name="a", checkpoint_output_path="b")

    assert len(lines) == 9


@pytest.mark.parametrize("data", list(DATA))
def test_every_dataset_passes_the_rules(data: str) -> None:
    assert rule_problems(data=data, data_dir="DATA") == []


def test_an_unknown_dataset_causes_no_further_problems() -> None:
    assert rule_problems(data="cifar11", num_classes=3, samples=5, image_size=9) == []
