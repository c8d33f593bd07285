"""Combinations, names, substitution in the command, variables of the environment."""

import pytest

from convoy.bench.definition import (
    Benchmark,
    combinations,
    expanded,
    places,
    split_command,
    substituted,
    variants,
)

SWEPT = Benchmark(
    "infer",
    "mpirun --np {replicas} python3 validation.py --micro-batch-size {batchsize}",
    parameters=({"replicas": ("1", "4"), "batchsize": ("8", "16")},),
)


def test_variants_are_all_combinations_of_the_parameters() -> None:
    assert [one.values for one in variants(SWEPT, {})] == [
        {"replicas": "1", "batchsize": "8"},
        {"replicas": "1", "batchsize": "16"},
        {"replicas": "4", "batchsize": "8"},
        {"replicas": "4", "batchsize": "16"},
    ]


def test_a_variant_is_named_by_its_parameters_in_alphabetical_order() -> None:
    assert [one.name for one in variants(SWEPT, {})] == [
        "infer_batchsize_8_replicas_1",
        "infer_batchsize_16_replicas_1",
        "infer_batchsize_8_replicas_4",
        "infer_batchsize_16_replicas_4",
    ]


def test_the_values_of_a_variant_stand_in_its_command() -> None:
    last = variants(SWEPT, {})[-1]

    assert " ".join(last.words) == "mpirun --np 4 python3 validation.py --micro-batch-size 16"


def test_a_benchmark_without_parameters_is_one_variant_of_its_own_name() -> None:
    (only,) = variants(Benchmark("train", "python3 train.py"), {})

    assert (only.name, only.values, only.words) == ("train", {}, ("python3", "train.py"))


def test_several_sweeps_follow_one_another() -> None:
    assert combinations([{"a": ("1", "2")}, {"a": ("3",), "b": ("4",)}]) == [
        {"a": "1"},
        {"a": "2"},
        {"a": "3", "b": "4"},
    ]


def test_a_folded_command_is_split_as_a_shell_does() -> None:
    cmd = "poprun\n  --mpi-local-args=\"\n   -x PATH\n   -x HOME\"\npython3 train.py --name 'a b'"

    assert split_command(cmd, {}) == [
        "poprun",
        "--mpi-local-args= -x PATH -x HOME",
        "python3",
        "train.py",
        "--name",
        "a b",
    ]


def test_a_value_of_several_words_is_several_words_of_the_command() -> None:
    assert split_command("run {more} end", {"more": "--a 1"}) == ["run", "--a", "1", "end"]


@pytest.mark.parametrize(
    ("text", "whole", "asked"),
    [
        ("{a}-{b}", "1-2", {"a", "b"}),
        ("${a}/{a}", "${a}/1", {"a"}),  # the first is a variable of the environment
        ("{{a}} {a}", "{a} 1", {"a"}),
        ("{} { a } {'x': 1}", "{} { a } {'x': 1}", set()),
    ],
)
def test_only_names_in_single_braces_are_substituted(
    text: str, whole: str, asked: set[str]
) -> None:
    assert substituted(text, {"a": "1", "b": "2"}) == whole
    assert places(text) == asked


def test_variables_are_filled_in_where_they_are_set() -> None:
    environment = {"HOME": "/home/me", "EMPTY": ""}

    assert expanded("$HOME/${HOME}x", environment) == "/home/me//home/mex"
    assert expanded("${HOMES}/$HOMES", environment) == "${HOMES}/$HOMES"
    assert expanded("[$EMPTY] 5$ $", environment) == "[] 5$ $"


def test_a_variable_with_spaces_stays_one_word() -> None:
    (only,) = variants(Benchmark("b", "train.py --data-dir ${DIR}/x"), {"DIR": "my data"})

    assert only.words == ("train.py", "--data-dir", "my data/x")


def test_the_environment_of_a_benchmark_is_filled_in_and_wins_in_its_command() -> None:
    benchmark = Benchmark("b", "run $CACHE $USER", env={"CACHE": "/tmp/$USER"})
    (only,) = variants(benchmark, {"USER": "me", "CACHE": "elsewhere"})

    assert only.environment == {"CACHE": "/tmp/me"}
    assert only.words == ("run", "/tmp/me", "me")


def test_a_convergence_run_is_known_by_the_end_of_its_name() -> None:
    assert Benchmark("a_pod64_conv", "x").converges
    assert not Benchmark("a_conv_pod64", "x").converges
    assert not Benchmark("a_convergence", "x").converges
