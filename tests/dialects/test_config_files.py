"""Files of named configurations as users of the applications have them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from spoken_words import meant, run, said

from convoy.config.named import read_named
from convoy.config.settings import Dropped, Setting, values_of
from convoy.dialects import DIALECTS, elsewhere
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

made:
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
    """Writes `configs.yml` into the working folder."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "configs.yml").write_text(text)
        return "configs.yml"

    return write


def values(dialect: str, name: str | None, path: str) -> dict[str, Any]:
    settings, problems = read_named(name, path, DIALECTS[dialect]())
    assert problems == []
    return values_of(settings)


def problems(dialect: str, path: str) -> list[str]:
    spoken = DIALECTS[dialect]()
    found = read_named(None, path, spoken, partial(elsewhere, here=spoken))[1]
    return [str(problem) for problem in found]


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
            "made",
            f"{COMMON} --data generated --iterations 7 --batch-size 4",
        ),
    ],
    ids=lambda one: one if len(one) < 20 else "",
)
def test_a_file_says_the_same_as_words(
    write: Write, dialect: str, text: str, name: str, line: str
) -> None:
    found = values(dialect, name, write(text))

    assert found == said(dialect, line)


def test_a_joined_value_keeps_the_line_where_it_was_written(write: Write) -> None:
    settings, _ = read_named("pipelined", write(TENSORFLOW), DIALECTS["tensorflow"]())

    assert settings["model"] == Setting("resnet50", "configs.yml, line 4")
    assert settings["batchnorm_momentum"] == Setting(0.1, "configs.yml, line 8")
    assert settings["available_memory_proportion"] == Setting((0.6, 0.4), "configs.yml, line 26")


@pytest.mark.parametrize(
    ("text", "found"),
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
def test_a_key_is_read_as_that_program_read_it(
    write: Write, text: str, found: dict[str, Any]
) -> None:
    assert values("tensorflow", None, write(text)) == found


@pytest.mark.parametrize(
    ("dialect", "text", "told"),
    [
        (
            "tensorflow",
            "seed: 1\nmodle_size: 50",
            "configs.yml, line 2: modle_size is no option; did you mean model_size, ",
        ),
        (
            "pytorch",
            "seed: 1\n\nmicro_batchsize: 4",
            "configs.yml, line 3: micro_batchsize is no option; did you mean micro_batch_size, ",
        ),
        (
            "tensorflow",
            "lr: 0.1",
            "configs.yml, line 1: lr is an option of the convoy dialect; here it is "
            "--abs-learning-rate; --dialect says in which one a file is written",
        ),
        (
            "pytorch",
            "seed: 1\nBN_decay: 0.97",
            "configs.yml, line 2: BN_decay is an option of the tensorflow dialect; here it is "
            "`--batchnorm-momentum`: 1 − the share kept, so 0.97 is 0.03; 0 means 0.97; "
            "--dialect says in which one a file is written",
        ),
        (
            "pytorch",
            "num_ipus: 4",
            "configs.yml, line 1: num_ipus is an option of the popart dialect; here it is "
            "`--shards` × replicas: all devices together; --dialect says in which one a file "
            "is written",
        ),
        (
            "tensorflow",
            "seed: 1\nshards: two",
            "configs.yml, line 2: shards expects a whole number, got 'two'",
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
            "configs.yml, line 1: optimiser expects a value, got several with names",
        ),
        (
            "tensorflow",
            "optimiser: adam",
            "configs.yml, line 1: optimiser is SGD, momentum, RMSprop or LARS, got 'adam'",
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
            "configs.yml: --batch-size and --micro-batch-size say the same; give one",
        ),
    ],
)
def test_what_is_wrong_is_told_once_with_its_place(
    write: Write, dialect: str, text: str, told: str
) -> None:
    (problem,) = problems(dialect, write(text))

    assert problem.startswith(told)


def test_all_that_is_wrong_is_told_at_once(write: Write) -> None:
    path = write("shards: two\nmodle: x\nprecision: 16\nbatch_size: 1\nmicro_batch_size: 1\n")

    assert [one.split(":")[0] for one in problems("tensorflow", path)] == [
        "configs.yml, line 1",
        "configs.yml, line 2",
        "configs.yml, line 3",
        "configs.yml",
    ]


def test_keys_that_nothing_comes_of_are_told_with_their_lines(write: Write) -> None:
    write(
        "mine:\n  model_size: 50\n  standard_imagenet: True\n  on_demand: False\n"
        "  base_learning_rate: 0\n  syncs_per_epoch: 1\n  restore_path: RUN\n"
    )

    assert meant("python3 train.py --config mine").dropped == [
        Dropped(
            "configs.yml, line 3: standard_imagenet",
            "samples always come in a plain seeded order",
        ),
        Dropped(
            "configs.yml, line 6: syncs_per_epoch",
            "all replicas hold the same bits, and that is checked",
        ),
        Dropped("configs.yml, line 5", "an exponent of 0 counts as unsaid"),
        Dropped("configs.yml, line 7", "the command itself says what it works on"),
    ]


def test_words_go_over_a_file_beside_the_program(write: Write) -> None:
    write(TENSORFLOW)
    found = run("python3 train.py --config pipelined --model-size 101 --replicas 2").network

    assert found.model == "resnet101"


def test_the_folder_of_a_file_wins_over_that_of_the_environment(write: Write) -> None:
    write("mine:\n  validation: False\n  data_dir: ./datasets\n")
    found = run("python3 train.py --config mine", {"DATA_DIR": "/sets/cifar-100-binary"})

    assert (found.data.data, found.data.data_dir) == ("imagenet", "./datasets")


def test_the_keys_of_a_file_tell_its_dialect(write: Write) -> None:
    write(PYTORCH)

    assert run("python3 train.py --config resnet50").optimizer.momentum == 0.0  # as PyTorch has it


@pytest.mark.parametrize(("words", "replicas"), [("", 8), ("--shards 1", 4), ("--shards 4", 16)])
def test_validation_counts_the_stages_of_a_file_once(
    write: Write, words: str, replicas: int
) -> None:
    write(TENSORFLOW)
    found = run(f"python3 validation.py --config pipelined {words}")

    # 4 replicas of so many stages each; the file says 2.
    assert (found.batch.replicas, found.pipeline.shards) == (replicas, 1)


def test_a_name_that_no_file_has_is_refused_with_near_ones(write: Write) -> None:
    with pytest.raises(
        ConfigError, match="has no configuration 'piplined'; did you mean pipelined"
    ):
        read_named("piplined", write(TENSORFLOW), DIALECTS["tensorflow"]())
