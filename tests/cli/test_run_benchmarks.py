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

USER_BENCHMARKS = """\
first: &first
  cmd: python3 train.py --config resnet50 --micro-batch-size {size} --replicas {copies} --wandb
  parameters: {size: '2,4', copies: '1,3'}
  env: {DATA_DIR: /photos}
  data: {throughput: {regexp: 'x (.*)'}}
first_conv:
  <<: *first
  parameters: {size: '2', copies: '5'}
misspelled:
  cmd: python3 train.py --modle resnet50
  data: {throughput: {regexp: 'x (.*)'}}
"""


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shipped_variants(stem: str, *names: str) -> dict[str, Meaning]:
    description = dry(f"{RUNNER} --spec {SHIPPED_DIR / stem}.yml --benchmark {' '.join(names)}")
    return {variant["name"]: variant for variant in description["benchmarks"]}


def plan_values(plan: Meaning) -> tuple[object, ...]:
    """Samples of an update, stages, replicas, initial learning rate, epochs."""
    return (
        plan["batch"]["samples_per_update"],
        len(plan["stages"]),
        plan["topology"]["replicas"],
        plan["learning_rate"]["base"],
        plan["updates"]["epochs"],
    )


# Computed by hand from the commands and configurations of the benchmarks.
TENSORFLOW = {
    "tf1_resnet50_train_synth_1ipu": (16 * 144, 1, 1, 4.588, 1),
    "tf1_resnet50_train_real_pod4": (22 * 40 * 4, 1, 4, 10.72, 1),
    "tf1_resnet50_train_real_pod256_conv": (20 * 2 * 256, 1, 256, 20.2, 45),
    "tf1_resnext101_train_real_pod4": (6 * 64 * 2, 2, 2, 2**-11 * 768, 1),
    "tf1_resnext101_train_real_pod16": (6 * 16 * 8, 2, 8, 2**-11 * 768, 1),
    "tf1_efficientnet_b4_train_real_pod16": (3 * 64 * 4, 4, 4, 2**-14 * 768, 1),
    "tf1_efficientnet_b4_g16_train_real_pod64_conv": (3 * 64 * 32, 2, 32, 2**-9.5 * 6144, 350),
    "tf1_efficientnet_b4_batchnorm_train_real_pod16": (6 * 64 * 16, 1, 16, 2**-10 * 6144, 1),
    # Each process of mpirun is a replica. Inference does not use the learning rate and the epochs.
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
def test_variants_have_the_same_plan_as_in_their_application(
    stem: str, expected: dict[str, tuple[object, ...]]
) -> None:
    variants = shipped_variants(stem, *expected)

    assert {name: plan_values(variant["plan"]) for name, variant in variants.items()} == expected


def test_inference_uses_the_batch_size_of_its_variant() -> None:
    name = "pytorch_resnet50_infer_gen_pod4"
    variant = shipped_variants("pytorch-inference", name)[f"{name}_batchsize_64"]
    options = values(variant["plan"])

    assert variant["command"].startswith("convoy validate --config inference/resnet50 ")
    assert (options["micro_batch_size"], options["valid_batch_size"]) == (64, 64)
    assert (options["replicas"], options["instances"]) == (4, 2)
    assert options["random_weights"] is True


def count_variants(args: str) -> int:
    """The number of selected variants, from the error message of a run."""
    result = convoy("run", "--", *shlex.split(f"{RUNNER} {args}"))
    match = re.search(r"(\d+) of them", result.err)
    assert result.code == 2 and match
    return int(match[1])


@pytest.mark.parametrize(
    ("stem", "default", "with_convergence"),
    [("pytorch-training", 4, 7), ("pytorch-inference", 28, 28), ("tensorflow", 141, 148)],
)
def test_convergence_runs_are_selected_only_on_request(
    stem: str, default: int, with_convergence: int
) -> None:
    spec = f"--spec {SHIPPED_DIR / stem}.yml"

    assert count_variants(spec) == default
    assert count_variants(f"{spec} --include-convergence") == with_convergence


def test_only_known_variants_of_the_shipped_benchmarks_have_a_problem() -> None:
    description = dry(f"{RUNNER} --spec benchmarks.yml --include-convergence")
    problems = {
        variant["name"]: variant["problem"]
        for variant in description["benchmarks"]
        if variant["problem"]
    }
    validation_problem = problems.pop("tf1_efficientnet_b4_g16_validation_real_pod16_conv")

    assert Counter(problems.values()) == {
        "run_benchmark_with_triton_server.py (serve) is not available in this version": 12,
        "send_request.py (request) is not available in this version": 3,
    }
    assert validation_problem.startswith(
        "--config 'efficientnet_b4_g16_256ipus' is not a shipped configuration"
    )
    assert len(description["benchmarks"]) == 183
    assert description["notes"] == [
        "benchmarks.yml does not exist; using the shipped files "
        "pytorch-inference.yml, pytorch-training.yml, tensorflow.yml"
    ]


def test_a_problem_keeps_the_command_of_its_variant() -> None:
    name = "tf1_resnet50_serving_infer_real_1ipu"
    variant = shipped_variants("tensorflow", name)[f"{name}_batchsize_8"]

    assert set(variant) == {"name", "benchmark", "words", "problem"}
    assert variant["words"][:2] == ["python3", "send_request.py"]


def test_a_file_of_the_user_is_used(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(USER_BENCHMARKS)
    description = dry(f"{RUNNER} --benchmark first first_conv")
    variants = {variant["name"]: variant for variant in description["benchmarks"]}

    assert list(variants) == [
        *("first_copies_1_size_2", "first_copies_3_size_2"),
        *("first_copies_1_size_4", "first_copies_3_size_4", "first_conv_copies_5_size_2"),
    ]
    # The configuration sets a gradient accumulation of 57 and the learning rate.
    assert plan_values(variants["first_copies_3_size_4"]["plan"]) == (4 * 57 * 3, 1, 3, 2, 100)
    assert variants["first_copies_3_size_4"]["benchmark"] == "first"
    assert values(variants["first_copies_3_size_4"]["plan"])["data_dir"] == "/photos"
    assert description["dropped"] == [
        {"word": "--wandb", "reason": "dropped without --allow-wandb"}
    ]


def test_the_problem_of_one_variant_does_not_hide_the_others(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(USER_BENCHMARKS)
    *valid, invalid = dry(RUNNER)["benchmarks"]

    assert [variant["problem"] for variant in valid] == [None] * 4
    assert invalid["problem"].startswith("unknown option --modle; did you mean --mode")


def test_convoy_options_override_every_variant(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(USER_BENCHMARKS)
    variants = dry(f"{RUNNER} --benchmark first", "--lr", "0.25", "--replicas", "7")["benchmarks"]

    assert {plan_values(variant["plan"])[2:4] for variant in variants} == {(7, 0.25)}


def test_a_variant_can_be_selected_by_name(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(USER_BENCHMARKS)
    (variant,) = dry(f"{RUNNER} --benchmark first_copies_1_size_4")["benchmarks"]

    assert variant["name"] == "first_copies_1_size_4"
    assert variant["environment"] == {"DATA_DIR": "/photos"}
    assert repeated(variant) == values(variant["plan"]) | {"data_dir": None}


def test_environment_variables_of_a_benchmark_are_interpreted() -> None:
    name = "tf1_efficientnet_b4_batchnorm_train_real_pod64_conv"
    variant = shipped_variants("tensorflow", name)[name]
    dropped = {word["word"]: word["reason"] for word in variant["dropped"]}

    assert values(variant["plan"])["model_cache_path"] == "./tf_cache"
    assert dropped["POPLAR_ENGINE_OPTIONS"] == "it configures a device runtime that is not used"


def test_running_benchmarks_is_refused(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(USER_BENCHMARKS)
    result = convoy("run", "--", *shlex.split(RUNNER))

    assert (result.code, result.out) == (2, "")
    assert "not available in this version" in result.err
    assert "--dry-run" in result.err and "5 of them" in result.err
    assert result.err.count("\n") == 1


def test_dry_run_can_be_the_last_argument(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(USER_BENCHMARKS)
    result = convoy("run", "--", *shlex.split(RUNNER), "--dry-run")

    assert result.code == 0
    assert json.loads(result.out) == dry(RUNNER)


def test_a_misspelled_benchmark_is_refused_with_near_names(working_directory: Path) -> None:
    (working_directory / "benchmarks.yml").write_text(USER_BENCHMARKS)
    unknown, near = refusals(f"{RUNNER} --benchmrk x --benchmark mispelled")

    assert unknown.startswith("unknown option --benchmrk; did you mean --benchmark")
    assert near == "--benchmark 'mispelled' is unknown; did you mean misspelled?"


def test_a_missing_file_is_reported() -> None:
    assert refusals(f"{RUNNER} --spec mine.yml") == ["configuration file mine.yml does not exist"]


def test_the_help_of_the_runner_shows_its_options() -> None:
    result = convoy("run", "--", *shlex.split(RUNNER), "--help")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("usage: python3 -m examples_utils benchmark ")
    assert "--spec [SPEC ...]" in result.out and "--log-dir [LOG_DIR]" in result.out
