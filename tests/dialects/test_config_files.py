"""Configuration files in the format of the applications."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.dialect_words import interpret_command, option_values, run

from convoy.config.named_configs import read_named_config
from convoy.config.schema import DroppedWord, Setting, setting_values
from convoy.dialects import DIALECTS, find_in_other_dialects
from convoy.errors import ConfigError

Write = Callable[[str], str]

TENSORFLOW = """
# Several configurations, each built on another.
resnet50_base: &base
  model: resnet
  model_size: 50
  dataset: imagenet
  batch_norm: True
  BN_decay: 0.9
  precision: 16.32
  optimiser: momentum
  momentum: 0.9
  label_smoothing: 0.1
  lr_schedule: cosine
  stochastic_rounding: OFF
  hostside_norm: False
  generated_data: False
  dataset_benchmark: False
  validation: False

pipelined: &pipelined
  <<: *base
  shards: 2
  pipeline: True
  pipeline_splits: [b3/0/relu]
  pipeline_schedule: Grouped
  available_memory_proportion: [0.6, 0.5, 0.4, 0.3]
  gradient_accumulation_count: 8
  batch_size: 16
  replicas: 4

stepped:
  <<: *pipelined
  lr-schedule: stepped
  learning-rate-schedule: 0.5,0.75
  learning_rate_decay: 0.2
  validation: True
  weight_avg_N: [5]

efficientnet:
  <<: *base
  model: efficientnet
  model_size: 4
  lr_schedule: exponential
  proxy_recompute: False
"""

BASE = (
    "--model resnet --model-size 50 --dataset imagenet --batch-norm --BN-decay 0.9 "
    "--precision 16.32 --optimiser momentum --momentum 0.9 --label-smoothing 0.1 "
    "--lr-schedule cosine --stochastic-rounding OFF --no-validation"
)
PIPELINED = (
    f"{BASE} --shards 2 --pipeline --pipeline-splits b3/0/relu --pipeline-schedule Grouped "
    "--available-memory-proportion 0.6 0.5 0.4 0.3 --gradient-accumulation-count 8 "
    "--batch-size 16 --replicas 4"
)

PYTORCH = """
common: &common
  data: imagenet
  precision: 16.16
  epoch: 100
  lr: 0.05
  use_bbox_info: True
  enable_stochastic_rounding: False
  normalization_location: ipu
  lr_epoch_decay: [30, 60]

resnet50:
  <<: *common
  model: resnet50
  micro-batch-size: 16
  gradient-accumulation: 32
  recompute_mode: manual
  recompute_checkpoints: ["layer3/0/conv1", add_3]
  available_memory_proportion: [0.1]
  offload_optimizer: False
  weight_avg_N: 5
  seed: 0

generated:
  <<: *common
  data: generated
  iterations: 7
  batch_size: 4
