"""Benchmarks as data: their variants, the metrics of their output, derived expressions."""

import pytest

from convoy.bench.benchmarks_yml import (
    Benchmark,
    ExpressionError,
    Metric,
    MetricValue,
    Variant,
    calculate,
    combinations,
    command_words,
    derive,
    expand_variables,
    fill_placeholders,
    measure,
    mpirun_processes,
    placeholders,
    read_metric,
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

    assert command_words(cmd, {}) == [
        "poprun",
        "--mpi-local-args= -x PATH -x HOME",
        "python3",
        "train.py",
        "--name",
        "a b",
    ]


def test_a_value_of_several_words_is_several_words_of_the_command() -> None:
    assert command_words("run {more} end", {"more": "--a 1"}) == ["run", "--a", "1", "end"]


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
    assert fill_placeholders(text, {"a": "1", "b": "2"}) == whole
    assert placeholders(text) == asked


def test_variables_are_filled_in_where_they_are_set() -> None:
    environment = {"HOME": "/home/me", "EMPTY": ""}

    assert expand_variables("$HOME/${HOME}x", environment) == "/home/me//home/mex"
    assert expand_variables("${HOMES}/$HOMES", environment) == "${HOMES}/$HOMES"
    assert expand_variables("[$EMPTY] 5$ $", environment) == "[] 5$ $"


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


NUMBER = r"x: *(\S+)"


def read(values: str, reduction: str = "mean", skip: int = 0, name: str = "x") -> MetricValue:
    output = "\n".join(f"so x: {value} units" for value in values.split())
    return read_metric(Metric(name, NUMBER, reduction, skip), output)


def variant(cmd: str, benchmark: Benchmark) -> Variant:
    return Variant(benchmark, benchmark.name, {"batchsize": "16"}, tuple(cmd.split()), {})


def test_the_mean_leaves_out_the_lowest_values() -> None:
    assert read("30 10 20 40") == MetricValue(25.0)  # (10 + 20 + 30 + 40) / 4
    assert read("30 10 20 40", skip=1) == MetricValue(30.0)  # (20 + 30 + 40) / 3
    assert read("30 10 20 40", skip=3) == MetricValue(40.0)


def test_the_mean_of_latencies_leaves_out_the_highest_values() -> None:
    assert read("30 10 20 40", skip=1, name="latency") == MetricValue(20.0)  # (30 + 20 + 10) / 3
    assert read("30 10 20 40", skip=3, name="latency") == MetricValue(10.0)


def test_final_takes_the_last_value_and_value_the_first() -> None:
    assert read("30 10 20", "final", skip=2) == MetricValue(20.0)
    assert read("30 10 20", "value", skip=2) == MetricValue(30.0)


def test_min_takes_the_smallest_of_all_values() -> None:
    assert read("30 10 20", "min", skip=2) == MetricValue(10.0)


@pytest.mark.parametrize("reduction", ["mean", "final", "min", "value"])
def test_not_more_values_than_are_skipped_is_missing(reduction: str) -> None:
    assert read("1 2", reduction, skip=2) == MetricValue(
        None, "2 values found, more than 2 are needed"
    )
    assert read("", reduction) == MetricValue(None, "0 values found, more than 0 are needed")
    assert read("1 2", reduction, skip=1).value is not None


@pytest.mark.parametrize("bad", ["nan", "NaN", "inf", "-inf"])
@pytest.mark.parametrize("reduction", ["mean", "final", "min", "value"])
def test_one_value_that_is_not_finite_spoils_the_metric(bad: str, reduction: str) -> None:
    assert read(f"1 {bad} 3", reduction) == MetricValue(None, "a value is not finite")


def test_a_match_that_is_no_number_is_missing_and_named() -> None:
    assert read("1 fast") == MetricValue(None, "'fast' is no number")


def test_an_expression_without_a_group_takes_its_whole_match() -> None:
    assert read_metric(Metric("x", r"\d+"), "a 4 b 6") == MetricValue(5.0)


def test_numbers_may_have_exponents_and_signs() -> None:
    assert read("1e3 -500") == MetricValue(250.0)


BOTH = Benchmark(
    "b",
    "",
    metrics={
        "throughput": Metric("throughput", r"throughput: *(.*?) samples/sec", skip=1),
        "latency": Metric("latency", r"latency: *(.*?) ms"),
    },
    derived={"second": "{latency} * {batchsize} / 1000", "double": "2 * {second}"},
)
OUTPUT = "throughput: 1 samples/sec\nlatency: 5 ms\nthroughput: 30 samples/sec\nlatency: 7.5 ms\n"


def test_a_variant_is_measured_whole() -> None:
    assert measure(variant("python3 x.py", BOTH), OUTPUT, 0) == {
        "throughput": MetricValue(30.0),
        "latency": MetricValue(6.25),
        "second": MetricValue(0.1),  # 6.25 × 16 / 1000
        "double": MetricValue(0.2),
    }


def test_throughput_and_nothing_else_counts_for_every_process_of_mpirun() -> None:
    measured = measure(variant("mpirun --np 4 --bind-to socket python3 x.py", BOTH), OUTPUT, 0)

    assert measured["throughput"] == MetricValue(120.0)
    assert measured["latency"] == MetricValue(6.25)


def test_nothing_is_measured_of_a_command_that_failed() -> None:
    measured = measure(variant("python3 x.py", BOTH), OUTPUT, 3)

    assert set(measured) == {"throughput", "latency", "second", "double"}
    assert set(measured.values()) == {MetricValue(None, "the command ended with exit code 3")}


def test_what_is_derived_from_a_missing_metric_is_missing() -> None:
    measured = measure(variant("python3 x.py", BOTH), "latency: nan ms", 0)

    assert measured["second"] == MetricValue(None, "latency is missing")
    assert measured["double"] == MetricValue(None, "second is missing")


def test_a_parameter_may_be_part_of_an_expression() -> None:
    assert derive("{a} * {b}", {"a": MetricValue(2.0)}, {"b": "8"}) == MetricValue(16.0)


@pytest.mark.parametrize(
    ("line", "processes"),
    [
        ("mpirun --np 4 python3 x.py", 4),
        ("mpirun --allow-run-as-root -np 4 --bind-to socket python3 x.py", 4),
        ("/usr/bin/mpirun -n 2 python3 x.py", 2),
        ("mpirun --np=8 python3 x.py", 8),
        ("mpirun python3 x.py", 1),
        ("mpirun --np", 1),
        ("mpirun --np {replicas} python3 x.py", 1),
        ("poprun --np 4 python3 x.py", 1),
        ("python3 x.py --np 4", 1),
        ("", 1),
    ],
)
def test_the_processes_of_mpirun_are_counted(line: str, processes: int) -> None:
    assert mpirun_processes(tuple(line.split())) == processes


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("{latency} * 1000.", 2500.0),
        ("{images} / {latency} - 1", 39.0),
        ("({images} + 4) % 7", 6.0),
        ("-{images} // 7 + 2 ** 3", -15.0 + 8.0),
        (" +1_000 ", 1000.0),
    ],
)
def test_an_expression_is_worth_what_arithmetic_says(expression: str, value: float) -> None:
    assert calculate(expression, {"latency": 2.5, "images": "100"}) == value


