"""Whole commands: what their fronts ask for, with everything that was dropped or is wrong."""

from typing import Any

import option_values
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from readme_commands import ROWS, Row

from convoy.config.commands.programs import identify
from convoy.config.commands.reading import Reading, read_command
from convoy.errors import ConfigError

FRONTS = list(dict.fromkeys(row.front for row in ROWS if row.start != "python3"))
# In the order of the fronts: hosts, instances, replicas, devices of a replica, and the rest.
EIGHT = {"instances": 8, "replicas": 16, "devices_per_replica": 1, "verbosity": 1}
FOUR_HOSTS = {"hosts": 4, "verbosity": 1, "executable_cache_path": "exec_cache"}
ASKED: list[dict[str, Any]] = [
    {},
    EIGHT,
    {"instances": 4, "replicas": 4, "verbosity": 1},  # its --ipus-per-replica has no value
    FOUR_HOSTS | {"instances": 16, "replicas": 16, "devices_per_replica": 4},
    FOUR_HOSTS | {"instances": 32, "replicas": 64, "devices_per_replica": 1},
    {"instances": 4, "replicas": 4, "devices_per_replica": 4},
    {"instances": 8, "replicas": 8, "devices_per_replica": 2},
    {"instances": 4, "replicas": 4, "devices_per_replica": 4},
    {"instances": 4, "replicas": 4, "devices_per_replica": 1},
    {"hosts": 2, "instances": 2},
    {"profile_dir": "profile_dir"},
    {"instances": 8, "replicas": 16},
]
# The words of each front that are dropped, in order.
EXPORTED = ["-x LD_LIBRARY_PATH", "-x PATH"]
SPREAD = [
    *("TF_CPP_VMODULE", "IPUOF_VIPU_API_TIMEOUT", "--numa-aware=yes", "--vipu-server-host=host2"),
    *("--vipu-partition=p64", "--reset-partition=no", "--update-partition=no", "--tag-output"),
    *("--mca btl_tcp_if_include SUBNET",),
]
DROPPED: list[list[str]] = [
    [],
    ["--numa-aware 1", "--tag-output"],
    ["--numa-aware 1", "--tag-output"],
    [*SPREAD, *EXPORTED, "-x PYTHONPATH"],
    [*SPREAD, "-x LD_LIBRARY_PATH", "-x PYTHONPATH"],
    ["--numa-aware=yes"],
    ["--numa-aware 1"],
    ["--numa-aware 1"],
    ["--numa-aware 1"],
    ["--tag-output", "-bind-to none", "-map-by slot", *EXPORTED],
    [],
    [],
]


def asked(reading: Reading) -> dict[str, Any]:
    return {name: setting.value for name, setting in reading.launch.given.items()}


def read(line: str) -> Reading:
    return read_command(line.split(), {})


def told(reading: Reading) -> list[str]:
    return [str(problem) for problem in reading.problems]


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.start != "python3"], ids=lambda r: r.line
)
def test_every_front_of_the_readmes_asks_for_what_it_says(row: Row) -> None:
    reading = read_command([row.line], {})
    here = FRONTS.index(row.front)
    lacks_a_value = "--ipus-per-replica --mpi" in row.front

    assert asked(reading) == ASKED[here]
    assert [one.word for one in reading.launch.dropped] == DROPPED[here]
    assert all(one.reason for one in reading.launch.dropped)
    assert reading.launch.environment == {}
    assert told(reading) == lacks_a_value * [
        "--ipus-per-replica needs a value, as in `--ipus-per-replica N`"
    ]


def test_the_tables_of_this_file_are_complete() -> None:
    assert len(ROWS) == 54
    assert len(FRONTS) == len(ASKED) == len(DROPPED)


def test_the_line_without_a_program_is_refused() -> None:
    (row,) = [row for row in ROWS if row.start == "python3"]

    with pytest.raises(ConfigError, match="python3 is followed by --config"):
        read_command([row.line], {})


def test_a_launchers_value_of_a_variable_is_the_nearer_one() -> None:
    reading = read("A=1 B=1 mpirun -np 2 -x A=2 python3 train.py")

    assert reading.launch.environment == {"A": "2", "B": "1"}


def test_flags_of_the_interpreter_are_dropped() -> None:
    reading = read("python3 -u -W ignore train.py")

    assert [one.word for one in reading.launch.dropped] == ["-u", "-W ignore"]


def test_a_shell_may_tell_how_many_processes_there_are() -> None:
    around = {"TF_CONFIG": "{", "POPDIST_NUM_TOTAL_REPLICAS": "4", "POPLAR_ENGINE_OPTIONS": "{}"}
    reading = read_command(["train.py"], around)

    assert asked(reading) == {"replicas": 4} and told(reading) == []
    assert reading.launch.dropped == ()


def test_workers_of_a_shell_count_when_they_are_asked_for() -> None:
    around = {"TF_CONFIG": '{"cluster":{"worker":["a:1","b:1"]}}'}

    assert asked(read_command(["train.py", "--distributed"], around))["instances"] == 2


def test_launcher_and_variables_have_to_agree() -> None:
    cluster = 'TF_CONFIG={"cluster":{"worker":["a:1","b:1"]}}'
    same = read_command(["mpirun", "-H", "a,b", "-x", cluster, "train.py"], {})
    other = read_command([cluster, "mpirun", "-H", "a,b,c", "train.py"], {})

    assert told(same) == []
    assert {setting.source for setting in same.launch.given.values()} == {"mpirun"}
    assert told(other) == [
        "hosts: mpirun says 3 and environment TF_CONFIG 2; make them agree",
        "instances: mpirun says 3 and environment TF_CONFIG 2; make them agree",
    ]


def test_problems_of_launchers_and_variables_come_together() -> None:
    reading = read("TF_CONFIG= poprun --num-replicas x --nope python3 train.py")

    assert [line.split()[0] for line in told(reading)] == ["unknown", "--num-replicas", "TF_CONFIG"]


def test_a_quoted_text_finds_its_variables_around_the_command() -> None:
    reading = read_command(["python3 train.py --data-dir $HERE/x"], {"HERE": "/a"})

    assert reading.command.words == ("--data-dir", "/a/x")


PIECES = sorted({word for row in ROWS for word in row.line.split()})


@option_values.LIGHT
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=12), st.booleans())
@example(["poprun", "--mpi-local-args='", "--host", "a[0-9", "train.py"], False)
@example(["mpirun", "-x", "TF_CONFIG={}", "-H", "[", "python3", "-m", "."], False)
def test_whatever_is_typed_ends_in_a_reading_or_one_line(words: list[str], is_text: bool) -> None:
    try:
        reading = read_command([" ".join(words)] if is_text else words, {})
        lines = told(reading)
        identify(reading.command, {})
    except ConfigError as refused:
        lines = [str(refused)]

    assert all(line.isprintable() for line in lines)
