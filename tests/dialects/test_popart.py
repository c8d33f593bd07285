"""The PopART program: totals over all replicas, and its benchmark."""

import pytest
from spoken_words import config, problems, rates, read, run, said

from convoy.config.settings import Dropped
from convoy.plan.plan import plan_run


@pytest.mark.parametrize(
    ("line", "micro", "replicas"),
    [
        ("", 32, 1),
        ("--batch-size 48 --replication-factor 4", 12, 4),  # 48 ÷ 4
        ("--replication-factor 8", 4, 8),  # the usual 32 ÷ 8
        ("--batch-size 8 --replication-factor 8 --gradient-accumulation-factor 4", 1, 8),
    ],
)
def test_a_batch_is_shared_by_all_replicas(line: str, micro: int, replicas: int) -> None:
    batch = config("popart", line).batch

    assert (batch.micro_batch_size, batch.replicas) == (micro, replicas)


def test_samples_of_an_update_are_the_batch_times_what_is_accumulated() -> None:
    found = config("popart", "--batch-size 48 --replication-factor 4 --gradient-acc 8")

    assert plan_run(found).batch.samples_per_update == 384  # 48 × 8


@pytest.mark.parametrize(
    ("line", "stages", "order"),
    [
        ("--num-ipus 8 --replication-factor 4 --pipeline", 2, "interleaved"),  # 8 ÷ 4
        ("--num-ipus 8 --replication-factor 4", 2, "sequential"),
        ("--num-ipus 4 --replication-factor 4", 1, "interleaved"),
        ("--num-ipus 2 --pipeline", 2, "interleaved"),
        ("--shards 2 --pipeline", 2, "interleaved"),
        ("--shards 2 --num-ipus 4 --replication-factor 2 --pipeline", 2, "interleaved"),
    ],
)
def test_devices_of_one_replica_are_its_stages(line: str, stages: int, order: str) -> None:
    pipeline = config("popart", line).pipeline

    assert (pipeline.shards, pipeline.pipeline_schedule) == (stages, order)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "--batch-size 30 --replication-factor 4",
            ["--batch-size 30 is no multiple of --replication-factor 4"],
        ),
        ("--replication-factor 5", ["--batch-size 32 is no multiple of --replication-factor 5"]),
        (
            "--num-ipus 6 --replication-factor 4",
            ["--num-ipus 6 is no multiple of --replication-factor 4"],
        ),
        (
            "--num-ipus 6 --batch-size 30 --replication-factor 4",
            [
                "--num-ipus 6 is no multiple of --replication-factor 4",
                "--batch-size 30 is no multiple of --replication-factor 4",
            ],
        ),
        (
            "--num-ipus 8 --replication-factor 2 --shards 2",
            ["--num-ipus 8 gives each of 2 replicas 4, but --shards asks for 2"],
        ),
        (
            "--num-ipus 4 --replication-factor 0",
            ["--replication-factor must be at least 1, got 0"],
        ),
    ],
)
def test_numbers_that_do_not_divide_are_refused(line: str, told: list[str]) -> None:
    assert problems("popart", line) == told


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
        ("--log_dir_string mine", {"name_suffix": "mine"}),
        ("--steps 5", {"updates": 1250}),  # 5 × 250
        ("--steps 5 --batches-per-step 10", {"updates": 50, "device_iterations": 10}),
        ("--steps-per-log 2 --batches-per-step 10", {"log_freq": 20, "device_iterations": 10}),
    ],
)
def test_a_value_is_read_in_its_own_way(line: str, values: dict[str, object]) -> None:
    always = ("micro_batch_size", "lr")
    found = {name: one for name, one in said("popart", line).items() if name not in always}

    assert found == values


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("--size 51", "--size is one of 8, 14, 18, 20, 32, 34, 44, 50, 56, 101, 110, 152 or x50"),
        ("--dataset MNIST", "--dataset is one of IMAGENET, CIFAR-10, got 'MNIST'"),
        ("--precision 16.16", "--precision is 16 or 32, got '16.16'"),
        ("--norm-type LAYER", "--norm-type cannot be 'layer'"),
        ("--mode test", "--mode is train, eval or infer, got 'test'"),
        ("--base-learning-rate -6.5", "--base-learning-rate expects a whole number, got '-6.5'"),
    ],
)
def test_a_wrong_value_is_told_with_what_there_is(line: str, told: str) -> None:
    (problem,) = problems("popart", line)

    assert problem.startswith(told)


