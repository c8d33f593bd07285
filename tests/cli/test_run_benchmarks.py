"""convoy run: files of benchmarks, shipped and of the reader's own."""

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
from dry_runs import Meaning, dry, refusals, repeated, values
from running import convoy

from convoy.bench.selection import SHIPPED

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
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shipped(stem: str, *names: str) -> dict[str, Meaning]:
    meaning = dry(f"{RUNNER} --spec {SHIPPED / stem}.yml --benchmark {' '.join(names)}")
    return {one["name"]: one for one in meaning["benchmarks"]}


def figures(plan: Meaning) -> tuple[object, ...]:
    """Samples of an update, stages, replicas, first rate, epochs."""
    return (
        plan["batch"]["samples_per_update"],
        len(plan["stages"]),
        plan["topology"]["replicas"],
        plan["learning_rate"]["base"],
        plan["updates"]["epochs"],
    )


# Worked out by hand from their commands and configurations.
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
def test_variants_come_to_what_their_applications_would_do(
    stem: str, expected: dict[str, tuple[object, ...]]
) -> None:
    found = shipped(stem, *expected)

    assert {name: figures(one["plan"]) for name, one in found.items()} == expected


def test_an_inference_takes_the_batch_of_its_variant() -> None:
    name = "pytorch_resnet50_infer_gen_pod4"
    one = shipped("pytorch-inference", name)[f"{name}_batchsize_64"]
    options = values(one["plan"])

    assert one["command"].startswith("convoy validate --config inference/resnet50 ")
    assert (options["micro_batch_size"], options["valid_batch_size"]) == (64, 64)
    assert (options["replicas"], options["instances"]) == (4, 2)
    assert options["random_weights"] is True


def counted(words: str) -> int:
    """How many variants there are to see, as a wish to run them is answered."""
    said = convoy("run", "--", *shlex.split(f"{RUNNER} {words}"))
    found = re.search(r"to see what (\d+) of them", said.err)
    assert said.code == 2 and found
    return int(found[1])


@pytest.mark.parametrize(
    ("stem", "many", "with_convergence"),
    [("pytorch-training", 4, 7), ("pytorch-inference", 28, 28), ("tensorflow", 141, 148)],
)
def test_convergence_runs_want_a_word_of_their_own(
    stem: str, many: int, with_convergence: int
) -> None:
    spec = f"--spec {SHIPPED / stem}.yml"

    assert counted(spec) == many
    assert counted(f"{spec} --include-convergence") == with_convergence


def test_only_these_variants_have_a_problem() -> None:
    meaning = dry(f"{RUNNER} --spec benchmarks.yml --include-convergence")
    problems = {one["name"]: one["problem"] for one in meaning["benchmarks"] if one["problem"]}
    conv = problems.pop("tf1_efficientnet_b4_g16_validation_real_pod16_conv")

    assert Counter(problems.values()) == {
        "run_benchmark_with_triton_server.py (serve) is not available in this version": 12,
        "send_request.py (request) is not available in this version": 3,
    }
    assert conv.startswith("--config 'efficientnet_b4_g16_256ipus' is not shipped")
    assert len(meaning["benchmarks"]) == 183
    assert meaning["notes"] == [
        "there is no benchmarks.yml: taking those shipped, "
        "pytorch-inference.yml, pytorch-training.yml, tensorflow.yml"
    ]


def test_a_problem_leaves_the_words_of_its_variant() -> None:
    name = "tf1_resnet50_serving_infer_real_1ipu"
    one = shipped("tensorflow", name)[f"{name}_batchsize_8"]

    assert set(one) == {"name", "benchmark", "words", "problem"}
    assert one["words"][:2] == ["python3", "send_request.py"]


