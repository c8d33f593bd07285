"""The shipped benchmark definitions match those of the applications."""

import re
from pathlib import Path

import pytest

from convoy.bench.benchmarks_yml import (
    Benchmark,
    Metric,
    Variant,
    expand_variants,
    placeholders,
    read_benchmarks,
)
from convoy.bench.selection import SHIPPED_DIR, select_benchmarks

COUNTS = {"pytorch-inference": (11, 28), "pytorch-training": (7, 7), "tensorflow": (37, 148)}


def shipped(stem: str) -> dict[str, Benchmark]:
    return read_benchmarks(SHIPPED_DIR / f"{stem}.yml")[0]


def all_benchmarks() -> list[Benchmark]:
    return [benchmark for stem in COUNTS for benchmark in shipped(stem).values()]


def command_line(variant: Variant) -> str:
    return " ".join(variant.words)


@pytest.mark.parametrize("stem", COUNTS)
def test_each_file_has_the_expected_benchmarks_and_variants(stem: str) -> None:
    benchmarks = shipped(stem)
    all_variants = [
        variant for benchmark in benchmarks.values() for variant in expand_variants(benchmark, {})
    ]

    assert (len(benchmarks), len(all_variants)) == COUNTS[stem]


def test_names_of_shipped_benchmarks_are_unique() -> None:
    assert sorted(path.stem for path in SHIPPED_DIR.glob("*.yml")) == list(COUNTS)
    names = [benchmark.name for benchmark in all_benchmarks()]
    assert len(set(names)) == len(names)


def test_a_training_benchmark_matches_the_original() -> None:
    (variant,) = expand_variants(
        shipped("tensorflow")["tf1_efficientnet_b4_g16_train_real_pod256_conv"],
        {"DATASETS_DIR": "/data"},
    )

    assert command_line(variant) == (
        "poprun --num-instances 128 --num-replicas 128 --num-ilds 4 --ipus-per-replica 2 "
        "python3 train.py --config efficientnet_b4_g16_64ipus --identical-replica-seeding "
        "--epochs 350 --logs-per-epoch 2 --epochs-per-ckpt 1 --no-validation --data-dir /data "
        "--wandb --eight-bit-io --seed 1 --num-io-tiles 32 --prefetch-depth 3 "
        "--log-dir ./logs/checkpoints --replicas 128 --gradient-accumulation-count 16"
    )


def test_a_sweep_matches_the_original() -> None:
    sweep = shipped("tensorflow")["tf1_resnet50_infer_gen_pod4"]
    last = expand_variants(sweep, {})[-1]

    assert last.name == "tf1_resnet50_infer_gen_pod4_batchsize_80_replicas_4"
    assert command_line(last) == (
        "mpirun --np 4 --bind-to socket python3 validation.py --model resnet --model-size 50 "
        "--dataset imagenet --micro-batch-size 80 --generated-data --repeat 10 "
        "--device-iterations 1000 --batch-norm --enable-half-partials --eight-bit-io "
        "--fused-preprocessing --num-io-tiles 64 --prefetch-depth 2"
    )
    assert sweep.metrics == {
        "throughput": Metric("throughput", "throughput: *(.*?) samples/sec", "mean", 4)
    }
    assert sweep.output == (("Batch size", "batchsize"), ("samples/sec", "throughput"))


def test_data_paths_keep_an_unset_variable() -> None:
    (variant,) = expand_variants(
        shipped("pytorch-training")["pytorch_resnet50_train_real_pod4"], {}
    )

    assert "--imagenet-data-path ${DATASETS_DIR}/imagenet-raw-dataset" in command_line(variant)


def test_convergence_runs_have_the_environment_of_the_original() -> None:
    options = '{"opt.enableMultiAccessCopies":"false","target.hostSyncTimeout":"3000"}'
    (variant,) = expand_variants(
        shipped("tensorflow")["tf1_efficientnet_b4_batchnorm_train_real_pod64_conv"], {}
    )

    assert variant.environment == {
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


def test_every_benchmark_is_valid() -> None:
    for benchmark in all_benchmarks():
        assert benchmark.description.endswith(".") and benchmark.metrics and benchmark.output, (
            benchmark.name
        )
        assert "<" not in benchmark.cmd and "python3" in benchmark.cmd.split(), benchmark.name
        assert placeholders(benchmark.cmd) == benchmark.parameters.keys(), benchmark.name
        for metric in benchmark.metrics.values():
            assert re.findall(metric.regexp, OUTPUT) == [NUMBERS[metric.name]], benchmark.name


def test_every_column_shows_a_metric_or_a_parameter() -> None:
    for benchmark in all_benchmarks():
        known = {*benchmark.metrics, *benchmark.parameters}
        # The reference lists this column for its servers, although it is not their parameter.
        known |= {"batchsize"} if "tritonserver" in benchmark.name else set()

        assert {source for _, source in benchmark.output} <= known, benchmark.name


def test_the_readme_command_uses_the_shipped_files_without_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    selection = select_benchmarks(["--spec", "benchmarks.yml"], {})

    selected = {variant.benchmark.name for variant in selection.variants}
    names = {benchmark.name for benchmark in all_benchmarks()}
    assert names - selected == {name for name in names if name.endswith("_conv")} != set()
    assert not any("wandb" in word for variant in selection.variants for word in variant.words)
