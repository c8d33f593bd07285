"""The flags of the TensorFlow program."""

from pathlib import Path
from typing import Any

import pytest
from support.dialect_words import option_values, problems, read, run

from convoy.config.schema import DroppedWord


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("--stochastic-rounding ON", {"enable_stochastic_rounding": True}),
        ("--stochastic-rounding ON_prng_stable", {"enable_stochastic_rounding": True}),
        ("--stochastic-rounding RI_prng_stable", {"enable_stochastic_rounding": True}),
        ("--stochastic-rounding OFF", {"enable_stochastic_rounding": False}),
        ("--no-stochastic-rounding", {"enable_stochastic_rounding": False}),
        ("--select-ipu AUTO", {"select_devices": ()}),
        ("--select-ipu auto", {"select_devices": ()}),
        ("--select-ipus 3", {"select_devices": (3,)}),
        ("--seed 0", {"seed": 0}),  # in the program 0 means no seed
        ("--pipeline-schedule Grouped", {"pipeline_schedule": "grouped"}),
        ("--hostside-norm", {"normalization_location": "host"}),
        ("--no-hostside-norm", {"normalization_location": "device"}),
        ("--no-se", {"squeeze_excite": False}),
        ("--no-proxy-recompute", {"proxy_recompute": False}),
        ("--train-with-valid-preprocessing", {"augment": False}),
        ("--no-dataset-cache", {"dataset_cache": False}),
        ("--no-logs", {"logs": False}),
        ("--no-validation", {"validation_mode": "none"}),
        ("--precision 16.32", {"precision": "16.32"}),
        ("--lars-skip-list beta gamma", {"lars_skip_list": ("beta", "gamma")}),
        ("--gc-profile", {"profile": True}),
        ("--gc-profile IPU_PROFILE", {"profile": True}),
        ("--gc-profile NO_PROFILE", {"profile": False}),
        ("--wandb-id abc", {"wandb_id": "abc"}),
        ("--max-ckpts-to-keep 3", {"keep_last": 3}),
        ("--logs-path RUN", {"checkpoint_output_path": "RUN"}),
        ("--gradients-to-accumulate 8", {"gradient_accumulation": 8}),
        ("--pipeline-depth 8", {"gradient_accumulation": 8}),
        ("--batches-per-step 10 --device-iterations 20", {"device_iterations": 20}),
        (
            "--fused-preprocessing",
            {"normalization_location": "device", "input_image_padding": True},
        ),
        ("--optimiser sgd", {"optimizer": "sgd", "momentum": 0.0}),
        ("--optimiser Momentum", {"optimizer": "sgd_combined", "momentum": 0.9}),
        ("--optimiser momentum --momentum 0.8", {"optimizer": "sgd_combined", "momentum": 0.8}),
        ("--momentum 0.8 --optimiser LARS", {"optimizer": "lars", "momentum": 0.8}),
        ("--optimiser RMSprop", {"optimizer": "rmsprop_tf", "momentum": 0.9}),
    ],
)
def test_values_are_parsed_as_in_the_program(line: str, values: dict[str, Any]) -> None:
    assert option_values("tensorflow", line) == values


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("--model-size 50", "resnet50"),
        ("--model RESNET --model-size 50", "resnet50"),
        ("--model resnext --model-size 101", "resnext101"),
        ("--model efficientnet", "efficientnet-b0"),
        ("--model efficientnet --model-size 4", "efficientnet-b4"),
        ("--model efficientnet --model-size B4", "efficientnet-b4"),
        ("--model efficientnet --model-size b4", "efficientnet-b4"),
        ("--model efficientnet --model-size cifar", "efficientnet-cifar"),
        ("--model efficientnet --model-size cifar --dataset cifar-100", "efficientnet-cifar"),
        ("--model-size 20 --dataset cifar-10", "resnet20"),
        ("--model-size 14", "resnet14-large"),  # two networks have 14 layers
        ("--model-size 14 --dataset cifar-10", "resnet14"),
        ("--model-size 56 --dataset cifar-10", "resnet56-bottleneck"),
        ("--model-size 8 --dataset cifar-10 --synthetic-data", "resnet8"),
        ("--model squeezenet", "squeezenet"),
    ],
)
def test_family_and_size_select_the_model(line: str, model: str) -> None:
    assert option_values("tensorflow", line)["model"] == model


