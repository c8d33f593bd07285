"""The PopART program: totals over all replicas, and its benchmark."""

import pytest
from support.dialect_words import config, option_values, problems, rates, read, run

from convoy.config.schema import DroppedWord
from convoy.planning.plan import plan_run


@pytest.mark.parametrize(
    ("line", "micro", "replicas"),
    [
        ("", 32, 1),
        ("--batch-size 48 --replication-factor 4", 12, 4),  # 48 ÷ 4
        ("--replication-factor 8", 4, 8),  # the default 32 ÷ 8
        ("--batch-size 8 --replication-factor 8 --gradient-accumulation-factor 4", 1, 8),
    ],
)
def test_the_batch_size_is_divided_by_the_number_of_replicas(
    line: str, micro: int, replicas: int
) -> None:
    batch = config("popart", line).batch

    assert (batch.micro_batch_size, batch.replicas) == (micro, replicas)


def test_samples_of_an_update_are_batch_size_times_accumulation() -> None:
    result = config("popart", "--batch-size 48 --replication-factor 4 --gradient-acc 8")

    assert plan_run(result).batch.samples_per_update == 384  # 48 × 8


@pytest.mark.parametrize(
    ("line", "stages", "schedule"),
    [
        ("--num-ipus 8 --replication-factor 4 --pipeline", 2, "interleaved"),  # 8 ÷ 4
        ("--num-ipus 8 --replication-factor 4", 2, "sequential"),
        ("--num-ipus 4 --replication-factor 4", 1, "interleaved"),
        ("--num-ipus 2 --pipeline", 2, "interleaved"),
        ("--shards 2 --pipeline", 2, "interleaved"),
        ("--shards 2 --num-ipus 4 --replication-factor 2 --pipeline", 2, "interleaved"),
    ],
)
def test_devices_of_one_replica_are_its_stages(line: str, stages: int, schedule: str) -> None:
    pipeline = config("popart", line).pipeline

    assert (pipeline.shards, pipeline.pipeline_schedule) == (stages, schedule)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--batch-size 30 --replication-factor 4",
            ["--batch-size 30 is not a multiple of --replication-factor 4"],
        ),
        ("--replication-factor 5", ["--batch-size 32 is not a multiple of --replication-factor 5"]),
        (
            "--num-ipus 6 --replication-factor 4",
            ["--num-ipus 6 is not a multiple of --replication-factor 4"],
        ),
        (
            "--num-ipus 6 --batch-size 30 --replication-factor 4",
            [
                "--num-ipus 6 is not a multiple of --replication-factor 4",
                "--batch-size 30 is not a multiple of --replication-factor 4",
            ],
        ),
        (
            "--num-ipus 8 --replication-factor 2 --shards 2",
            ["--num-ipus 8 gives each of 2 replicas 4, but --shards is 2"],
        ),
        (
            "--num-ipus 4 --replication-factor 0",
            ["--replication-factor must be at least 1, got 0"],
        ),
    ],
)
def test_numbers_that_do_not_divide_are_refused(line: str, message: list[str]) -> None:
    assert problems("popart", line) == message


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("--size 50", {"model": "resnet50"}),
        ("--size x50", {"model": "resnext50"}),
        ("--size X50", {"model": "resnext50"}),
        ("--dataset IMAGENET", {"data": "imagenet"}),
        ("--dataset cifar-10", {"data": "cifar10"}),
        ("--norm-type NONE", {"norm_type": "none"}),
        ("--precision 16", {"precision": "16.16"}),
        ("--precision 32", {"precision": "32.32"}),
        ("--no-prng", {"enable_stochastic_rounding": False}),
        ("--simulation", {"device": "cpu"}),
        ("--no-validation", {"validation_mode": "none"}),
        ("--log_dir_string custom", {"name_suffix": "custom"}),
        ("--steps 5", {"updates": 1250}),  # 5 × 250
        ("--steps 5 --batches-per-step 10", {"updates": 50, "device_iterations": 10}),
        ("--steps-per-log 2 --batches-per-step 10", {"log_freq": 20, "device_iterations": 10}),
    ],
)
def test_values_are_parsed_as_in_the_program(line: str, values: dict[str, object]) -> None:
    always_set = ("micro_batch_size", "lr")
    result = {
        name: value
        for name, value in option_values("popart", line).items()
        if name not in always_set
    }

    assert result == values


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--size 51", "--size must be one of 8, 14, 18, 20, 32, 34, 44, 50, 56, 101, 110, "),
        ("--dataset MNIST", "--dataset must be one of IMAGENET, CIFAR-10, got 'MNIST'"),
        ("--precision 16.16", "--precision must be 16 or 32, got '16.16'"),
        ("--norm-type LAYER", "--norm-type cannot be 'layer'"),
        ("--mode test", "--mode must be train, eval or infer, got 'test'"),
        ("--base-learning-rate -6.5", "--base-learning-rate expects an integer, got '-6.5'"),
    ],
)
def test_an_invalid_value_is_reported_with_the_known_ones(line: str, message: str) -> None:
    (problem,) = problems("popart", line)

    assert problem.startswith(message)


