"""The definitions that come with the program: how many, and what some of them say to the word."""

import re
from pathlib import Path

import pytest

from convoy.bench.benchmarks_yml import (
    Benchmark,
    Metric,
    Variant,
    placeholders,
    read_benchmarks,
    variants,
)
from convoy.bench.selection import SHIPPED, select, shipped_files

COUNTS = {"pytorch-inference": (11, 28), "pytorch-training": (7, 7), "tensorflow": (37, 148)}


def shipped(stem: str) -> dict[str, Benchmark]:
    return read_benchmarks(SHIPPED / f"{stem}.yml").benchmarks


def every() -> list[Benchmark]:
    return [one for stem in COUNTS for one in shipped(stem).values()]


def line(variant: Variant) -> str:
    return " ".join(variant.words)


@pytest.mark.parametrize("stem", COUNTS)
def test_each_file_holds_so_many_benchmarks_and_variants(stem: str) -> None:
    found = shipped(stem)
    made = [one for benchmark in found.values() for one in variants(benchmark, {})]

    assert (len(found), len(made)) == COUNTS[stem]


def test_there_are_fifty_five_in_all() -> None:
    assert [path.stem for path in shipped_files()] == list(COUNTS)
    assert len({one.name for one in every()}) == 55


def test_a_training_says_what_its_original_says() -> None:
    (only,) = variants(
        shipped("tensorflow")["tf1_efficientnet_b4_g16_train_real_pod256_conv"],
        {"DATASETS_DIR": "/data"},
    )

    assert line(only) == (
        "poprun --num-instances 128 --num-replicas 128 --num-ilds 4 --ipus-per-replica 2 "
        "python3 train.py --config efficientnet_b4_g16_64ipus --identical-replica-seeding "
        "--epochs 350 --logs-per-epoch 2 --epochs-per-ckpt 1 --no-validation --data-dir /data "
        "--wandb --eight-bit-io --seed 1 --num-io-tiles 32 --prefetch-depth 3 "
        "--log-dir ./logs/checkpoints --replicas 128 --gradient-accumulation-count 16"
    )


def test_a_sweep_says_what_its_original_says() -> None:
    swept = shipped("tensorflow")["tf1_resnet50_infer_gen_pod4"]
    last = variants(swept, {})[-1]

    assert last.name == "tf1_resnet50_infer_gen_pod4_batchsize_80_replicas_4"
    assert line(last) == (
        "mpirun --np 4 --bind-to socket python3 validation.py --model resnet --model-size 50 "
        "--dataset imagenet --micro-batch-size 80 --generated-data --repeat 10 "
        "--device-iterations 1000 --batch-norm --enable-half-partials --eight-bit-io "
        "--fused-preprocessing --num-io-tiles 64 --prefetch-depth 2"
    )
    assert swept.metrics == {
        "throughput": Metric("throughput", "throughput: *(.*?) samples/sec", "mean", 4)
    }
    assert [(one.title, one.source) for one in swept.output] == [
        ("Batch size", "batchsize"),
        ("samples/sec", "throughput"),
    ]


def test_data_stay_with_the_variable_where_it_is_not_set() -> None:
    (only,) = variants(shipped("pytorch-training")["pytorch_resnet50_train_real_pod4"], {})

    assert "--imagenet-data-path ${DATASETS_DIR}/imagenet-raw-dataset" in line(only)


def test_convergence_runs_are_given_time() -> None:
    options = '{"opt.enableMultiAccessCopies":"false","target.hostSyncTimeout":"3000"}'
    (only,) = variants(
        shipped("tensorflow")["tf1_efficientnet_b4_batchnorm_train_real_pod64_conv"], {}
    )

    assert only.environment == {
        "TF_POPLAR_FLAGS": "--executable_cache_path=./tf_cache",
        "POPLAR_ENGINE_OPTIONS": options,
        "POPLAR_RUNTIME_OPTIONS": '{"streamCallbacks.maxLookahead":"unlimited"}',
    }


OUTPUT = """
step: 3, loss: 2.5e-01, accuracy: 61.5 %, throughput: 1234.5 samples/sec, time
latency avg: 1.5 ms (mean) latency 99p: 2.5 ms latency 99p9: 3.5 ms latency max: 4.5 ms
"""
NUMBERS = {
    "throughput": "1234.5",
    "accuracy": "61.5",
    "loss": "2.5e-01",
    "latency": "1.5",
    "latency_99p": "2.5",
    "latency_99p9": "3.5",
    "latency_max": "4.5",
}


def test_every_benchmark_is_sound() -> None:
    for one in every():
        swept = {name for sweep in one.parameters for name in sweep}

        assert one.description.endswith(".") and one.metrics and one.output, one.name
        assert "<" not in one.cmd and "python3" in one.cmd.split(), one.name
        assert placeholders(one.cmd) == swept, one.name
        for metric in one.metrics.values():
            assert re.findall(metric.regexp, OUTPUT) == [NUMBERS[metric.name]], one.name


def test_every_column_shows_a_metric_or_a_parameter() -> None:
    for one in every():
        known = {*one.metrics, *(name for sweep in one.parameters for name in sweep)}
        # The original gives its servers this column as well, though they have no such parameter.
        known |= {"batchsize"} if "tritonserver" in one.name else set()

        assert {column.source for column in one.output} <= known, one.name


def test_the_readme_command_takes_them_where_there_is_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    selection = select(["--spec", "benchmarks.yml"], {})

    assert len({one.benchmark.name for one in selection.variants}) == 55 - 10  # end in _conv
    assert not any("wandb" in word for one in selection.variants for word in one.words)
