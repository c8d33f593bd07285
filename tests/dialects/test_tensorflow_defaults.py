"""Defaults of the TensorFlow program for each family, dataset and optimizer.

The expected values are those of its documentation.
"""

from typing import Any, NamedTuple

import pytest
from support.dialect_words import config

from convoy.config.schema import flatten_config
from convoy.models.network import plan_network

IMAGENET_DROPS, CIFAR_DROPS = (0.3, 0.6, 0.8, 0.9), (0.5, 0.75)
GROUP_EPS = 1.53e-5


class NetworkDefaults(NamedTuple):
    """Defaults that depend on family and data."""

    line: str
    model: str
    micro: int
    epochs: float
    norm: str
    groups: int
    eps: float
    stable: bool
    drops: tuple[float, ...]
    smoothing: float


NETWORKS = [
    NetworkDefaults(
        "--model resnet --dataset imagenet",
        *("resnet18", 4, 100.0, "group", 32, GROUP_EPS, False, IMAGENET_DROPS, 0.0),
    ),
    NetworkDefaults(
        "--model resnet --dataset cifar-10",
        *("resnet20", 32, 160.0, "batch", 16, 1e-5, False, CIFAR_DROPS, 0.0),
    ),
    NetworkDefaults(
        "--model resnext --dataset imagenet",
        *("resnext14", 1, 100.0, "group", 32, GROUP_EPS, True, IMAGENET_DROPS, 0.0),
    ),
    NetworkDefaults(
        "--model resnext --dataset cifar-100",
        *("resnext11", 8, 160.0, "batch", 16, 1e-5, False, CIFAR_DROPS, 0.0),
    ),
    NetworkDefaults(
        "--model efficientnet --dataset imagenet",
        *("efficientnet-b0", 4, 350.0, "group", 4, 1e-3, True, IMAGENET_DROPS, 0.1),
    ),
    NetworkDefaults(
        "--model efficientnet --dataset cifar-10",
        *("efficientnet-cifar", 8, 300.0, "group", 4, 1e-3, False, CIFAR_DROPS, 0.0),
    ),
    NetworkDefaults(
        "--model squeezenet --dataset imagenet",
        *("squeezenet", 2, 100.0, "group", 32, GROUP_EPS, False, IMAGENET_DROPS, 0.0),
    ),
    NetworkDefaults(
        "--model squeezenet --dataset cifar-10",
        *("squeezenet", 128, 160.0, "batch", 16, 1e-5, False, CIFAR_DROPS, 0.0),
    ),
]


@pytest.mark.parametrize("expected", NETWORKS, ids=lambda expected: expected.line)
def test_some_defaults_depend_on_family_and_data(expected: NetworkDefaults) -> None:
    result = config("tensorflow", expected.line)

    assert result.network.model == expected.model
    assert result.batch.micro_batch_size == expected.micro
    assert result.length.epoch == expected.epochs
    assert (result.network.norm_type, result.network.norm_num_groups) == (
        expected.norm,
        expected.groups,
    )
    assert result.network.norm_eps == expected.eps
    assert result.network.enable_fast_groupnorm == (expected.norm == "group")
    assert result.network.stable_norm == expected.stable
    assert result.learning_rate.lr_share_decay == expected.drops
    assert result.loss.label_smoothing == expected.smoothing
    assert result.loss.label_smoothing_over == ("others" if expected.smoothing else "all")
    assert result.optimizer.weight_decay_spares == (
        "nothing" if expected.drops == CIFAR_DROPS else "norms"
    )


class OptimizerDefaults(NamedTuple):
    """Defaults that depend on family, data and optimizer."""

    line: str
    optimizer: str
    exponent: float
    momentum: float
    decay: float
    lars_decay: float | None = None


