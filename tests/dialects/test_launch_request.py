"""Environment variables are parsed, dropped with a reason, or passed to the run."""

import json
from typing import Any

import pytest

from convoy.dialects.launch_request import read_environment

WORKERS = {"cluster": {"worker": ["host1:3636", "host2:3636"]}}


def read_settings(**variables: str) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """The settings, the environment of the run, and the dropped variables."""
    request = read_environment(variables)
    assert request.problems == []
    settings = {name: setting.value for name, setting in request.settings.items()}
    return settings, request.environment, {word.word: word.reason for word in request.dropped}


def problems(**variables: str) -> list[str]:
    return [str(problem) for problem in read_environment(variables).problems]


def workers(*addresses: str, **extra: Any) -> str:
    return json.dumps({"cluster": {"worker": list(addresses)}, **extra})


@pytest.mark.parametrize(
    ("variables", "settings"),
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
def test_a_variable_sets_its_request(variables: dict[str, str], settings: dict[str, Any]) -> None:
    assert read_settings(**variables) == (settings, {}, {})


def test_every_value_keeps_the_name_of_its_variable() -> None:
    request = read_environment(
        {"POPDIST_NUM_TOTAL_REPLICAS": "4", "POPDIST_NUM_LOCAL_REPLICAS": "2"}
    )

    assert request.settings["replicas"].source == "environment POPDIST_NUM_TOTAL_REPLICAS"
    assert request.settings["instances"].source == "environment POPDIST_NUM_LOCAL_REPLICAS"


@pytest.mark.parametrize(
    "name", ["DATA_DIR", "DATASETS_DIR", "WANDB_MODE", "OMP_NUM_THREADS", "PARTITIONS", "TF_X"]
)
def test_other_variables_are_passed_to_the_run(name: str) -> None:
    assert read_settings(**{name: "a = b"}) == ({}, {name: "a = b"}, {})


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("POPLAR_ENGINE_OPTIONS", "it configures a device runtime that is not used"),
        ("POPLAR_RUNTIME_OPTIONS", "it configures a device runtime that is not used"),
        ("POPLAR_TARGET_OPTIONS", "it configures a device runtime that is not used"),
        ("POPLAR_LOG_LEVEL", "it configures a device runtime that is not used"),
        ("GCL_OPTIONS", "it configures a device runtime that is not used"),
        ("VIPU_SERVER", "there is no device allocation service"),
        ("PARTITION", "there is no device allocation service"),
        ("IPUOF_VIPU_API_TIMEOUT", "there is no device allocation service"),
        ("TF_CPP_VMODULE", "it configures the log of TensorFlow, which is not used"),
        ("OMPI_COMM_WORLD_RANK", "convoy assigns the ranks"),
        ("OMPI_MCA_btl", "MPI is not used"),
        ("POPDIST_REPLICA_INDEX_OFFSET", "convoy assigns the ranks"),
        ("POPDIST_LOCAL_INSTANCE_INDEX", "convoy assigns the ranks"),
        (
            "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE",
            "all instances have the same number of replicas",
        ),
    ],
)
def test_variables_without_a_counterpart_are_dropped_with_a_reason(name: str, reason: str) -> None:
    assert read_settings(**{name: "1"}) == ({}, {}, {name: reason})


def test_the_task_index_and_other_jobs_are_dropped() -> None:
    config = {"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"type": "worker", "index": 0}}

    assert read_settings(TF_CONFIG=json.dumps(config))[2] == {
        "TF_CONFIG cluster.ps": "only workers train",
        "TF_CONFIG task.index": "convoy assigns the ranks",
    }


def test_unused_flags_of_the_runtime_are_dropped_one_by_one() -> None:
    flags = "--synthetic_data_initializer=random --a 3 --use_synthetic_data=false --b c"

    assert list(read_settings(TF_POPLAR_FLAGS=flags)[2]) == [
        "TF_POPLAR_FLAGS --synthetic_data_initializer=random",
        "TF_POPLAR_FLAGS --a 3",
        "TF_POPLAR_FLAGS --use_synthetic_data=false",
        "TF_POPLAR_FLAGS --b c",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON: ''"),
        ("{", "is not JSON: '{'"),
        ("[" * 100_000, "is not JSON: '[["),
        ("[]", "lists no workers; it should look like {"),
        ("{}", "lists no workers"),
        ('{"cluster": []}', "lists no workers"),
        ('{"cluster": {}}', "lists no workers"),
        ('{"cluster": {"worker": []}}', "lists no workers"),
        ('{"cluster": {"worker": "a:1"}}', "lists no workers"),
        ('{"cluster": {"worker": ["a:1", 2]}}', "lists no workers"),
        ('{"cluster": {"worker": [""]}}', "lists no workers"),
    ],
)
def test_a_cluster_without_workers_is_refused(text: str, message: str) -> None:
    (problem,) = problems(TF_CONFIG=text)

    assert problem.startswith(f"TF_CONFIG {message}")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"POPDIST_NUM_TOTAL_REPLICAS": "x"}, "POPDIST_NUM_TOTAL_REPLICAS expects an integer"),
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
            "executable cache path: environment POPDIST_EXECUTABLE_CACHE_PATH sets a and "
            "environment TF_POPLAR_FLAGS sets b; set both to the same value",
        ),
        (
            {
                "TF_CONFIG": workers("a:1"),
                "POPDIST_NUM_LOCAL_REPLICAS": "1",
                "POPDIST_NUM_TOTAL_REPLICAS": "2",
            },
            "instances: environment TF_CONFIG sets 1 and "
            "environment POPDIST_NUM_LOCAL_REPLICAS sets 2",
        ),
    ],
)
def test_an_invalid_value_is_reported_by_name(variables: dict[str, str], message: str) -> None:
    (problem,) = problems(**variables)

    assert problem.startswith(message)
    assert problem.isprintable()


def test_all_problems_of_all_variables_are_reported_together() -> None:
    message = problems(TF_CONFIG="", POPDIST_NUM_TOTAL_REPLICAS="x", GC_PROFILE_LOG_DIR="")

    assert len(message) == 3
