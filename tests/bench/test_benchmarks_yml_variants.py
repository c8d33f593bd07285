"""The variants of a benchmark: parameters, commands and variables."""

import pytest

from convoy.bench.benchmarks_yml import (
    Benchmark,
    command_words,
    expand_variables,
    expand_variants,
    fill_placeholders,
    parameter_combinations,
    placeholders,
)

BENCHMARK_WITH_PARAMETERS = Benchmark(
    "infer",
    "mpirun --np {replicas} python3 validation.py --micro-batch-size {batchsize}",
    parameters={"replicas": ("1", "4"), "batchsize": ("8", "16")},
)


def test_variants_are_all_combinations_of_the_parameters() -> None:
    assert parameter_combinations(BENCHMARK_WITH_PARAMETERS.parameters) == [
        {"replicas": "1", "batchsize": "8"},
        {"replicas": "1", "batchsize": "16"},
        {"replicas": "4", "batchsize": "8"},
        {"replicas": "4", "batchsize": "16"},
    ]


def test_a_variant_is_named_by_its_parameters_in_alphabetical_order() -> None:
    assert [variant.name for variant in expand_variants(BENCHMARK_WITH_PARAMETERS, {})] == [
        "infer_batchsize_8_replicas_1",
        "infer_batchsize_16_replicas_1",
        "infer_batchsize_8_replicas_4",
        "infer_batchsize_16_replicas_4",
    ]


def test_the_values_of_a_variant_are_in_its_command() -> None:
    last = expand_variants(BENCHMARK_WITH_PARAMETERS, {})[-1]

    assert " ".join(last.words) == "mpirun --np 4 python3 validation.py --micro-batch-size 16"


def test_without_parameters_the_variant_has_the_name_of_its_benchmark() -> None:
    (variant,) = expand_variants(Benchmark("train", "python3 train.py"), {})

    assert (variant.name, variant.words) == ("train", ("python3", "train.py"))


def test_a_folded_command_is_split_as_by_a_shell() -> None:
    cmd = "poprun\n  --mpi-local-args=\"\n   -x PATH\n   -x HOME\"\npython3 train.py --name 'a b'"

    assert command_words(cmd, {}) == [
        "poprun",
        "--mpi-local-args= -x PATH -x HOME",
        "python3",
        "train.py",
        "--name",
        "a b",
    ]


def test_a_value_with_spaces_is_several_arguments_of_the_command() -> None:
    assert command_words("run {more} end", {"more": "--a 1"}) == ["run", "--a", "1", "end"]


@pytest.mark.parametrize(
    ("text", "filled", "names"),
    [
        ("{a}-{b}", "1-2", {"a", "b"}),
        ("${a}/{a}", "${a}/1", {"a"}),  # ${a} is an environment variable
        ("{{a}} {a}", "{a} 1", {"a"}),
        ("{} { a } {'x': 1}", "{} { a } {'x': 1}", set()),
    ],
)
def test_only_names_in_single_braces_are_substituted(
    text: str, filled: str, names: set[str]
) -> None:
    assert fill_placeholders(text, {"a": "1", "b": "2"}) == filled
    assert placeholders(text) == names


def test_variables_are_expanded_if_they_are_set() -> None:
    environment = {"HOME": "/home/me", "EMPTY": ""}

    assert expand_variables("$HOME/${HOME}x", environment) == "/home/me//home/mex"
    assert expand_variables("${HOMES}/$HOMES", environment) == "${HOMES}/$HOMES"
    assert expand_variables("[$EMPTY] 5$ $", environment) == "[] 5$ $"


def test_a_variable_with_spaces_stays_one_argument() -> None:
    (variant,) = expand_variants(Benchmark("b", "train.py --data-dir ${DIR}/x"), {"DIR": "my data"})

    assert variant.words == ("train.py", "--data-dir", "my data/x")


def test_the_environment_of_a_benchmark_is_expanded_and_overrides() -> None:
    benchmark = Benchmark("b", "run $CACHE $USER", env={"CACHE": "/tmp/$USER"})
    (variant,) = expand_variants(benchmark, {"USER": "me", "CACHE": "elsewhere"})

    assert variant.environment == {"CACHE": "/tmp/me"}
    assert variant.words == ("run", "/tmp/me", "me")