"""

COMMON = (
    "--data imagenet --precision 16.16 --epoch 100 --lr 0.05 --use-bbox-info "
    "--no-enable-stochastic-rounding --normalization-location ipu --lr-epoch-decay 30 60"
)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write `configs.yml` into the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "configs.yml").write_text(text)
        return "configs.yml"

    return write


def values(dialect: str, name: str | None, path: str) -> dict[str, Any]:
    settings, problems = read_named_config(name, path, DIALECTS[dialect]())
    assert problems == []
    return setting_values(settings)


def problems(dialect: str, path: str) -> list[str]:
    current = DIALECTS[dialect]()
    find_elsewhere = partial(find_in_other_dialects, current=current)
    _, problems = read_named_config(None, path, current, find_elsewhere)
    return [str(problem) for problem in problems]


@pytest.mark.parametrize(
    ("dialect", "text", "name", "line"),
    [
        ("tensorflow", TENSORFLOW, "resnet50_base", BASE),
        ("tensorflow", TENSORFLOW, "pipelined", PIPELINED),
        (
            "tensorflow",
            TENSORFLOW,
            "stepped",
            f"{PIPELINED} --no-validation=false --lr-schedule stepped "
            "--learning-rate-schedule 0.5,0.75 --learning-rate-decay 0.2 --weight-avg-N 5",
        ),
        (
            "tensorflow",
            TENSORFLOW,
            "efficientnet",
            f"{BASE} --model efficientnet --model-size 4 --lr-schedule exponential "
            "--no-proxy-recompute",
        ),
        ("pytorch", PYTORCH, "common", COMMON),
        (
            "pytorch",
            PYTORCH,
            "resnet50",
            f"{COMMON} --model resnet50 --micro-batch-size 16 --gradient-accumulation 32 "
            "--recompute-mode manual --recompute-checkpoints layer3/0/conv1 add_3 "
            "--available-memory-proportion 0.1 --no-offload-optimizer --weight-avg-N 5 --seed 0",
        ),
        (
            "pytorch",
            PYTORCH,
            "generated",
            f"{COMMON} --data generated --iterations 7 --batch-size 4",
        ),
    ],
    ids=lambda text: text if len(text) < 20 else "",
)
def test_a_file_sets_the_same_values_as_arguments(
    write: Write, dialect: str, text: str, name: str, line: str
) -> None:
    assert values(dialect, name, write(text)) == option_values(dialect, line)


def test_a_combined_value_keeps_its_line(write: Write) -> None:
    settings, _ = read_named_config("pipelined", write(TENSORFLOW), DIALECTS["tensorflow"]())

    assert settings["model"] == Setting("resnet50", "configs.yml, line 4")
    assert settings["batchnorm_momentum"] == Setting(0.1, "configs.yml, line 8")
    assert settings["available_memory_proportion"] == Setting((0.6, 0.4), "configs.yml, line 26")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("validation: False", {"validation_mode": "none"}),
        ("validation: True", {"validation_mode": "after"}),
        ("no_validation: True", {"validation_mode": "none"}),
        ("no-validation: True", {"validation_mode": "none"}),
        ("no_validation: False", {"validation_mode": "after"}),
        ("proxy_recompute: False", {"proxy_recompute": False}),
        ("no_proxy_recompute: True", {"proxy_recompute": False}),
        ("hostside_norm: False", {}),
        ("hostside_norm: True", {"normalization_location": "host"}),
        ("synthetic_data: False", {}),
        ("batch_norm: False", {}),
        ("pipeline: False", {}),
        ("standard_imagenet: True", {}),
        ("precision: 16.16", {"precision": "16.16"}),
        ("precision: '32.32'", {"precision": "32.32"}),
        ("select_ipu: AUTO", {"select_devices": ()}),
        ("select_ipu: 3", {"select_devices": (3,)}),
        ("learning_rate_schedule: [0.5, 0.75]", {"lr_share_decay": (0.5, 0.75)}),
        (
            "pipeline_splits: b3/0/relu\nshards: 1\npipeline: true\n",
            {"pipeline_splits": ("b3/0/relu",), "shards": 1, "pipeline_schedule": "sequential"},
        ),
        ("base_learning_rate: 0", {}),
        (
            "weight_avg_exp: 0.97",
            {"weight_avg_strategy": "exponential", "weight_avg_exp_decay": 0.97},
        ),
        ("variable_filter: []", {"variable_filter": ()}),
        ("seed: 1", {"seed": 1}),
    ],
)
def test_a_key_is_interpreted_as_in_its_program(
    write: Write, text: str, expected: dict[str, Any]
) -> None:
    assert values("tensorflow", None, write(text)) == expected


@pytest.mark.parametrize(
    ("dialect", "text", "message"),
    [
        (
            "tensorflow",
            "seed: 1\nmodle_size: 50",
            "configs.yml, line 2: modle_size is not an option; did you mean model_size, ",
        ),
        (
            "pytorch",
            "seed: 1\n\nmicro_batchsize: 4",
            "configs.yml, line 3: micro_batchsize is not an option; did you mean micro_batch_",
        ),
        (
            "tensorflow",
            "lr: 0.1",
            "configs.yml, line 1: lr is an option of the convoy dialect; use "
            "--abs-learning-rate; --dialect sets the dialect of a file",
        ),
        (
            "pytorch",
            "seed: 1\nBN_decay: 0.97",
            "configs.yml, line 2: BN_decay is an option of the tensorflow dialect; use "
            "`--batchnorm-momentum`: 1 − decay, so 0.97 is 0.03; 0 means 0.97; "
            "--dialect sets the dialect of a file",
        ),
        (
            "pytorch",
            "num_ipus: 4",
            "configs.yml, line 1: num_ipus is an option of the popart dialect; use "
            "`--shards` × replicas: the total number of devices; "
            "--dialect sets the dialect of a file",
        ),
        (
            "tensorflow",
            "seed: 1\nshards: two",
            "configs.yml, line 2: shards expects an integer, got 'two'",
        ),
        (
            "tensorflow",
            "BN_decay: high",
            "configs.yml, line 1: BN_decay expects a number, got 'high'",
        ),
        (
            "tensorflow",
            "pipeline: 2",
            "configs.yml, line 1: pipeline expects true or false, got 2",
        ),
        (
            "tensorflow",
            "optimiser: {a: 1}",
            "configs.yml, line 1: optimiser expects a value, got a mapping",
        ),
        (
            "tensorflow",
            "optimiser: adam",
            "configs.yml, line 1: optimiser must be SGD, momentum, RMSprop or LARS, got 'adam'",
        ),
        (
            "pytorch",
            "epoch: long",
            "configs.yml, line 1: epoch expects a number, got 'long'",
        ),
        (
            "pytorch",
            "micro-batch-size: 0",
            "configs.yml, line 1: micro-batch-size must be at least 1, got 0",
        ),
        (
            "tensorflow",
            "batch_size: 0",
            "configs.yml, line 1: micro_batch_size must be at least 1, got 0",
        ),
        ("tensorflow", "shards: 2", "configs.yml: --shards 2 needs --pipeline"),
        (
            "tensorflow",
            "batch_size: 2\nmicro_batch_size: 2",
            "configs.yml: --batch-size and --micro-batch-size set the same option; use only one",
        ),
    ],
)
def test_each_problem_is_reported_once_with_its_location(
    write: Write, dialect: str, text: str, message: str
) -> None:
    (problem,) = problems(dialect, write(text))

    assert problem.startswith(message)


def test_all_problems_are_reported_at_once(write: Write) -> None:
    path = write("shards: two\nmodle: x\nprecision: 16\nbatch_size: 1\nmicro_batch_size: 1\n")

    assert [line.split(":")[0] for line in problems("tensorflow", path)] == [
        "configs.yml, line 1",
        "configs.yml, line 2",
        "configs.yml, line 3",
        "configs.yml",
    ]


def test_keys_without_effect_are_reported_with_their_lines(write: Write) -> None:
    write(
        "custom:\n  model_size: 50\n  standard_imagenet: True\n  on_demand: False\n"
        "  base_learning_rate: 0\n  syncs_per_epoch: 1\n  restore_path: RUN\n"
    )

    assert interpret_command("python3 train.py --config custom").dropped == [
        DroppedWord(
            "configs.yml, line 3: standard_imagenet",
            "samples are always shuffled with the seed",
        ),
        DroppedWord(
            "configs.yml, line 6: syncs_per_epoch",
            "replicas always have identical weights, which convoy checks",
        ),
        DroppedWord("configs.yml, line 5", "an exponent of 0 selects the default"),
        DroppedWord("configs.yml, line 7", "the command line sets the run or checkpoint"),
    ]


def test_arguments_override_a_file_beside_the_program(write: Write) -> None:
    write(TENSORFLOW)
    result = run("python3 train.py --config pipelined --model-size 101 --replicas 2").network

    assert result.model == "resnet101"


def test_the_folder_of_a_file_overrides_that_of_the_environment(write: Write) -> None:
    write("custom:\n  validation: False\n  data_dir: ./datasets\n")
    result = run("python3 train.py --config custom", {"DATA_DIR": "/sets/cifar-100-binary"})

    assert (result.data.data, result.data.data_dir) == ("imagenet", "./datasets")


def test_the_keys_of_a_file_identify_its_dialect(write: Write) -> None:
    write(PYTORCH)

    # The default momentum of the PyTorch program is 0.
    assert run("python3 train.py --config resnet50").optimizer.momentum == 0.0


@pytest.mark.parametrize(("words", "replicas"), [("", 8), ("--shards 1", 4), ("--shards 4", 16)])
def test_validation_counts_the_stages_of_a_file_once(
    write: Write, words: str, replicas: int
) -> None:
    write(TENSORFLOW)
    result = run(f"python3 validation.py --config pipelined {words}")

    # 4 replicas × stages; the file sets 2 stages.
    assert (result.batch.replicas, result.pipeline.shards) == (replicas, 1)


def test_an_unknown_name_is_refused_with_near_names(write: Write) -> None:
    with pytest.raises(
        ConfigError, match="has no configuration 'piplined'; did you mean pipelined"
    ):
        read_named_config("piplined", write(TENSORFLOW), DIALECTS["tensorflow"]())
