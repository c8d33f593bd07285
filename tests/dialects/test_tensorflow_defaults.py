"""What the TensorFlow program takes for granted, for each family, data set and optimizer.

The figures are those of the list of its options, written down one by one.
"""

from typing import Any, NamedTuple

import pytest
from spoken_words import config

from convoy.config.schema import flat_values
from convoy.models.network import plan_network

PHOTOS, CIFAR = (0.3, 0.6, 0.8, 0.9), (0.5, 0.75)
GROUP_EPS = 1.53e-5


class Network(NamedTuple):
    """What follows from family and data alone."""

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
    Network(
        "--model resnet --dataset imagenet",
        *("resnet18", 4, 100.0, "group", 32, GROUP_EPS, False, PHOTOS, 0.0),
    ),
    Network(
        "--model resnet --dataset cifar-10",
        *("resnet20", 32, 160.0, "batch", 16, 1e-5, False, CIFAR, 0.0),
    ),
    Network(
        "--model resnext --dataset imagenet",
        *("resnext14", 1, 100.0, "group", 32, GROUP_EPS, True, PHOTOS, 0.0),
    ),
    Network(
        "--model resnext --dataset cifar-100",
        *("resnext11", 8, 160.0, "batch", 16, 1e-5, False, CIFAR, 0.0),
    ),
    Network(
        "--model efficientnet --dataset imagenet",
        *("efficientnet-b0", 4, 350.0, "group", 4, 1e-3, True, PHOTOS, 0.1),
    ),
    Network(
        "--model efficientnet --dataset cifar-10",
        *("efficientnet-cifar", 8, 300.0, "group", 4, 1e-3, False, CIFAR, 0.0),
    ),
    Network(
        "--model squeezenet --dataset imagenet",
        *("squeezenet", 2, 100.0, "group", 32, GROUP_EPS, False, PHOTOS, 0.0),
    ),
    Network(
        "--model squeezenet --dataset cifar-10",
        *("squeezenet", 128, 160.0, "batch", 16, 1e-5, False, CIFAR, 0.0),
    ),
]


@pytest.mark.parametrize("usual", NETWORKS, ids=lambda usual: usual.line)
def test_family_and_data_decide_much(usual: Network) -> None:
    found = config("tensorflow", usual.line)

    assert found.network.model == usual.model
    assert found.batch.micro_batch_size == usual.micro
    assert found.length.epoch == usual.epochs
    assert (found.network.norm_type, found.network.norm_num_groups) == (usual.norm, usual.groups)
    assert found.network.norm_eps == usual.eps
    assert found.network.enable_fast_groupnorm == (usual.norm == "group")
    assert found.network.stable_norm == usual.stable
    assert found.learning_rate.lr_share_decay == usual.drops
    assert found.loss.label_smoothing == usual.smoothing
    assert found.loss.label_smoothing_over == ("others" if usual.smoothing else "all")
    assert found.optimizer.weight_decay_spares == ("nothing" if usual.drops == CIFAR else "norms")


class Rule(NamedTuple):
    """What follows from family, data and optimizer."""

    line: str
    optimizer: str
    exponent: float
    momentum: float
    decay: float
    lars_decay: float | None = None


# SGD has no momentum; LARS decays by itself; the exponent of CIFAR is one for all optimizers.
RULES = [
    Rule("--dataset imagenet --optimiser SGD", "sgd", -8, 0.0, 1e-4),
    Rule("--dataset imagenet --optimiser momentum", "sgd_combined", -11, 0.9, 1e-4),
    Rule("--dataset imagenet --optimiser LARS", "lars", -11, 0.9, 0.0, 1e-4),
    Rule("--dataset cifar-10 --optimiser SGD", "sgd", -6, 0.0, 1e-6),
    Rule("--dataset cifar-10 --optimiser momentum", "sgd_combined", -6, 0.9, 1e-6),
    Rule("--dataset cifar-10 --optimiser LARS", "lars", -6, 0.9, 0.0, 1e-6),
    Rule("--dataset imagenet --model resnext --optimiser SGD", "sgd", -8, 0.0, 1e-4),
    Rule("--dataset imagenet --model resnext --optimiser momentum", "sgd_combined", -11, 0.9, 1e-4),
    Rule("--dataset cifar-10 --model resnext --optimiser momentum", "sgd_combined", -6, 0.9, 1e-6),
    Rule("--dataset imagenet --model efficientnet --optimiser SGD", "sgd", -7, 0.0, 1e-5),
    Rule(
        "--dataset imagenet --model efficientnet --optimiser momentum",
        "sgd_combined",
        -10,
        0.9,
        1e-5,
    ),
    Rule(
        "--dataset imagenet --model efficientnet --optimiser RMSprop", "rmsprop_tf", -14, 0.9, 1e-5
    ),
    Rule("--dataset imagenet --model efficientnet --optimiser LARS", "lars", -10, 0.9, 0.0, 1e-5),
    Rule("--dataset cifar-10 --model efficientnet --optimiser SGD", "sgd", -6, 0.0, 1e-6),
    Rule(
        "--dataset cifar-10 --model efficientnet --optimiser RMSprop", "rmsprop_tf", -6, 0.9, 1e-6
    ),
    Rule(
        "--dataset cifar-10 --model squeezenet --optimiser momentum", "sgd_combined", -10, 0.9, 1e-6
    ),
]


@pytest.mark.parametrize("usual", RULES, ids=lambda usual: usual.line)
def test_the_optimizer_decides_the_rest(usual: Rule) -> None:
    found = config("tensorflow", usual.line)

    assert found.optimizer.optimizer == usual.optimizer
    assert found.learning_rate.base_learning_rate_exponent == usual.exponent
    assert found.learning_rate.lr is None
    assert found.optimizer.momentum == usual.momentum
    assert found.optimizer.weight_decay == usual.decay
    assert found.optimizer.lars_weight_decay == usual.lars_decay


def test_rmsprop_has_figures_of_its_own() -> None:
    found = config("tensorflow", "--model efficientnet --optimiser RMSprop").optimizer

    assert (found.optimizer_eps, found.rmsprop_base_decay_exp) == (1e-3, -14.0)


def test_a_decay_of_rmsprop_that_was_said_replaces_the_exponent() -> None:
    line = "--model efficientnet --optimiser RMSprop --rmsprop-decay 0.9"
    found = config("tensorflow", line).optimizer

    assert (found.rmsprop_decay, found.rmsprop_base_decay_exp) == (0.9, None)


ALWAYS: dict[str, Any] = {
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
    "batchnorm_momentum": 0.03,  # keeps 0.97
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
    "offload_optimizer": False,  # only in a pipeline
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


@pytest.mark.parametrize("name", ALWAYS)
def test_what_nobody_says_is_the_same_for_all(name: str) -> None:
    assert flat_values(config("tensorflow", ""))[name] == ALWAYS[name]


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
def test_some_of_it_follows_what_was_said(line: str, values: dict[str, Any]) -> None:
    found = flat_values(config("tensorflow", line))

    assert {name: found[name] for name in values} == values


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
def test_a_network_has_as_many_parameters_as_there(line: str, parameters: int) -> None:
    assert plan_network(config("tensorflow", line)).parameters == parameters
