"""Variables ask for something, are dropped with a reason, or are handed to the run."""

import json
from typing import Any

import pytest

from convoy.dialects.launch_request import read_environment

WORKERS = {"cluster": {"worker": ["host1:3636", "host2:3636"]}}


def heard(**variables: str) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """What variables ask for, what the run gets, what is dropped."""
    request = read_environment(variables)
    assert request.problems == []
    given = {name: setting.value for name, setting in request.settings.items()}
    return given, request.environment, {one.word: one.reason for one in request.dropped}


def problems(**variables: str) -> list[str]:
    return [str(problem) for problem in read_environment(variables).problems]


def workers(*addresses: str, **more: Any) -> str:
    return json.dumps({"cluster": {"worker": list(addresses)}, **more})


@pytest.mark.parametrize(
    ("variables", "given"),
    [
        ({"TF_CONFIG": workers("a:1", "b:1")}, {"hosts": 2, "instances": 2}),
        ({"TF_CONFIG": workers("a:1", "a:2", "b:1")}, {"hosts": 2, "instances": 3}),
        ({"TF_CONFIG": workers("a", "b")}, {"hosts": 2, "instances": 2}),
        ({"POPDIST_NUM_TOTAL_REPLICAS": "16"}, {"replicas": 16}),
        ({"POPDIST_NUM_IPUS_PER_REPLICA": "4"}, {"devices_per_replica": 4}),
        (
            {"POPDIST_NUM_LOCAL_REPLICAS": "2", "POPDIST_NUM_TOTAL_REPLICAS": "16"},
            {"replicas": 16, "instances": 8},
        ),
        ({"POPDIST_EXECUTABLE_CACHE_PATH": "a/b"}, {"executable_cache_path": "a/b"}),
        ({"GC_PROFILE_LOG_DIR": "a/b"}, {"profile_dir": "a/b"}),
        (
            {"TF_POPLAR_FLAGS": "--executable_cache_path=a --use_synthetic_data"},
            {"executable_cache_path": "a", "synthetic_data": True},
        ),
        ({"TF_POPLAR_FLAGS": "--executable_cache_path 'a b'"}, {"executable_cache_path": "a b"}),
        ({"TF_POPLAR_FLAGS": "--use_synthetic_data=true"}, {"synthetic_data": True}),
        (
            {"TF_POPLAR_FLAGS": "--use_synthetic_data --executable_cache_path=a"},
            {"synthetic_data": True, "executable_cache_path": "a"},
        ),
        ({"TF_POPLAR_FLAGS": ""}, {}),
    ],
)
def test_a_variable_asks_for_what_it_means(
    variables: dict[str, str], given: dict[str, Any]
) -> None:
    assert heard(**variables) == (given, {}, {})


def test_every_value_keeps_the_name_of_its_variable() -> None:
    request = read_environment(
        {"POPDIST_NUM_TOTAL_REPLICAS": "4", "POPDIST_NUM_LOCAL_REPLICAS": "2"}
    )

    assert request.settings["replicas"].source == "environment POPDIST_NUM_TOTAL_REPLICAS"
    assert request.settings["instances"].source == "environment POPDIST_NUM_LOCAL_REPLICAS"


@pytest.mark.parametrize(
    "name", ["DATA_DIR", "DATASETS_DIR", "WANDB_MODE", "OMP_NUM_THREADS", "PARTITIONS", "TF_X"]
)
def test_what_nothing_here_reads_is_handed_to_the_run(name: str) -> None:
    assert heard(**{name: "a = b"}) == ({}, {name: "a = b"}, {})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("POPLAR_ENGINE_OPTIONS", "the device runtime it speaks to is not used"),
        ("POPLAR_RUNTIME_OPTIONS", "the device runtime it speaks to is not used"),
        ("POPLAR_TARGET_OPTIONS", "the device runtime it speaks to is not used"),
        ("POPLAR_LOG_LEVEL", "the device runtime it speaks to is not used"),
        ("GCL_OPTIONS", "the device runtime it speaks to is not used"),
        ("VIPU_SERVER", "there is no service that hands out devices"),
        ("PARTITION", "there is no service that hands out devices"),
        ("IPUOF_VIPU_API_TIMEOUT", "there is no service that hands out devices"),
        ("TF_CPP_VMODULE", "TensorFlow, whose log it sets, is not used"),
        ("OMPI_COMM_WORLD_RANK", "a run numbers its own processes"),
        ("OMPI_MCA_btl", "processes find their own way to each other, without MPI"),
        ("POPDIST_REPLICA_INDEX_OFFSET", "a run numbers its own processes"),
        ("POPDIST_LOCAL_INSTANCE_INDEX", "a run numbers its own processes"),
        (
            "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE",
            "instances have equally many replicas either way",
        ),
    ],
)
def test_what_has_no_counterpart_is_dropped_with_its_reason(name: str, reason: str) -> None:
    assert heard(**{name: "1"}) == ({}, {}, {name: reason})