@pytest.mark.parametrize(
    ("line", "data"),
    [
        ("--dataset CIFAR-10", "cifar10"),
        ("--dataset cifar-100", "cifar100"),
        ("--dataset ImageNet", "imagenet"),
        ("--data-dir /datasets/imagenet-data", "imagenet"),
        ("--data-dir /datasets/ImageNet", "imagenet"),
        ("--data-dir /datasets/cifar-100-binary", "cifar100"),
        ("--data-dir /datasets/cifar100", "cifar100"),
        ("--data-dir /datasets/cifar-10-batches-bin", "cifar10"),
        ("--data-dir /datasets/cifar-10_0", "cifar10"),
        ("--data-dir /datasets/imagenet/cifar", "imagenet"),
        ("--data-dir /datasets/cifar10 --dataset cifar-100", "cifar100"),
    ],
)
def test_the_dataset_is_named_or_guessed_from_its_folder(line: str, data: str) -> None:
    assert option_values("tensorflow", line)["data"] == data


@pytest.mark.parametrize(
    ("folder", "data"),
    [("cifar-10-batches-bin", "cifar10"), ("cifar-100-binary", "cifar100"), ("other", None)],
)
def test_a_folder_is_identified_by_its_subfolders(
    tmp_path: Path, folder: str, data: str | None
) -> None:
    (tmp_path / folder).mkdir()

    assert option_values("tensorflow", f"--data-dir {tmp_path}").get("data") == data


def test_the_dataset_of_an_unknown_folder_is_imagenet() -> None:
    assert (
        run("python3 train.py --model-size 50 --data-dir DATA --shards 1").data.data == "imagenet"
    )


@pytest.mark.parametrize(
    ("line", "data"),
    [
        ("--no-validation", "cifar100"),
        ("--no-validation --data-dir /datasets/cifar-10", "cifar10"),
        ("--no-validation --dataset imagenet", "imagenet"),
        ("--config resnet50_gn_16ipus", "imagenet"),
    ],
)
def test_the_folder_of_the_environment_identifies_the_dataset(line: str, data: str) -> None:
    result = run(f"python3 train.py {line}", {"DATA_DIR": "/datasets/cifar-100-binary"})

    assert result.data.data == data


@pytest.mark.parametrize(
    ("line", "samples", "classes", "size"),
    [
        ("--generated-data", 1281167, 1000, None),
        ("--synthetic-data --dataset cifar-10", 50000, 10, 32),
        ("--generated-data --dataset cifar-100", 50000, 100, 32),
        ("--generated-data --data-dir /datasets/cifar-100-binary", 50000, 100, 32),
    ],
)
def test_generated_data_has_the_size_of_the_dataset_it_replaces(
    line: str, samples: int, classes: int, size: int | None
) -> None:
    result = option_values("tensorflow", line)

    assert result["data"] in ("generated", "synthetic")
    assert (result["samples"], result["num_classes"]) == (samples, classes)
    assert result.get("image_size") == size


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--model vgg",
            "--model must be one of resnet, resnext, efficientnet, squeezenet, got 'vgg'",
        ),
        (
            "--model-size 20",
            "--model-size '20' is not a resnet for ImageNet; the sizes are "
            "10, 14, 18, 26, 34, 50, 101, 152",
        ),
        (
            "--model resnext --model-size 20 --dataset cifar-10",
            "--model-size '20' is not a resnext for CIFAR; the sizes are 11, 29, 38, 47, 56, 65",
        ),
        (
            "--model efficientnet --model-size B8",
            "--model-size of efficientnet is B0 to B7 or cifar, got 'B8'",
        ),
        ("--dataset mnist", "--dataset must be one of imagenet, cifar-10, cifar-100, got 'mnist'"),
        ("--optimiser adam", "--optimiser must be SGD, momentum, RMSprop or LARS, got 'adam'"),
        (
            "--stochastic-rounding on",
            "--stochastic-rounding must be one of ON, ON_prng_stable, RI_prng_stable, OFF, "
            "got 'on'",
        ),
        (
            "--gc-profile ALL",
            "--gc-profile must be one of NO_PROFILE, DEVICE_PROFILE, IPU_PROFILE, TILE_PROFILE, "
            "got 'ALL'",
        ),
        ("--select-ipu some", "--select-ipu expects an integer, got 'some'"),
        ("--precision 16", "--precision cannot be '16'; did you mean 16.32, 16.16?"),
        ("--prefetch-depth 256", "--prefetch-depth must be at most 255, got 256"),
        (
            "--batch-size 4 --micro-batch-size 8",
            "--batch-size and --micro-batch-size set the same option; use only one",
        ),
        (
            "--gradients-to-accumulate 4 --pipeline-depth 4",
            "--gradients-to-accumulate and --pipeline-depth set the same option; use only one",
        ),
        (
            "--pipeline-depth 4 --gradient-accumulation-count 8",
            "--pipeline-depth 4 and --gradient-accumulation-count set the same option; "
            "use only one",
        ),
        ("--shards 2", "--shards 2 needs --pipeline"),
        ("--pipeline-splits b1 b2", "--pipeline-splits b1 b2 needs --pipeline"),
        ("--discard-last 2", "--discard-last is not available in this version; leave it out"),
    ],
)
def test_invalid_input_is_reported(line: str, message: str) -> None:
    assert problems("tensorflow", line) == [message]


