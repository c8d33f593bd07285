"""Runs with mixup and cutmix, on every mixing device and after a resume."""

import json
from pathlib import Path

import pytest
from support.run_convoy import TINY, convoy

BOTH = ("--mixup-alpha=0.4", "--cutmix-lambda-low=0.2", "--cutmix-lambda-high=0.8")


def trained(folder: Path, *words: str) -> dict[str, object]:
    result = convoy("train", *TINY, *words, "--output", folder)
    assert result.code == 0, result.err
    found: dict[str, object] = json.loads((folder / "summary.json").read_text())
    return found


def loss_and_accuracy(folder: Path) -> list[tuple[float, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["loss"], line["accuracy"]) for line in lines]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mixed") / "run"
    trained(folder, *BOTH)
    return folder


def weights(folder: Path) -> object:
    return json.loads((folder / "summary.json").read_text())["weights_sha256"]


@pytest.mark.parametrize("update", [1, 3, 5, 6, 7, 11])
def test_a_run_stopped_within_an_epoch_resumes_bit_exactly(
    update: int, mixed: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    stopped = convoy("train", *TINY, *BOTH, "--output", run, f"--stop-after={update}")
    resumed = convoy("resume", run)

    assert (stopped.code, resumed.code) == (75, 0)
    assert weights(run) == weights(mixed)
    assert loss_and_accuracy(run) == loss_and_accuracy(mixed)


@pytest.mark.parametrize(
    "words",
    [
        ("--hostside-image-mixing",),
        ("--hostside-image-mixing", "--dataloader-worker=3"),
        ("--hostside-image-mixing", "--eight-bit-io"),
        ("--normalization-location=device",),
        ("--hostside-image-mixing", "--normalization-location=device"),
        ("--dataloader-worker=2",),
    ],
)
def test_the_mixing_device_does_not_change_any_bit(
    words: tuple[str, ...], mixed: Path, tmp_path: Path
) -> None:
    trained(tmp_path / "run", *BOTH, *words)

    assert weights(tmp_path / "run") == weights(mixed)
    assert loss_and_accuracy(tmp_path / "run") == loss_and_accuracy(mixed)


def test_mixing_can_move_to_the_host_on_resume(mixed: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    convoy("train", *TINY, *BOTH, "--output", run, "--stop-after=5")
    result = convoy("resume", run, "--hostside-image-mixing")

    assert result.code == 0, result.err
    assert weights(run) == weights(mixed)


def test_every_mixing_option_changes_the_weights(tmp_path: Path) -> None:
    low = "--cutmix-lambda-low=0.5"
    variants: list[tuple[str, ...]] = [
        (),
        ("--mixup-alpha=0.4",),
        ("--mixup-alpha=2.5",),
        ("--cutmix-lambda-high=0.8",),
        (low, "--cutmix-lambda-high=0.8"),
        (low, "--cutmix-lambda-high=0.8", "--cutmix-disable-prob=0.5"),
        (low, "--cutmix-lambda-high=0.8", "--cutmix-version=1"),
        (low, "--cutmix-lambda-high=0.8", "--cutmix-version=2"),
        (low, "--cutmix-lambda-high=0.8", "--mixup-alpha=0.4"),
        (low, "--cutmix-lambda-high=0.8", "--mixup-alpha=0.4", "--seed=1"),
    ]
    found = {
        trained(tmp_path / str(index), *words)["weights_sha256"]
        for index, words in enumerate(variants)
    }

    assert len(found) == len(variants)


def test_cutmix_that_is_always_disabled_has_no_effect(tmp_path: Path) -> None:
    cutmix = ("--cutmix-lambda-low=0.2", "--cutmix-lambda-high=0.8", "--cutmix-disable-prob=1")
    plain, disabled = trained(tmp_path / "plain"), trained(tmp_path / "disabled", *cutmix)

    assert disabled["weights_sha256"] == plain["weights_sha256"]
    assert loss_and_accuracy(tmp_path / "disabled") == loss_and_accuracy(tmp_path / "plain")


@pytest.mark.parametrize("micro", [2, 3])
def test_small_micro_batches_are_mixed(micro: int, tmp_path: Path) -> None:
    small = f"--micro-batch-size={micro}"
    plain, cut = trained(tmp_path / "plain", small), trained(tmp_path / "cut", small, *BOTH[1:])

    assert cut["weights_sha256"] != plain["weights_sha256"]


def test_a_micro_batch_of_one_image_cannot_be_mixed(tmp_path: Path) -> None:
    result = convoy("train", *TINY, *BOTH, "--micro-batch-size=1", "--output", tmp_path / "run")

    assert result.code == 2
    assert result.err.startswith("convoy: --micro-batch-size 1 ")
    assert "mixup and CutMix" in result.err
    assert result.err.endswith("use 2 or more\n")
    assert result.err.count("\n") == 1


def test_statistics_of_an_average_are_recomputed_on_mixed_images(tmp_path: Path) -> None:
    """Statistics come from training passes over images without labels."""
    words = (*BOTH, "--weight-avg-strategy=mean", "--weight-avg-n=2")
    averages = [
        trained(tmp_path / "device", *words)["averaged"],
        trained(tmp_path / "host", *words, "--hostside-image-mixing")["averaged"],
    ]
    digests = [item["weights_sha256"] for item in averages if isinstance(item, dict)]

    assert len(digests) == 2
    assert digests[0] == digests[1]