def test_a_negative_number_stands_in_parentheses() -> None:
    assert calculate("{a} ** 2", {"a": -3.0}) == 9.0


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("{a} / {zero}", "(1.0) / (0.0): float division by zero"),
        ("(0 - 1) ** 0.5", "math domain error"),
        ("9 ** 9 ** 9 ** 9", "math range error"),
        ("1e308 * 10", "1e308 * 10 is not finite"),
        ("{kind} + 1", "kind is SYNC, no number"),
        ("{nothing} + 1", "nothing is missing"),
        ("{lost} + 1", "lost is missing"),
        ("{odd} + 1", "odd is nan, no number"),
        ("{a} +", "'{a} +' is no arithmetic"),
        ("", "'' is no arithmetic"),
        ("{a} {a}", "is no arithmetic"),
        ("True", "is no arithmetic"),
        ("1j", "is no arithmetic"),
        ("'a' * 3", "is no arithmetic"),
        ("__import__('os')", "is no arithmetic"),
        ("a.b", "is no arithmetic"),
        ("max(1, 2)", "is no arithmetic"),
        ("1 << 3", "is no arithmetic"),
        ("[1]", "is no arithmetic"),
        ("(" * 5000 + "1" + ")" * 5000, "is no arithmetic"),
    ],
)
def test_an_expression_without_a_value_says_why(expression: str, reason: str) -> None:
    known = {"a": 1.0, "zero": 0.0, "kind": "SYNC", "lost": None, "odd": "nan"}
    with pytest.raises(ExpressionError) as error:
        calculate(expression, known)

    assert reason in str(error.value)