@pytest.mark.parametrize("line", ["--pipeline", "--pipeline --shards 1"])
def test_a_pipeline_of_one_stage_is_reported(line: str) -> None:
    assert read("popart", line).dropped == [DroppedWord("--pipeline", "there is only one stage")]


@pytest.mark.parametrize(
    "line",
    ["--dataset IMAGENET --use-generated-data", "--use-generated-data --dataset IMAGENET"],
)
def test_generated_data_overrides_a_dataset_in_any_order(line: str) -> None:
    result = read("popart", line)

    assert result.settings["data"].value == "generated"
    assert result.dropped == [DroppedWord("--dataset IMAGENET", "--use-generated-data replaces it")]


def test_the_defaults_are_the_documented_ones() -> None:
    result = config("popart", "")

    assert (result.network.model, result.data.data) == ("resnet20", "cifar10")
    assert (result.network.norm_type, result.network.norm_num_groups) == ("group", 16)
    assert (result.network.resnet_version, result.network.shortcut_type) == ("v1", "B")
    assert (result.network.stem, result.network.input_image_padding) == ("small", True)
    assert result.network.enable_fast_groupnorm and not result.network.zero_init_last_norm
    assert (result.length.epoch, result.batch.device_iterations) == (30.0, 250)
    assert (result.optimizer.momentum, result.optimizer.weight_decay) == (0.0, 0.0)
    assert result.optimizer.weight_decay_spares == "nothing"
    assert (result.precision.precision, result.loss.loss_scaling) == ("16.16", 1.0)
    assert result.precision.enable_stochastic_rounding
    assert (result.network.batchnorm_momentum, result.network.norm_eps) == (0.1, 1e-5)
    assert (result.validation.validation_mode, result.validation.validation_frequency) == (
        "during",
        1,
    )
    assert (result.report.log_dir, result.report.log_freq) == ("logs", 250)


def test_large_images_have_the_large_stem() -> None:
    assert config("popart", "--dataset IMAGENET --size 20").network.stem == "large"


def test_stochastic_rounding_needs_16_bits() -> None:
    assert not config("popart", "--precision 32").precision.enable_stochastic_rounding


def test_the_benchmark_has_other_defaults() -> None:
    result = config("popart benchmark", "")

    assert (result.network.model, result.data.data) == ("resnet18", "synthetic")
    assert (result.network.norm_type, result.network.norm_num_groups) == ("batch", 32)
    assert (result.data.image_size, result.data.num_classes) == (224, 10)
    assert (result.batch.micro_batch_size, result.batch.device_iterations) == (1, 1000)
    assert (result.length.updates, result.length.epoch) == (5000, None)  # 5 × 1000
    assert result.report.log_freq == 1000
    assert result.validation.validation_mode == "none"


def test_arguments_override_the_defaults_of_the_benchmark() -> None:
    result = config("popart benchmark", "--steps 3 --batches-per-step 20 --norm-type GROUP")

    assert (result.length.updates, result.report.log_freq) == (60, 20)
    assert result.network.norm_type == "group"
    assert rates("popart benchmark", "--batch-size 8").initial_lr == 0.125  # 8 × 2⁻⁶


def test_the_program_name_selects_the_benchmark() -> None:
    assert run("python3 resnet_synthetic_benchmark.py").network.model == "resnet18"
    assert run("python3 resnet_main.py").network.model == "resnet20"


@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_the_mode_of_the_benchmark_is_dropped_with_an_alternative(mode: str) -> None:
    assert read("popart benchmark", f"--mode {mode}").dropped == [
        DroppedWord(f"--mode {mode}", "`convoy validate --random-weights` does that")
    ]