@pytest.mark.parametrize("line", ["--pipeline", "--pipeline --shards 1"])
def test_a_pipeline_of_one_stage_is_told(line: str) -> None:
    assert read("popart", line).dropped == [Dropped("--pipeline", "there is one stage")]


@pytest.mark.parametrize(
    "line",
    ["--dataset IMAGENET --use-generated-data", "--use-generated-data --dataset IMAGENET"],
)
def test_made_data_wins_over_a_data_set_in_any_order(line: str) -> None:
    found = read("popart", line)

    assert found.given["data"].value == "generated"
    assert found.dropped == [Dropped("--dataset IMAGENET", "--use-generated-data makes its own")]


def test_what_it_takes_for_granted() -> None:
    found = config("popart", "")

    assert (found.network.model, found.data.data) == ("resnet20", "cifar10")
    assert (found.network.norm_type, found.network.norm_num_groups) == ("group", 16)
    assert (found.network.resnet_version, found.network.shortcut_type) == ("v1", "B")
    assert (found.network.stem, found.network.input_image_padding) == ("small", True)
    assert found.network.enable_fast_groupnorm and not found.network.zero_init_last_norm
    assert (found.length.epoch, found.batch.device_iterations) == (30.0, 250)
    assert (found.optimizer.momentum, found.optimizer.weight_decay) == (0.0, 0.0)
    assert found.optimizer.weight_decay_spares == "nothing"
    assert (found.precision.precision, found.loss.loss_scaling) == ("16.16", 1.0)
    assert found.precision.enable_stochastic_rounding
    assert (found.network.batchnorm_momentum, found.network.norm_eps) == (0.1, 1e-5)
    assert (found.validation.validation_mode, found.validation.validation_frequency) == (
        "during",
        1,
    )
    assert (found.report.log_dir, found.report.log_freq) == ("logs", 250)


def test_large_images_have_the_large_stem() -> None:
    assert config("popart", "--dataset IMAGENET --size 20").network.stem == "large"


def test_rounding_by_chance_needs_16_bits() -> None:
    assert not config("popart", "--precision 32").precision.enable_stochastic_rounding


def test_its_benchmark_takes_other_things_for_granted() -> None:
    found = config("popart benchmark", "")

    assert (found.network.model, found.data.data) == ("resnet18", "synthetic")
    assert (found.network.norm_type, found.network.norm_num_groups) == ("batch", 32)
    assert (found.data.image_size, found.data.num_classes) == (224, 10)
    assert (found.batch.micro_batch_size, found.batch.device_iterations) == (1, 1000)
    assert (found.length.updates, found.length.epoch) == (5000, None)  # 5 × 1000
    assert found.report.log_freq == 1000
    assert found.validation.validation_mode == "none"


def test_the_words_of_its_benchmark_go_over_what_it_takes_for_granted() -> None:
    found = config("popart benchmark", "--steps 3 --batches-per-step 20 --norm-type GROUP")

    assert (found.length.updates, found.report.log_freq) == (60, 20)
    assert found.network.norm_type == "group"
    assert rates("popart benchmark", "--batch-size 8").initial == 0.125  # 8 × 2⁻⁶


def test_the_name_of_the_program_chooses_the_benchmark() -> None:
    assert run("python3 resnet_synthetic_benchmark.py").network.model == "resnet18"
    assert run("python3 resnet_main.py").network.model == "resnet20"


@pytest.mark.parametrize("mode", ["eval", "infer"])
def test_a_benchmark_without_training_is_told_how_it_is_done_here(mode: str) -> None:
    assert read("popart benchmark", f"--mode {mode}").dropped == [
        Dropped(f"--mode {mode}", "`convoy validate --random-weights` does that")
    ]
