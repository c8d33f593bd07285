"""The variants of a benchmark and the metrics of its output."""

import pytest

from convoy.bench.benchmarks_yml import (
    Benchmark,
    Metric,
    MetricValue,
    Variant,
    command_words,
    compute_metrics,
    expand_variables,
    expand_variants,
    fill_placeholders,
    mpirun_processes,
    parse_metric,
    placeholders,
)

BENCHMARK_WITH_PARAMETERS = Benchmark(
    "infer",
    "mpirun --np {replicas} python3 validation.py --micro-batch-size {batchsize}",
    parameters={"replicas": ("1", "4"), "batchsize": ("8", "16")},
)


def test_variants_are_all_combinations_of_the_parameters() -> None:
    assert [variant.values for variant in expand_variants(BENCHMARK_WITH_PARAMETERS, {})] == [
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
    (only,) = expand_variants(Benchmark("train", "python3 train.py"), {})

    assert (only.name, only.values, only.words) == ("train", {}, ("python3", "train.py"))


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
        ("${a}/{a}", "${a}/1", {"a"}),  # the first is a variable of the environment
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
    (only,) = expand_variants(Benchmark("b", "train.py --data-dir ${DIR}/x"), {"DIR": "my data"})

    assert only.words == ("train.py", "--data-dir", "my data/x")


def test_the_environment_of_a_benchmark_is_expanded_and_overrides() -> None:
    benchmark = Benchmark("b", "run $CACHE $USER", env={"CACHE": "/tmp/$USER"})
    (only,) = expand_variants(benchmark, {"USER": "me", "CACHE": "elsewhere"})

    assert only.environment == {"CACHE": "/tmp/me"}
    assert only.words == ("run", "/tmp/me", "me")


def test_a_convergence_run_is_identified_by_its_suffix() -> None:
    assert Benchmark("a_pod64_conv", "x").is_convergence_run
    assert not Benchmark("a_conv_pod64", "x").is_convergence_run
    assert not Benchmark("a_convergence", "x").is_convergence_run


NUMBER = r"x: *(\S+)"


def read(values: str, reduction: str = "mean", skip: int = 0, name: str = "x") -> MetricValue:
    output = "\n".join(f"so x: {value} units" for value in values.split())
    return parse_metric(Metric(name, NUMBER, reduction, skip), output)


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
def test_a_metric_without_enough_values_is_missing(reduction: str) -> None:
    assert read("1 2", reduction, skip=2) == MetricValue(None, "found 2 values, need more than 2")
    assert read("", reduction) == MetricValue(None, "found 0 values, need more than 0")
    assert read("1 2", reduction, skip=1).value is not None


@pytest.mark.parametrize("bad", ["nan", "NaN", "inf", "-inf"])
@pytest.mark.parametrize("reduction", ["mean", "final", "min", "value"])
def test_a_value_that_is_not_finite_invalidates_the_metric(bad: str, reduction: str) -> None:
    assert read(f"1 {bad} 3", reduction) == MetricValue(None, "a value is not finite")


def test_a_match_that_is_not_a_number_is_reported() -> None:
    assert read("1 fast") == MetricValue(None, "'fast' is not a number")


def test_a_regexp_without_a_group_uses_the_whole_match() -> None:
    assert parse_metric(Metric("x", r"\d+"), "a 4 b 6") == MetricValue(5.0)


def test_numbers_may_have_exponents_and_signs() -> None:
    assert read("1e3 -500") == MetricValue(250.0)


BOTH = Benchmark(
    "b",
    "",
    metrics={
        "throughput": Metric("throughput", r"throughput: *(.*?) samples/sec", skip=1),
        "latency": Metric("latency", r"latency: *(.*?) ms"),
    },
)
OUTPUT = "throughput: 1 samples/sec\nlatency: 5 ms\nthroughput: 30 samples/sec\nlatency: 7.5 ms\n"


def test_all_metrics_of_a_variant_are_computed() -> None:
    assert compute_metrics(variant("python3 x.py", BOTH), OUTPUT, 0) == {
        "throughput": MetricValue(30.0),
        "latency": MetricValue(6.25),
    }


def test_only_throughput_is_multiplied_by_the_processes_of_mpirun() -> None:
    measured = compute_metrics(
        variant("mpirun --np 4 --bind-to socket python3 x.py", BOTH), OUTPUT, 0
    )

    assert measured["throughput"] == MetricValue(120.0)
    assert measured["latency"] == MetricValue(6.25)


def test_a_failed_command_has_no_metrics() -> None:
    measured = compute_metrics(variant("python3 x.py", BOTH), OUTPUT, 3)

    assert set(measured) == {"throughput", "latency"}
    assert set(measured.values()) == {MetricValue(None, "the command exited with code 3")}


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