# SGD has no momentum, and LARS has its own weight decay.
OPTIMIZERS = [
    OptimizerDefaults("--dataset imagenet --optimiser SGD", "sgd", -8, 0.0, 1e-4),
    OptimizerDefaults("--dataset imagenet --optimiser momentum", "sgd_combined", -11, 0.9, 1e-4),
    OptimizerDefaults("--dataset imagenet --optimiser LARS", "lars", -11, 0.9, 0.0, 1e-4),
    OptimizerDefaults("--dataset cifar-10 --optimiser SGD", "sgd", -6, 0.0, 1e-6),
    OptimizerDefaults("--dataset cifar-10 --optimiser momentum", "sgd_combined", -6, 0.9, 1e-6),
    OptimizerDefaults("--dataset cifar-10 --optimiser LARS", "lars", -6, 0.9, 0.0, 1e-6),
    OptimizerDefaults("--dataset imagenet --model resnext --optimiser SGD", "sgd", -8, 0.0, 1e-4),
    OptimizerDefaults(
        "--dataset imagenet --model resnext --optimiser momentum", "sgd_combined", -11, 0.9, 1e-4
    ),
    OptimizerDefaults(
        "--dataset cifar-10 --model resnext --optimiser momentum", "sgd_combined", -6, 0.9, 1e-6
    ),
    OptimizerDefaults(
        "--dataset imagenet --model efficientnet --optimiser SGD", "sgd", -7, 0.0, 1e-5
    ),
    OptimizerDefaults(
        "--dataset imagenet --model efficientnet --optimiser momentum",
        "sgd_combined",
        -10,
        0.9,
        1e-5,
    ),
    OptimizerDefaults(
        "--dataset imagenet --model efficientnet --optimiser RMSprop", "rmsprop_tf", -14, 0.9, 1e-5
    ),
    OptimizerDefaults(
        "--dataset imagenet --model efficientnet --optimiser LARS", "lars", -10, 0.9, 0.0, 1e-5
    ),
    OptimizerDefaults(
        "--dataset cifar-10 --model efficientnet --optimiser SGD", "sgd", -6, 0.0, 1e-6
    ),
    OptimizerDefaults(
        "--dataset cifar-10 --model efficientnet --optimiser RMSprop", "rmsprop_tf", -6, 0.9, 1e-6
    ),
    OptimizerDefaults(
        "--dataset cifar-10 --model squeezenet --optimiser momentum", "sgd_combined", -10, 0.9, 1e-6
    ),
]


@pytest.mark.parametrize("expected", OPTIMIZERS, ids=lambda expected: expected.line)
def test_some_defaults_depend_on_the_optimizer(expected: OptimizerDefaults) -> None:
    result = config("tensorflow", expected.line)

    assert result.optimizer.optimizer == expected.optimizer
    assert result.learning_rate.base_learning_rate_exponent == expected.exponent
    assert result.learning_rate.lr is None
    assert result.optimizer.momentum == expected.momentum
    assert result.optimizer.weight_decay == expected.decay
    assert result.optimizer.lars_weight_decay == expected.lars_decay


def test_rmsprop_has_other_defaults() -> None:
    result = config("tensorflow", "--model efficientnet --optimiser RMSprop").optimizer

    assert (result.optimizer_eps, result.rmsprop_base_decay_exp) == (1e-3, -14.0)


def test_a_given_decay_of_rmsprop_replaces_the_exponent() -> None:
    line = "--model efficientnet --optimiser RMSprop --rmsprop-decay 0.9"
    result = config("tensorflow", line).optimizer

    assert (result.rmsprop_decay, result.rmsprop_base_decay_exp) == (0.9, None)