def test_all_invalid_input_is_reported_at_once() -> None:
    line = "--model vgg --shards 2 --batch-size 1 --micro-batch-size 2 --BN-decay 2"

    assert len(problems("tensorflow", line)) == 4


@pytest.mark.parametrize(
    ("line", "dropped"),
    [
        ("--pipeline", [DroppedWord("--pipeline", "there is only one stage")]),
        ("--momentum 0.9", [DroppedWord("--momentum 0.9", "plain SGD has no momentum")]),
        (
            "--optimiser SGD --momentum 0.9",
            [DroppedWord("--momentum 0.9", "plain SGD has no momentum")],
        ),
        (
            "--fused-preprocessing --dataset cifar-10",
            [DroppedWord("--fused-preprocessing", "it applies to ImageNet only")],
        ),
        (
            "--hostside-norm --fused-preprocessing",
            [DroppedWord("--hostside-norm", "--fused-preprocessing normalizes on the device")],
        ),
        (
            "--log-freq 20",
            [DroppedWord("--log-freq 20", "the length is in epochs; use --logs-per-epoch")],
        ),
        (
            "--gc-profile NO_PROFILE --profile",
            [DroppedWord("--gc-profile NO_PROFILE", "--profile sets this")],
        ),
        (
            "--poly-lr-decay-steps 5",
            [DroppedWord("--poly-lr-decay-steps 5", "the polynomial schedule ends with the run")],
        ),
        (
            "--pipeline --pipeline-splits b1 --pipeline-schedule Grouped",
            [DroppedWord("--pipeline-schedule Grouped", "stages on one device run in turn")],
        ),
        (
            "--distributed",
            [DroppedWord("--distributed", "TF_CONFIG does not list other workers")],
        ),
        (
            "--on-demand",
            [DroppedWord("--on-demand", "a device is acquired when it is first used")],
        ),
    ],
)
def test_dropped_arguments_are_reported_as_typed(line: str, dropped: list[DroppedWord]) -> None:
    assert read("tensorflow", line).dropped == dropped


def test_a_pipeline_on_one_device_is_sequential() -> None:
    assert option_values(
        "tensorflow", "--pipeline --pipeline-splits b1 b2 --enable-recomputation"
    ) == {
        "pipeline_splits": ("b1", "b2"),
        "enable_recompute": True,
        "shards": 1,
        "pipeline_schedule": "sequential",
    }


def test_every_argument_of_a_combined_value_is_reported() -> None:
    result = read("tensorflow", "--model resnext --model-size 101 --lr-schedule stepped")

    assert [(word.word, word.mapped_to) for word in result.mapped] == [
        ("--model resnext", "--model resnext101"),
        ("--model-size 101", "--model resnext101"),
        ("--lr-schedule stepped", "--lr-schedule step"),
    ]
