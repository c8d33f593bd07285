"""The arithmetic of metrics: which values count, which are left out, when there is none."""

import pytest

from convoy.bench.definition import Benchmark, Metric, Variant
from convoy.bench.metrics import Reading, derive, measure, mpirun_processes, read_metric

NUMBER = r"x: *(\S+)"


def read(values: str, reduction: str = "mean", skip: int = 0, name: str = "x") -> Reading:
    output = "\n".join(f"so x: {value} units" for value in values.split())
    return read_metric(Metric(name, NUMBER, reduction, skip), output)


def variant(cmd: str, benchmark: Benchmark) -> Variant:
    return Variant(benchmark, benchmark.name, {"batchsize": "16"}, tuple(cmd.split()), {})


def test_the_mean_leaves_out_the_lowest_values() -> None:
    assert read("30 10 20 40") == Reading(25.0)  # (10 + 20 + 30 + 40) / 4
    assert read("30 10 20 40", skip=1) == Reading(30.0)  # (20 + 30 + 40) / 3
    assert read("30 10 20 40", skip=3) == Reading(40.0)


def test_the_mean_of_latencies_leaves_out_the_highest_values() -> None:
    assert read("30 10 20 40", skip=1, name="latency") == Reading(20.0)  # (30 + 20 + 10) / 3
    assert read("30 10 20 40", skip=3, name="latency") == Reading(10.0)


def test_final_takes_the_last_value_and_value_the_first() -> None:
    assert read("30 10 20", "final", skip=2) == Reading(20.0)
    assert read("30 10 20", "value", skip=2) == Reading(30.0)


def test_min_takes_the_smallest_of_all_values() -> None:
    assert read("30 10 20", "min", skip=2) == Reading(10.0)


@pytest.mark.parametrize("reduction", ["mean", "final", "min", "value"])
def test_not_more_values_than_are_skipped_is_missing(reduction: str) -> None:
    assert read("1 2", reduction, skip=2) == Reading(None, "2 values found, more than 2 are needed")
    assert read("", reduction) == Reading(None, "0 values found, more than 0 are needed")
    assert read("1 2", reduction, skip=1).value is not None


@pytest.mark.parametrize("bad", ["nan", "NaN", "inf", "-inf"])
@pytest.mark.parametrize("reduction", ["mean", "final", "min", "value"])
def test_one_value_that_is_not_finite_spoils_the_metric(bad: str, reduction: str) -> None:
    assert read(f"1 {bad} 3", reduction) == Reading(None, "a value is not finite")


def test_a_match_that_is_no_number_is_missing_and_named() -> None:
    assert read("1 fast") == Reading(None, "'fast' is no number")


def test_an_expression_without_a_group_takes_its_whole_match() -> None:
    assert read_metric(Metric("x", r"\d+"), "a 4 b 6") == Reading(5.0)


def test_numbers_may_have_exponents_and_signs() -> None:
    assert read("1e3 -500") == Reading(250.0)


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
        "throughput": Reading(30.0),
        "latency": Reading(6.25),
        "second": Reading(0.1),  # 6.25 × 16 / 1000
        "double": Reading(0.2),
    }


def test_throughput_and_nothing_else_counts_for_every_process_of_mpirun() -> None:
    measured = measure(variant("mpirun --np 4 --bind-to socket python3 x.py", BOTH), OUTPUT, 0)

    assert measured["throughput"] == Reading(120.0)
    assert measured["latency"] == Reading(6.25)


def test_nothing_is_measured_of_a_command_that_failed() -> None:
    measured = measure(variant("python3 x.py", BOTH), OUTPUT, 3)

    assert set(measured) == {"throughput", "latency", "second", "double"}
    assert set(measured.values()) == {Reading(None, "the command ended with exit code 3")}


def test_what_is_derived_from_a_missing_metric_is_missing() -> None:
    measured = measure(variant("python3 x.py", BOTH), "latency: nan ms", 0)

    assert measured["second"] == Reading(None, "latency is missing")
    assert measured["double"] == Reading(None, "second is missing")


def test_a_parameter_may_be_part_of_an_expression() -> None:
    assert derive("{a} * {b}", {"a": Reading(2.0)}, {"b": "8"}) == Reading(16.0)


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
