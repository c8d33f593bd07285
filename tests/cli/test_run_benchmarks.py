"""convoy run: benchmark files, shipped and written by the user."""

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from support.dry_runs import Meaning, dry, refusals, repeated, values
from support.run_convoy import convoy

from convoy.bench.selection import SHIPPED_DIR

RUNNER = "python3 -m examples_utils benchmark"

OWN = """\
mine: &mine
  cmd: python3 train.py --config resnet50 --micro-batch-size {size} --replicas {copies} --wandb
  parameters: {size: '2,4', copies: '1,3'}
  env: {DATA_DIR: /photos}
  data: {throughput: {regexp: 'x (.*)'}}
mine_conv:
  <<: *mine
  parameters: {size: '2', copies: '5'}
theirs:
  cmd: python3 train.py --modle resnet50
  data: {throughput: {regexp: 'x (.*)'}}
"""


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shipped(stem: str, *names: str) -> dict[str, Meaning]:
    description = dry(f"{RUNNER} --spec {SHIPPED_DIR / stem}.yml --benchmark {' '.join(names)}")
    return {variant["name"]: variant for variant in description["benchmarks"]}


def figures(plan: Meaning) -> tuple[object, ...]:
    """Samples of an update, stages, replicas, first rate, epochs."""
    return (
        plan["batch"]["samples_per_update"],
        len(plan["stages"]),
        plan["topology"]["replicas"],
        plan["learning_rate"]["base"],
        plan["updates"]["epochs"],
    )


# Computed by hand from their commands and configurations.
TENSORFLOW = {
    "tf1_resnet50_train_synth_1ipu": (16 * 144, 1, 1, 4.588, 1),
    "tf1_resnet50_train_real_pod4": (22 * 40 * 4, 1, 4, 10.72, 1),
    "tf1_resnet50_train_real_pod256_conv": (20 * 2 * 256, 1, 256, 20.2, 45),
    "tf1_resnext101_train_real_pod4": (6 * 64 * 2, 2, 2, 2**-11 * 768, 1),
    "tf1_resnext101_train_real_pod16": (6 * 16 * 8, 2, 8, 2**-11 * 768, 1),
    "tf1_efficientnet_b4_train_real_pod16": (3 * 64 * 4, 4, 4, 2**-14 * 768, 1),
    "tf1_efficientnet_b4_g16_train_real_pod64_conv": (3 * 64 * 32, 2, 32, 2**-9.5 * 6144, 350),
    "tf1_efficientnet_b4_batchnorm_train_real_pod16": (6 * 64 * 16, 1, 16, 2**-10 * 6144, 1),
    # Each process of mpirun is a replica: 80 × 4; 2^-8 × 320, in 100 epochs, is never used.
    "tf1_resnet50_infer_gen_pod4_batchsize_80_replicas_4": (80 * 4, 1, 4, 2**-8 * 320, 100),
}
PYTORCH = {
    "pytorch_resnet50_train_real_pod4": (18 * 228 * 4, 1, 4, 2, 2),
    "pytorch_resnet50_train_real_pod64_conv": (18 * 14 * 64, 1, 64, 2, 100),
    "pytorch_efficientnet_b0_train_real_pod16": (20 * 5 * 8, 2, 8, 0.05, 2),
    "pytorch_efficientnet_b4_g16_train_real_pod16": (4 * 64 * 8, 2, 8, 0.1, 2),
}


@pytest.mark.parametrize(
    ("stem", "expected"), [("tensorflow", TENSORFLOW), ("pytorch-training", PYTORCH)]
)
def test_variants_have_the_plans_of_their_applications(
    stem: str, expected: dict[str, tuple[object, ...]]
) -> None:
    variants = shipped(stem, *expected)

    assert {name: figures(variant["plan"]) for name, variant in variants.items()} == expected


def test_inference_uses_the_batch_size_of_its_variant() -> None:
    name = "pytorch_resnet50_infer_gen_pod4"
    variant = shipped("pytorch-inference", name)[f"{name}_batchsize_64"]
    options = values(variant["plan"])

    assert variant["command"].startswith("convoy validate --config inference/resnet50 ")
    assert (options["micro_batch_size"], options["valid_batch_size"]) == (64, 64)
    assert (options["replicas"], options["instances"]) == (4, 2)
    assert options["random_weights"] is True


def count_words(words: str) -> int:
    """The number of variants in the error message of a run."""
    result = convoy("run", "--", *shlex.split(f"{RUNNER} {words}"))
    match = re.search(r"to see what (\d+) of them", result.err)
    assert result.code == 2 and match
    return int(match[1])


@pytest.mark.parametrize(
    ("stem", "many", "with_convergence"),
    [("pytorch-training", 4, 7), ("pytorch-inference", 28, 28), ("tensorflow", 141, 148)],
)
def test_convergence_runs_are_selected_only_on_request(
    stem: str, many: int, with_convergence: int
) -> None:
    spec = f"--spec {SHIPPED_DIR / stem}.yml"

    assert count_words(spec) == many
    assert count_words(f"{spec} --include-convergence") == with_convergence