FIXED_DEFAULTS: dict[str, Any] = {
    "data": "imagenet",
    "model": "resnet18",
    "gradient_accumulation": 1,
    "replicas": 1,
    "updates": None,
    "lr_schedule": "step",
    "lr_decay": 0.1,
    "lr_drops": None,
    "warmup_epoch": 5.0,
    "poly_lr_decay_power": 2.0,
    "poly_lr_end_ratio": 1e-5,
    "optimizer_state_dtype": "weights",
    "lars_epsilon": 0.0,
    "lars_eeta": 0.001,
    "lars_skip_list": ("beta", "gamma", "bias"),
    "mixup_alpha": 0.0,
    "cutmix_lambda_low": 0.0,
    "cutmix_lambda_high": 0.0,
    "batchnorm_momentum": 0.03,  # 1 − 0.97
    "bn_span": 1,
    "proxy_epsilon": 0.03,
    "block_survival_prob": 0.8,
    "depth_divisor": 8,
    "top_width": 1280,
    "cardinality": 32,
    "expand_ratio": 6,
    "loss_scaling": 128.0,
    "precision": "16.16",
    "half_partial": False,
    "enable_stochastic_rounding": True,
    "enable_fp_exceptions": False,
    "shards": 1,
    "pipeline_schedule": "interleaved",
    "enable_recompute": False,
    "offload_optimizer": False,  # true in a pipeline
    "min_remote_tensor_size": 128,
    "max_cross_replica_buffer_size": 10485760,  # 10 × 1024 × 1024
    "max_reduce_many_buffer_size": 0,
    "eight_bit_io": False,
    "normalization_location": "device",
    "normalize_std": False,
    "crop_rule": "tensorflow",
    "use_bbox_info": True,
    "dataset_percentage_to_use": 100,
    "ckpts_per_epoch": 1,
    "epochs_per_ckpt": 0,
    "weight_avg_strategy": "none",
    "validation_mode": "after",
    "repeat": 1,
    "latency": False,
    "logs_per_epoch": 16,
    "log_freq": None,
    "log_dir": "logs",
    "scheduling_algorithm": "choose-best",
    "num_io_tiles": 0,
    "select_devices": (),
}


@pytest.mark.parametrize("name", FIXED_DEFAULTS)
def test_a_fixed_default_is_the_documented_value(name: str) -> None:
    assert flatten_config(config("tensorflow", ""))[name] == FIXED_DEFAULTS[name]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("--iterations 50", {"updates": 50, "epoch": None, "log_freq": 500}),
        ("--lr-schedule exponential", {"lr_decay": 0.97, "lr_drops": 146, "lr_share_decay": ()}),
        ("--lr-schedule cosine", {"lr_drops": None, "lr_share_decay": ()}),
        ("--precision 32.32", {"enable_stochastic_rounding": False}),
        ("--precision 16.32", {"enable_stochastic_rounding": True}),
        ("--group-norm --dataset cifar-10", {"norm_eps": GROUP_EPS, "enable_fast_groupnorm": True}),
        ("--batch-norm", {"norm_eps": 1e-5, "enable_fast_groupnorm": False}),
        ("--batch-norm --model efficientnet", {"norm_type": "batch", "norm_eps": 1e-3}),
        ("--batch-norm --group-norm", {"norm_type": "group"}),
        ("--batch-norm --group-norm --model efficientnet", {"norm_type": "batch"}),
        ("--pipeline --shards 2", {"offload_optimizer": True}),
        ("--pipeline --shards 2 --disable-variable-offloading", {"offload_optimizer": False}),
        ("--dataset cifar-10", {"normalize_std": True, "use_bbox_info": False}),
        ("--generated-data --dataset cifar-10", {"model": "resnet20", "num_classes": 10}),
        ("--weight-decay 0", {"weight_decay": 0.0}),
        ("--model efficientnet --force-unstable-norm", {"stable_norm": False}),
        ("--stable-norm", {"stable_norm": True}),
    ],
)
def test_some_defaults_depend_on_given_options(line: str, values: dict[str, Any]) -> None:
    result = flatten_config(config("tensorflow", line))

    assert {name: result[name] for name in values} == values


@pytest.mark.parametrize(
    ("line", "parameters"),
    [
        ("--dataset imagenet --model-size 18", 11_693_736),  # 4,224 more than torchvision's
        ("--dataset imagenet --model-size 10", 5_423_016),
        ("--dataset imagenet --model-size 14 --model resnext --fused-preprocessing", 9_415_016),
        ("--dataset imagenet --model efficientnet --model-size B0 --fused-prep", 5_288_836),
        ("--dataset cifar-10 --model efficientnet --model-size cifar", 1_077_932),
        ("--dataset cifar-10 --model-size 56", 591_322),
    ],
)
def test_networks_have_the_published_parameter_counts(line: str, parameters: int) -> None:
    assert plan_network(config("tensorflow", line)).parameters == parameters
