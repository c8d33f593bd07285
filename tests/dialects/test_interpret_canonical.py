"""A command and its canonical translation set every option to the same value."""

import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from support.option_mixtures import POPART, PYTORCH, TENSORFLOW, mixtures
from support.run_convoy import parse_plan_command
from support.sweeps import sweep

from convoy.bench.benchmarks_yml import Benchmark, expand_variants, read_benchmarks
from convoy.bench.selection import SHIPPED_DIR
from convoy.config.named_configs import shipped_configs
from convoy.config.resolve import resolve
from convoy.config.schema import Setting, setting_values
from convoy.dialects.command import split_command
from convoy.dialects.interpret import canonical_args, interpret, settings_to_args
from convoy.errors import ConfigError


def canonical_words(line: str, dialect: str | None = None) -> tuple[list[str], dict[str, Any]]:
    """The canonical arguments of a command, and the values it sets."""
    interpretation = interpret(split_command(shlex.split(line), {}), {}, dialect)
    resolved = resolve(interpretation.request)
    return canonical_args(interpretation.config, resolved, {}), setting_values(resolved.settings)


def resolved_values(words: list[str]) -> dict[str, Any]:
    return setting_values(resolve(parse_plan_command(words).to_request()).settings)


def assert_same_values(line: str, dialect: str | None = None) -> None:
    words, values = canonical_words(line, dialect)

    assert resolved_values(words) == values


MANY_EXAMPLES = settings(max_examples=200, deadline=None)
FEW_EXAMPLES = settings(max_examples=60, deadline=None)


@MANY_EXAMPLES
@given(mixtures(TENSORFLOW, "train.py", "mk2_resnet50_gn_16ipus", "mk2_resnet8_test"))
def test_random_tensorflow_commands_set_the_same_values(line: str) -> None:
    assert_same_values(line, "tensorflow")
    assert_same_values(line.replace("train.py", "validation.py"), "tensorflow")


# For configurations that set stages, the span of batch norm, or the checkpoint interval.
TENSORFLOW_WITHOUT_SHARDS = [
    row for row in TENSORFLOW if not any("--shards" in word for word in row)
]
CONFLICTING_WORDS = {"--batch-norm", "--replicas 2", "--ckpts-per-epoch 3"}
TENSORFLOW_FOR_BN_SPAN = [
    row for row in TENSORFLOW_WITHOUT_SHARDS if not CONFLICTING_WORDS & set(row)
]
# Without --model, --model-size 50 would select an EfficientNet B50, which does not exist.
TENSORFLOW_FOR_EFFICIENTNET = [
    [words for words in row if words != "--dataset imagenet --model-size 50"]
    for row in TENSORFLOW_FOR_BN_SPAN
]


@FEW_EXAMPLES
@given(
    mixtures(TENSORFLOW_WITHOUT_SHARDS, "train.py", "mk2_resnet50_bn_64ipus", "mk1_resnet50_16ipus")
    | mixtures(
        TENSORFLOW_FOR_BN_SPAN,
        "train.py",
        "mk2_resnet50_mlperf_pod16",
        "resnet50_mlperf_pod16_lars",
    )
    | mixtures(TENSORFLOW_FOR_EFFICIENTNET, "train.py", "efficientnet_b4_g1_with_batch_norm_16ipus")
)
def test_random_commands_with_a_large_configuration_set_the_same_values(line: str) -> None:
    assert_same_values(line, "tensorflow")
    assert_same_values(line.replace("train.py", "validation.py"), "tensorflow")


@FEW_EXAMPLES
@given(
    mixtures(PYTORCH, "train.py", "resnet50", "mobilenet-v3-small", "efficientnet-b4-g1-gn-pod16")
)
def test_random_pytorch_commands_set_the_same_values(line: str) -> None:
    assert_same_values(line, "pytorch")


@FEW_EXAMPLES
@given(mixtures(POPART, "resnet_main.py"))
def test_random_popart_commands_set_the_same_values(line: str) -> None:
    assert_same_values(line)