def test_only_these_variants_have_a_problem() -> None:
    description = dry(f"{RUNNER} --spec benchmarks.yml --include-convergence")
    problems = {
        variant["name"]: variant["problem"]
        for variant in description["benchmarks"]
        if variant["problem"]
    }
    conv = problems.pop("tf1_efficientnet_b4_g16_validation_real_pod16_conv")

    assert Counter(problems.values()) == {
        "run_benchmark_with_triton_server.py (serve) is not available in this version": 12,
        "send_request.py (request) is not available in this version": 3,
    }
    assert conv.startswith("--config 'efficientnet_b4_g16_256ipus' is not a shipped configuration")
    assert len(description["benchmarks"]) == 183
    assert description["notes"] == [
        "benchmarks.yml does not exist; using the shipped files "
        "pytorch-inference.yml, pytorch-training.yml, tensorflow.yml"
    ]


def test_a_problem_keeps_the_command_of_its_variant() -> None:
    name = "tf1_resnet50_serving_infer_real_1ipu"
    variant = shipped("tensorflow", name)[f"{name}_batchsize_8"]

    assert set(variant) == {"name", "benchmark", "words", "problem"}
    assert variant["words"][:2] == ["python3", "send_request.py"]


def test_a_file_of_the_user_is_used(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(OWN)
    description = dry(f"{RUNNER} --benchmark mine mine_conv")
    variants = {variant["name"]: variant for variant in description["benchmarks"]}

    assert list(variants) == [
        *("mine_copies_1_size_2", "mine_copies_3_size_2"),
        *("mine_copies_1_size_4", "mine_copies_3_size_4", "mine_conv_copies_5_size_2"),
    ]
    # 57 accumulated; the rate is that of the configuration.
    assert figures(variants["mine_copies_3_size_4"]["plan"]) == (4 * 57 * 3, 1, 3, 2, 100)
    assert variants["mine_copies_3_size_4"]["benchmark"] == "mine"
    assert values(variants["mine_copies_3_size_4"]["plan"])["data_dir"] == "/photos"
    assert description["dropped"] == [
        {"word": "--wandb", "reason": "dropped without --allow-wandb"}
    ]


def test_the_problem_of_a_variant_is_reported_in_its_place(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(OWN)
    *good, wrong = dry(RUNNER)["benchmarks"]

    assert [variant["problem"] for variant in good] == [None] * 4
    assert wrong["problem"].startswith("unknown option --modle; did you mean --mode")


def test_convoy_options_override_every_variant(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(OWN)
    variants = dry(f"{RUNNER} --benchmark mine", "--lr", "0.25", "--replicas", "7")["benchmarks"]

    assert {figures(variant["plan"])[2:4] for variant in variants} == {(7, 0.25)}


def test_a_variant_can_be_selected_by_name(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(OWN)
    (variant,) = dry(f"{RUNNER} --benchmark mine_copies_1_size_4")["benchmarks"]

    assert variant["name"] == "mine_copies_1_size_4"
    assert variant["environment"] == {"DATA_DIR": "/photos"}
    assert repeated(variant) == values(variant["plan"]) | {"data_dir": None}


def test_variables_of_a_benchmark_count_as_typed() -> None:
    name = "tf1_efficientnet_b4_batchnorm_train_real_pod64_conv"
    variant = shipped("tensorflow", name)[name]
    dropped = {word["word"]: word["reason"] for word in variant["dropped"]}

    assert values(variant["plan"])["model_cache_path"] == "./tf_cache"
    assert dropped["POPLAR_ENGINE_OPTIONS"] == "it configures a device runtime that is not used"


def test_running_benchmarks_is_refused(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(OWN)
    result = convoy("run", "--", *shlex.split(RUNNER))

    assert (result.code, result.out) == (2, "")
    assert result.err == (
        "convoy: running benchmarks is not available in this version; add --dry-run to see what "
        "5 of them resolve to\n"
    )


def test_dry_run_can_be_the_last_argument(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(OWN)
    result = convoy("run", "--", *shlex.split(RUNNER), "--dry-run")

    assert result.code == 0
    assert json.loads(result.out) == dry(RUNNER)


def test_a_misspelled_benchmark_is_refused_with_near_names(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(OWN)
    unknown, near = refusals(f"{RUNNER} --benchmrk x --benchmark thiers")

    assert unknown.startswith("unknown option --benchmrk; did you mean --benchmark")
    assert near == "--benchmark 'thiers' is unknown; did you mean theirs?"


def test_a_missing_file_is_reported() -> None:
    assert refusals(f"{RUNNER} --spec mine.yml") == ["configuration file mine.yml does not exist"]


def test_the_help_of_the_runner_names_its_values() -> None:
    result = convoy("run", "--", *shlex.split(RUNNER), "--help")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("usage: python3 -m examples_utils benchmark ")
    assert "--spec [SPEC ...]" in result.out and "--log-dir [LOG_DIR]" in result.out
