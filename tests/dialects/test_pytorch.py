"""The PyTorch program: canonical and deprecated flags, and its defaults."""

from typing import Any

import pytest
from support.dialect_words import config, option_values, problems, read

from convoy.config.schema import flatten_config

# The documented defaults.
DEFAULTS: dict[str, Any] = {
    "model": "resnet18",
    "norm_type": "batch",
    "norm_num_groups": 32,
    "norm_eps": 1e-5,
    "batchnorm_momentum": 0.1,
    "stable_norm": True,
    "enable_fast_groupnorm": False,
    "group_dim": None,
    "expand_ratio": 6,
    "input_image_padding": False,
    "data": "cifar10",
    "normalization_location": "host",
    "eight_bit_io": False,
    "use_bbox_info": False,
    "dataset_percentage_to_use": 100,
    "mixup_alpha": 0.0,
    "cutmix_lambda_low": 0.0,
    "cutmix_lambda_high": 0.0,
    "cutmix_disable_prob": 0.0,
    "micro_batch_size": 1,
    "gradient_accumulation": 1,
    "replicas": 1,
    "epoch": 10.0,
    "device_iterations": 1,
    "lr": 0.01,
    "base_learning_rate_exponent": None,
    "lr_schedule": "step",
    "lr_epoch_decay": (),
    "lr_decay": 0.5,
    "lr_scheduler_freq": 0.0,
    "warmup_epoch": 0.0,
    "optimizer": "sgd",
    "momentum": 0.0,
    "weight_decay": 1e-4,
    "weight_decay_spares": "vectors",
    "rmsprop_decay": 0.99,
    "optimizer_eps": 1e-8,
    "loss_velocity_scaling_ratio": 1.0,
    "label_smoothing": 0.0,
    "loss_scaling": 1.0,
    "initial_loss_scaling": None,
    "auto_loss_scaling": False,
    "precision": "16.16",
    "half_partial": False,
    "enable_stochastic_rounding": False,
    "enable_fp_exceptions": False,
    "pipeline_splits": (),
    "enable_recompute": None,
    "recompute_checkpoints": (),
    "offload_optimizer": False,
    "enable_optimizer_rts": False,
    "available_memory_proportion": (),
    "weight_avg_strategy": "none",
    "weight_avg_n": -1,
    "weight_avg_exp_decay": 0.99,
    "validation_mode": "after",
    "validation_frequency": 4,
    "logs_per_epoch": 1,
    "exchange_memory_target": "cycles",
    "num_io_tiles": 0,
    "half_res_training": False,
    "fine_tune_epoch": 0,
    "fine_tune_lr": 0.25,
    "fine_tune_micro_batch_size": 1,
    "fine_tune_gradient_accumulation": 1,
    "fine_tune_first_trainable_layer": None,
}


def test_the_defaults_are_the_documented_ones() -> None:
    values = flatten_config(config("pytorch", ""))

    assert {name: values[name] for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("model", "zero_init"), [("resnet50", True), ("resnet18", False), ("resnet101", False)]
)
def test_only_resnet50_initializes_the_last_norms_to_zero(model: str, zero_init: bool) -> None:
    assert config("pytorch", f"--model {model}").network.zero_init_last_norm == zero_init


@pytest.mark.parametrize(
    ("line", "channels"),
    [
        ("--model resnext101", 8),  # 32 × 8d
        ("--model resnext50", None),  # 32 × 4d, the default of convoy
        ("--model resnext101 --group-dim 4", 4),
    ],
)
def test_resnext101_has_wider_groups(line: str, channels: int | None) -> None:
    assert config("pytorch", f"{line} --data imagenet").family.group_dim == channels


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("--efficientnet-group-dim 16", {"group_dim": 16}),
        ("--efficientnet-expand-ratio 4", {"expand_ratio": 4}),
        ("--disable-stable-batchnorm", {"stable_norm": False}),
        ("--imagenet-data-path DATA", {"data_dir": "DATA"}),
        ("--webdataset-percentage-to-use 10", {"dataset_percentage_to_use": 10}),
        ("--normalization-location ipu", {"normalization_location": "device"}),
        ("--normalization-location IPU", {"normalization_location": "device"}),
        ("--normalization-location host", {"normalization_location": "host"}),
        ("--lr-epoch-decay 30 60", {"lr_epoch_decay": (30.0, 60.0)}),
        ("--recompute-mode auto", {"enable_recompute": True}),
        ("--recompute-mode manual", {"enable_recompute": True}),
        ("--recompute-mode none", {"enable_recompute": None}),
        ("--enable-recompute", {"enable_recompute": True}),
        ("--enable-recompute --recompute-mode none", {"enable_recompute": True}),
        ("--no-enable-recompute --recompute-mode auto", {"enable_recompute": False}),
        ("--checkpoint-save-freq 5", {"epochs_per_ckpt": 5}),
        ("--checkpoint-output-dir OUT", {"checkpoint_output_path": "OUT"}),
        ("--weight-avg-N 5", {"weight_avg_n": 5}),
        ("--fine-tune-batch-size 4", {"fine_tune_micro_batch_size": 4}),
        ("--model-cache-path CACHE", {"model_cache_path": "CACHE"}),
        ("--disable-async-loading", {"dataloader_worker": 0}),
        ("--eight-bit-io", {"eight_bit_io": True}),
    ],
)
def test_deprecated_and_ipu_spellings_are_accepted(line: str, values: dict[str, Any]) -> None:
    assert option_values("pytorch", line) == values


def test_an_unknown_recompute_mode_is_refused() -> None:
    assert problems("pytorch", "--recompute-mode always") == [
        "--recompute-mode must be none, auto or manual, got 'always'"
    ]


@pytest.mark.parametrize("flag", ["--checkpoint-input-path", "--checkpoint-input-dir"])
def test_the_input_folder_is_the_target_of_the_verb(flag: str) -> None:
    result = read("pytorch", f"{flag} RUN")

    assert (result.target, result.settings, result.problems) == ("RUN", {}, [])


def test_a_common_folder_is_target_and_output_folder() -> None:
    result = read("pytorch", "--checkpoint-path RUN")

    assert result.target == "RUN"
    assert result.settings["checkpoint_output_path"].value == "RUN"


def test_the_input_and_output_folders_override_the_common_one() -> None:
    result = read(
        "pytorch", "--checkpoint-path A --checkpoint-input-dir B --checkpoint-output-dir C"
    )

    assert (result.target, result.settings["checkpoint_output_path"].value) == ("B", "C")


@pytest.mark.parametrize("optimizer", ["sgd", "sgd_combined", "adamw", "rmsprop", "rmsprop_tf"])
def test_all_optimizers_are_known(optimizer: str) -> None:
    assert option_values("pytorch", f"--optimizer {optimizer}") == {"optimizer": optimizer}
