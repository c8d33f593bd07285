"""`convoy data bench`, end to end."""

import json
from pathlib import Path

import pytest
from support.cifar_files import write_cifar10
from support.photo_files import write_folder
from support.run_convoy import convoy

SMALL = (
    "--model=resnet8",
    "--data=generated",
    "--image-size=12",
    "--num-classes=5",
    "--samples=96",
    "--micro-batch-size=8",
    "--threads=1",
)
FIELDS = [
    "elements_processed",
    "total_bytes_processed",
    "time_elapsed",
    "elements_per_second",
    "bandwidth",
]


def test_each_epoch_is_reported_and_then_the_mean() -> None:
    result = convoy("data", "bench", *SMALL, "--epochs", "3", "--elements", "4")
    lines = result.out.splitlines()

    assert (result.code, result.err) == (0, "")
    assert [line.split(" in ")[0] for line in lines[:3]] == [
        f"epoch {number}: 4 elements" for number in (1, 2, 3)
    ]
    assert lines[3].startswith("mean throughput: ") and lines[3].endswith(" imgs/sec")


def test_json_has_the_fields_of_the_reference() -> None:
    result = convoy("data", "bench", *SMALL, "--json")
    reported = json.loads(result.out)

    assert list(reported) == ["epochs"]
    assert [list(epoch) for epoch in reported["epochs"]] == [FIELDS] * 2
    assert reported["epochs"][0]["elements_processed"] == 12.0
    assert reported["epochs"][0]["total_bytes_processed"] == 96 * (3 * 12 * 12 * 4 + 8)


@pytest.mark.parametrize(
    "words", [("--replicas=3",), ("--shards=2", "--gradient-accumulation=2", "--no-copy")]
)
def test_a_run_of_many_processes_is_measured_in_one_process(words: tuple[str, ...]) -> None:
    result = convoy("data", "bench", *SMALL, *words, "--json")

    assert result.code == 0, result.err
    assert json.loads(result.out)["epochs"][0]["elements_processed"] == 12.0


def test_the_length_of_a_named_configuration_applies_only_to_training() -> None:
    result = convoy("data", "bench", "--config=shapes-resnet14", "--elements=1", "--json")

    assert len(json.loads(result.out)["epochs"]) == 2


def test_every_wrong_count_is_reported_at_once() -> None:
    words = ("--elements=0", "--epochs=1.5", "--model-rate=-2", "--lr=-1")
    result = convoy("data", "bench", *SMALL, *words)

    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines() == [
        "convoy: --lr must be at least 0, got -1",
        "convoy: --epochs must be an integer here, got 1.5",
        "convoy: --elements must be at least 1, got 0",
        "convoy: --model-rate must be a finite number greater than 0, got -2",
        "convoy: --model-rate requires --doctor",
    ]


@pytest.mark.parametrize("rate", ["nan", "inf", "0"])
def test_an_invalid_rate_is_refused(rate: str) -> None:
    result = convoy("data", "bench", *SMALL, "--doctor", f"--model-rate={rate}")

    assert result.code == 2
    assert "--model-rate must be a finite number greater than 0" in result.err


def test_missing_data_is_named(tmp_path: Path) -> None:
    result = convoy("data", "bench", "--data=cifar10", "--data-dir", tmp_path)

    assert (result.code, result.out) == (3, "")
    assert str(tmp_path) in result.err


def test_cifar_files_are_measured_too(tmp_path: Path) -> None:
    write_cifar10(tmp_path, 20)
    words = ("--data=cifar10", "--data-dir", tmp_path, "--model=resnet8", "--micro-batch-size=10")
    result = convoy("data", "bench", *words, "--json")

    assert json.loads(result.out)["epochs"][0]["elements_processed"] == 10.0


CONVOY_OPTIONS = (
    "--model=resnet8",
    "--norm-num-groups=4",
    "--image-size=12",
    "--samples=96",
    "--num-classes=5",
    "--normalize-std",
)


@pytest.mark.parametrize(
    "line",
    [
        "python3 host_benchmark.py --data generated --iterations 5 --micro-batch-size 8",
        "python3 train.py --generated-data --dataset-benchmark --epochs 5 --batch-size 8",
    ],
)
def test_benchmarks_of_the_reference_are_translated(line: str) -> None:
    result = convoy("run", *CONVOY_OPTIONS, "--", *line.split())

    assert result.code == 0, result.err
    assert "convoy data bench --model resnet8" in result.out
    assert "epoch 5: 12 elements" in result.out and "epoch 6" not in result.out


def test_without_a_number_the_reference_line_measures_twice() -> None:
    words = ["--generated-data", "--dataset-benchmark", "--batch-size", "8"]
    result = convoy("run", *CONVOY_OPTIONS, "--", "python3", "train.py", *words)

    assert "--epoch 2" in result.out
    assert "epoch 2: 12 elements" in result.out and "epoch 3" not in result.out


def test_photos_are_measured_with_the_classes_of_their_folder(tmp_path: Path) -> None:
    write_folder(tmp_path, train=12)
    words = ("--data=imagenet", f"--data-dir={tmp_path}", "--image-size=32", "--model=resnet8")
    result = convoy("data", "bench", *words, "--micro-batch-size=4", "--json", "--eight-bit-io")

    assert result.code == 0, result.err
    (first, _) = json.loads(result.out)["epochs"]
    assert first["total_bytes_processed"] == 12 * (3 * 32 * 32 + 8)


def test_the_doctor_prints_after_the_figures() -> None:
    words = ("--doctor", "--model-rate=10", "--elements=2", "--mixup-alpha=0.4")
    result = convoy("data", "bench", *SMALL, *words)
    lines = result.out.splitlines()

    assert (result.code, result.err) == (0, "")
    assert lines[2].startswith("mean throughput")
    assert lines[3] == "" and lines[4].startswith("step")
    assert [line.split()[0] for line in lines[5:10]] == [
        "take",
        "augment",
        "normalize",
        "transfer",
        "mix",
    ]
    assert lines[-2].startswith("bottleneck: the model. It processes 10.0 images/s")


def test_the_doctor_prints_json_too() -> None:
    words = ("--doctor", "--model-rate=10", "--elements=2", "--hostside-image-mixing")
    result = convoy("data", "bench", *SMALL, *words, "--mixup-alpha=0.4", "--json")
    reported = json.loads(result.out)

    assert list(reported) == ["epochs", "doctor"]
    assert reported["doctor"]["limit"] == "model"
    assert reported["doctor"]["trials"] == []
    by_workers = {item["name"]: item["by_workers"] for item in reported["doctor"]["steps"]}
    assert (by_workers["mix"], by_workers["transfer"]) == (True, False)