@sweep("config", shipped_configs())
def test_every_shipped_configuration_sets_the_same_values(config: str) -> None:
    is_inference = config.startswith("inference/")
    program = "run_benchmark.py" if is_inference else "train.py"

    assert_same_values(f"python3 {program} --config {config.removeprefix('inference/')}")


BENCHMARKS = [
    benchmark
    for path in sorted(SHIPPED_DIR.glob("*.yml"))
    for benchmark in read_benchmarks(path)[0].values()
]
# tests/cli/test_run_benchmarks.py lists these.
REFUSED_BENCHMARKS = ("serving", "triton", "g16_validation_real_pod16_conv")


@sweep("benchmark", BENCHMARKS)
def test_every_variant_of_a_benchmark_sets_the_same_values(benchmark: Benchmark) -> None:
    if any(word in benchmark.name for word in REFUSED_BENCHMARKS):
        with pytest.raises(ConfigError):
            canonical_words(shlex.join(expand_variants(benchmark, {})[0].words))
        return
    for variant in expand_variants(benchmark, {}):
        words, values = canonical_words(shlex.join(variant.words))

        assert resolved_values(words) == values


def test_values_for_each_stage_are_the_same() -> None:
    line = "python3 train.py --dataset imagenet --shards 2 --pipeline"

    assert_same_values(f"{line} --available-memory-proportion 0.1 0.2 0.3 0.4")


def test_defaults_of_network_and_data_are_not_taken_for_canonical_ones() -> None:
    # The defaults of CIFAR are micro-batches of 128, those of ResNet-50 norms of 32 groups.
    popart, _ = canonical_words("python resnet_main.py --size 50")
    tensorflow, _ = canonical_words("python train.py --dataset cifar-10 --no-validation")

    assert "--micro-batch-size 32" in " ".join(popart)
    assert "--norm-num-groups 16" in " ".join(popart)
    assert "--micro-batch-size 32" in " ".join(tensorflow)


def test_only_options_that_differ_from_the_configuration_are_written() -> None:
    words, _ = canonical_words("python3 train.py --config resnet50 --epoch 7 --lr 2")

    assert words[:4] == ["--config", "resnet50", "--epoch", "7"]
    assert "--lr" not in words


def test_the_excluding_option_unsets_an_option_of_the_configuration() -> None:
    line = "python3 train.py --config mk2_resnet8_test"
    with_rate, _ = canonical_words(f"{line} --abs-learning-rate 0.1")
    with_updates, _ = canonical_words(f"{line} --iterations 7")

    assert " ".join(with_rate).startswith("--config mk2_resnet8_test --lr 0.1")
    assert " ".join(with_updates).startswith("--config mk2_resnet8_test --updates 7")


def test_the_excluding_option_is_written_even_at_its_default() -> None:
    words, values = canonical_words(
        "train.py --config mk2_efficientnet_b4_g1_16ipus --lr-schedule cosine"
    )

    assert words[:2] == ["--config", "mk2_efficientnet_b4_g1_16ipus"]
    assert "--lr-scheduler-freq 0" in " ".join(words)
    assert (values["lr_drops"], resolved_values(words)["lr_drops"]) == (None, None)


def test_an_option_that_cannot_be_unset_is_written_without_the_configuration() -> None:
    line = "python3 train.py --config mobilenet-v3-small"
    words, values = canonical_words(f"{line} --recompute-mode none")

    assert (canonical_words(line)[1]["enable_recompute"], values["enable_recompute"]) == (
        True,
        None,
    )
    assert "--config" not in words
    assert resolved_values(words) == values


def test_a_value_from_an_environment_variable_is_not_written() -> None:
    environment = {"DATA_DIR": "/data"}
    interpretation = interpret(
        split_command(["train.py", "--dataset", "imagenet"], {}), environment
    )
    resolved = resolve(interpretation.request)

    assert "--data-dir" not in canonical_args(None, resolved, environment)
    assert "--data-dir" in canonical_args(None, resolved, {})


def test_for_a_run_only_given_options_are_written() -> None:
    given_settings = {"lr": Setting(0.5, "command line"), "augment": Setting(False, "command line")}

    assert settings_to_args(given_settings) == ["--lr", "0.5", "--no-augment"]
