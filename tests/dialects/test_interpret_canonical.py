"""A command and the canonical one it becomes set every option alike."""

import shlex
from typing import Any

import pytest
from golden.mixtures import POPART, PYTORCH, TENSORFLOW, mixtures
from hypothesis import given, settings

from convoy.bench.benchmarks_yml import Benchmark, read_benchmarks, variants
from convoy.bench.selection import shipped_files
from convoy.cli.args import add_config, read_line
from convoy.config.named import shipped
from convoy.config.resolve import resolve
from convoy.config.settings import Setting, values_of
from convoy.dialects.command import split_command
from convoy.dialects.interpret import flags_of, interpret, words_of_run
from convoy.errors import ConfigError


def words_of(line: str, dialect: str | None = None) -> tuple[list[str], dict[str, Any]]:
    """The canonical words of a command, and the values it means."""
    spoken = interpret(split_command(shlex.split(line), {}), {}, dialect)
    resolved = resolve(spoken.asked)
    return words_of_run(spoken.config, resolved, {}), values_of(resolved.settings)


def meaning_of(words: list[str]) -> dict[str, Any]:
    return values_of(resolve(read_line("train", words, "", add_config).asked()).settings)


def assert_same(line: str, dialect: str | None = None) -> None:
    words, values = words_of(line, dialect)

    assert meaning_of(words) == values


OFTEN = settings(max_examples=200, deadline=None)
SOMETIMES = settings(max_examples=60, deadline=None)


@OFTEN
@given(mixtures(TENSORFLOW, "train.py", "mk2_resnet50_gn_16ipus", "mk2_resnet8_test"))
def test_any_mixture_of_tensorflow_words_keeps_its_meaning(line: str) -> None:
    assert_same(line, "tensorflow")
    assert_same(line.replace("train.py", "validation.py"), "tensorflow")


# These have stages already; others batch norm that replicas share, and rare checkpoints.
BESIDE_STAGES = [row for row in TENSORFLOW if not any("--shards" in one for one in row)]
IN_THE_WAY = {"--batch-norm", "--replicas 2", "--ckpts-per-epoch 3"}
BESIDE_SPANS = [row for row in BESIDE_STAGES if not IN_THE_WAY & set(row)]
# A size alone is the size of the configuration's family, and there is no EfficientNet B50.
BESIDE_EFFICIENTNET = [
    [words for words in row if words != "--dataset imagenet --model-size 50"]
    for row in BESIDE_SPANS
]


@SOMETIMES
@given(
    mixtures(BESIDE_STAGES, "train.py", "mk2_resnet50_bn_64ipus", "mk1_resnet50_16ipus")
    | mixtures(BESIDE_SPANS, "train.py", "mk2_resnet50_mlperf_pod16", "resnet50_mlperf_pod16_lars")
    | mixtures(BESIDE_EFFICIENTNET, "train.py", "efficientnet_b4_g1_with_batch_norm_16ipus")
)
def test_words_beside_a_configuration_of_many_values_keep_their_meaning(line: str) -> None:
    assert_same(line, "tensorflow")
    assert_same(line.replace("train.py", "validation.py"), "tensorflow")


@SOMETIMES
@given(
    mixtures(PYTORCH, "train.py", "resnet50", "mobilenet-v3-small", "efficientnet-b4-g1-gn-pod16")
)
def test_any_mixture_of_pytorch_words_keeps_its_meaning(line: str) -> None:
    assert_same(line, "pytorch")


@SOMETIMES
@given(mixtures(POPART, "resnet_main.py"))
def test_any_mixture_of_popart_words_keeps_its_meaning(line: str) -> None:
    assert_same(line)


@pytest.mark.parametrize("config", shipped())
def test_every_shipped_configuration_keeps_its_meaning(config: str) -> None:
    infers = config.startswith("inference/")
    program = "run_benchmark.py" if infers else "train.py"

    assert_same(f"python3 {program} --config {config.removeprefix('inference/')}")


BENCHMARKS = [one for path in shipped_files() for one in read_benchmarks(path).benchmarks.values()]
# What there is to say of these: tests/cli/test_run_benchmarks.py.
PROBLEMATIC = ("serving", "triton", "g16_validation_real_pod16_conv")


@pytest.mark.parametrize("benchmark", BENCHMARKS, ids=lambda one: one.name)
def test_every_variant_of_a_benchmark_keeps_its_meaning(benchmark: Benchmark) -> None:
    if any(word in benchmark.name for word in PROBLEMATIC):
        with pytest.raises(ConfigError):
            words_of(shlex.join(variants(benchmark, {})[0].words))
        return
    for variant in variants(benchmark, {}):
        words, values = words_of(shlex.join(variant.words))

        assert meaning_of(words) == values


def test_values_of_each_stage_keep_their_meaning() -> None:
    line = "python3 train.py --dataset imagenet --shards 2 --pipeline"

    assert_same(f"{line} --available-memory-proportion 0.1 0.2 0.3 0.4")


def test_what_network_and_data_bring_is_not_taken_for_the_usual() -> None:
    # Without a word our CIFAR has micro-batches of 128, and ResNet-50 norms of 32 groups.
    popart, _ = words_of("python resnet_main.py --size 50")
    tensorflow, _ = words_of("python train.py --dataset cifar-10 --no-validation")

    assert "--micro-batch-size 32" in " ".join(popart)
    assert "--norm-num-groups 16" in " ".join(popart)
    assert "--micro-batch-size 32" in " ".join(tensorflow)


def test_only_what_a_configuration_does_not_say_is_said() -> None:
    words, _ = words_of("python3 train.py --config resnet50 --epoch 7 --lr 2")

    assert words[:4] == ["--config", "resnet50", "--epoch", "7"]
    assert "--lr" not in words


def test_to_unset_an_option_its_rival_is_said() -> None:
    small = "python3 train.py --config mk2_resnet8_test"
    rated, _ = words_of(f"{small} --abs-learning-rate 0.1")
    counted, _ = words_of(f"{small} --iterations 7")

    assert " ".join(rated).startswith("--config mk2_resnet8_test --lr 0.1")
    assert " ".join(counted).startswith("--config mk2_resnet8_test --updates 7")


def test_a_rival_is_said_even_where_it_is_as_usual() -> None:
    words, values = words_of("train.py --config mk2_efficientnet_b4_g1_16ipus --lr-schedule cosine")

    assert words[:2] == ["--config", "mk2_efficientnet_b4_g1_16ipus"]
    assert "--lr-scheduler-freq 0" in " ".join(words)
    assert (values["lr_drops"], meaning_of(words)["lr_drops"]) == (None, None)


def test_what_no_word_can_unset_is_said_without_the_configuration() -> None:
    line = "python3 train.py --config mobilenet-v3-small"
    unset, values = words_of(f"{line} --recompute-mode none")

    assert (words_of(line)[1]["enable_recompute"], values["enable_recompute"]) == (True, None)
    assert "--config" not in unset
    assert meaning_of(unset) == values


def test_what_a_variable_says_is_not_said_again() -> None:
    environment = {"DATA_DIR": "/data"}
    spoken = interpret(split_command(["train.py", "--dataset", "imagenet"], {}), environment)
    resolved = resolve(spoken.asked)

    assert "--data-dir" not in words_of_run(None, resolved, environment)
    assert "--data-dir" in words_of_run(None, resolved, {})


def test_for_a_run_only_what_was_said_is_said() -> None:
    said = {"lr": Setting(0.5, "command line"), "augment": Setting(False, "command line")}

    assert flags_of(said) == ["--lr", "0.5", "--no-augment"]