def test_a_file_of_the_readers_own_is_taken(here: Path) -> None:
    (here / "benchmarks.yml").write_text(OWN)
    meaning = dry(f"{RUNNER} --benchmark mine mine_conv")
    found = {one["name"]: one for one in meaning["benchmarks"]}

    assert list(found) == [
        *("mine_copies_1_size_2", "mine_copies_3_size_2"),
        *("mine_copies_1_size_4", "mine_copies_3_size_4", "mine_conv_copies_5_size_2"),
    ]
    # 57 accumulated; the rate is that of the configuration.
    assert figures(found["mine_copies_3_size_4"]["plan"]) == (4 * 57 * 3, 1, 3, 2, 100)
    assert found["mine_copies_3_size_4"]["benchmark"] == "mine"
    assert values(found["mine_copies_3_size_4"]["plan"])["data_dir"] == "/photos"
    assert meaning["dropped"] == [{"word": "--wandb", "reason": "left out without --allow-wandb"}]


def test_what_is_wrong_with_one_variant_is_told_in_its_place(here: Path) -> None:
    (here / "benchmarks.yml").write_text(OWN)
    *good, wrong = dry(RUNNER)["benchmarks"]

    assert [one["problem"] for one in good] == [None] * 4
    assert wrong["problem"].startswith("unknown option --modle; did you mean --mode")


def test_convoys_own_options_win_in_every_variant(here: Path) -> None:
    (here / "benchmarks.yml").write_text(OWN)
    found = dry(f"{RUNNER} --benchmark mine", "--lr", "0.25", "--replicas", "7")["benchmarks"]

    assert {figures(one["plan"])[2:4] for one in found} == {(7, 0.25)}


def test_one_variant_can_be_asked_for_by_its_name(here: Path) -> None:
    (here / "benchmarks.yml").write_text(OWN)
    (one,) = dry(f"{RUNNER} --benchmark mine_copies_1_size_4")["benchmarks"]

    assert one["name"] == "mine_copies_1_size_4"
    assert one["environment"] == {"DATA_DIR": "/photos"}
    assert repeated(one) == values(one["plan"]) | {"data_dir": None}


def test_variables_of_a_benchmark_are_heard_as_if_they_were_typed() -> None:
    name = "tf1_efficientnet_b4_batchnorm_train_real_pod64_conv"
    one = shipped("tensorflow", name)[name]
    dropped = {each["word"]: each["reason"] for each in one["dropped"]}

    assert values(one["plan"])["model_cache_path"] == "./tf_cache"
    assert dropped["POPLAR_ENGINE_OPTIONS"] == "the device runtime it speaks to is not used"


def test_nothing_runs_and_that_is_told(here: Path) -> None:
    (here / "benchmarks.yml").write_text(OWN)
    said = convoy("run", "--", *shlex.split(RUNNER))

    assert (said.code, said.out) == (2, "")
    assert said.err == (
        "convoy: running benchmarks is not available in this version; add --dry-run to see what "
        "5 of them resolve to\n"
    )


def test_the_wish_for_a_dry_run_may_stand_at_the_end_of_the_line(here: Path) -> None:
    (here / "benchmarks.yml").write_text(OWN)
    said = convoy("run", "--", *shlex.split(RUNNER), "--dry-run")

    assert said.code == 0
    assert json.loads(said.out) == dry(RUNNER)


def test_a_misspelt_benchmark_is_answered_with_near_names(here: Path) -> None:
    (here / "benchmarks.yml").write_text(OWN)
    unknown, near = refusals(f"{RUNNER} --benchmrk x --benchmark thiers")

    assert unknown.startswith("unknown option --benchmrk; did you mean --benchmark")
    assert near == "--benchmark 'thiers' is unknown; did you mean theirs?"


def test_a_file_that_is_not_there_is_told() -> None:
    assert refusals(f"{RUNNER} --spec mine.yml") == ["there is no configuration file mine.yml"]


def test_the_help_of_the_runner_names_its_values_in_its_own_way() -> None:
    said = convoy("run", "--", *shlex.split(RUNNER), "--help")

    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("usage: python3 -m examples_utils benchmark ")
    assert "--spec [SPEC ...]" in said.out and "--log-dir [LOG_DIR]" in said.out