def test_the_place_of_one_worker_and_other_jobs_are_dropped() -> None:
    config = {"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "worker", "index": 0}}

    assert heard(TF_CONFIG=json.dumps(config))[2] == {
        "TF_CONFIG cluster.ps": "only workers train",
        "TF_CONFIG task.index": "a run numbers its own processes",
    }


def test_flags_of_the_old_runtime_are_dropped_one_by_one() -> None:
    flags = "--synthetic_data_initializer=random --a 3 --use_synthetic_data=false --b c"

    assert list(heard(TF_POPLAR_FLAGS=flags)[2]) == [
        "TF_POPLAR_FLAGS --synthetic_data_initializer=random",
        "TF_POPLAR_FLAGS --a 3",
        "TF_POPLAR_FLAGS --use_synthetic_data=false",
        "TF_POPLAR_FLAGS --b c",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is not JSON: ''"),
        ("{", "is not JSON: '{'"),
        ("[" * 100_000, "is not JSON: '[["),
        ("[]", "names no workers; it should be like {"),
        ("{}", "names no workers"),
        ('{"cluster": []}', "names no workers"),
        ('{"cluster": {}}', "names no workers"),
        ('{"cluster": {"worker": []}}', "names no workers"),
        ('{"cluster": {"worker": "a:1"}}', "names no workers"),
        ('{"cluster": {"worker": ["a:1", 2]}}', "names no workers"),
        ('{"cluster": {"worker": [""]}}', "names no workers"),
    ],
)
def test_a_cluster_without_workers_is_a_problem(text: str, told: str) -> None:
    (problem,) = problems(TF_CONFIG=text)

    assert problem.startswith(f"TF_CONFIG {told}")


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"POPDIST_NUM_TOTAL_REPLICAS": "x"}, "POPDIST_NUM_TOTAL_REPLICAS expects a whole number"),
        ({"POPDIST_NUM_TOTAL_REPLICAS": "0"}, "POPDIST_NUM_TOTAL_REPLICAS must be at least 1"),
        ({"POPDIST_NUM_TOTAL_REPLICAS": ""}, "POPDIST_NUM_TOTAL_REPLICAS needs a value"),
        (
            {"POPDIST_NUM_LOCAL_REPLICAS": "3", "POPDIST_NUM_TOTAL_REPLICAS": "4"},
            "POPDIST_NUM_LOCAL_REPLICAS 3 must divide POPDIST_NUM_TOTAL_REPLICAS, which is 4",
        ),
        (
            {"POPDIST_NUM_LOCAL_REPLICAS": "3"},
            "POPDIST_NUM_LOCAL_REPLICAS 3 must divide POPDIST_NUM_TOTAL_REPLICAS, which is not set",
        ),
        ({"GC_PROFILE_LOG_DIR": ""}, "GC_PROFILE_LOG_DIR needs a value"),
        ({"TF_POPLAR_FLAGS": "--executable_cache_path"}, "TF_POPLAR_FLAGS needs a value"),
        ({"TF_POPLAR_FLAGS": "'"}, "TF_POPLAR_FLAGS cannot be split: no closing quotation"),
        (
            {
                "POPDIST_EXECUTABLE_CACHE_PATH": "a",
                "TF_POPLAR_FLAGS": "--executable_cache_path=b",
            },
            "executable cache path: environment POPDIST_EXECUTABLE_CACHE_PATH says a and "
            "environment TF_POPLAR_FLAGS b; make them agree",
        ),
        (
            {
                "TF_CONFIG": workers("a:1"),
                "POPDIST_NUM_LOCAL_REPLICAS": "1",
                "POPDIST_NUM_TOTAL_REPLICAS": "2",
            },
            "instances: environment TF_CONFIG says 1 and environment POPDIST_NUM_LOCAL_REPLICAS 2",
        ),
    ],
)
def test_a_wrong_value_is_a_problem_by_name(variables: dict[str, str], told: str) -> None:
    (problem,) = problems(**variables)

    assert problem.startswith(told)
    assert problem.isprintable()


def test_all_problems_of_all_variables_come_together() -> None:
    told = problems(TF_CONFIG="", POPDIST_NUM_TOTAL_REPLICAS="x", GC_PROFILE_LOG_DIR="")

    assert len(told) == 3
