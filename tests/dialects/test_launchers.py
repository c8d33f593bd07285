"""Launchers: where their arguments end, what they request, what is dropped and why."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from convoy.dialects.launchers import (
    LAUNCHERS,
    MPIRUN,
    POPRUN,
    Launcher,
    LauncherCall,
    file_name,
    parse_launcher_call,
    read_launchers,
    starts_program,
)


def read_settings(*lines: str) -> tuple[dict[str, Any], dict[str, str], list[tuple[str, str]]]:
    """The settings of launchers, the variables they set, and the dropped options."""
    request = read_launchers([call(line) for line in lines])
    assert request.problems == []
    values = {name: setting.value for name, setting in request.settings.items()}
    dropped = [(word.word, word.reason) for word in request.dropped]
    return values, request.environment, dropped


def call(line: str) -> LauncherCall:
    name, *words = shlex.split(line)
    return parse_launcher_call(file_name(name), words)


def problems(*lines: str) -> list[str]:
    return [str(problem) for problem in read_launchers([call(line) for line in lines]).problems]


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("poprun", {}),
        ("poprun --num-instances 8 --num-replicas=16", {"instances": 8, "replicas": 16}),
        ("poprun --num-replicas 4", {"replicas": 4}),
        ("poprun --num-replicas 4 --num-replicas 8", {"replicas": 8}),
        ("poprun --ipus-per-replica 4", {"devices_per_replica": 4}),
        ("poprun --host a,b,c", {"hosts": 3}),
        ("poprun -H host[0-3]", {"hosts": 4}),
        ("poprun --executable-cache-path=a/b", {"executable_cache_path": "a/b"}),
        ("poprun -v", {"verbosity": 1}),
        ("poprun -vv", {"verbosity": 2}),
        ("poprun --vv", {"verbosity": 2}),
        ("poprun --mpi-global-args=-q", {"verbosity": -1}),
        ("mpirun -np 4", {"instances": 4}),
        ("mpiexec --np=4", {"instances": 4}),
        ("mpirun -n 4 -q", {"instances": 4, "verbosity": -1}),
        ("mpirun -H a,b", {"hosts": 2, "instances": 2}),
        ("mpirun --host a:4,b:4", {"hosts": 2, "instances": 8}),
        ("mpirun -H a:4,b:4 -np 6", {"hosts": 2, "instances": 6}),
        ("mpirun -np 6 -H a:4,b:4", {"hosts": 2, "instances": 6}),
        ("mpirun -H a,b,c -H a,b", {"hosts": 2, "instances": 2}),
        ("gc-profile -d D --", {"profile_dir": "D"}),
    ],
)
def test_a_launcher_requests_counts_and_hosts(line: str, settings: dict[str, Any]) -> None:
    assert read_settings(line) == (settings, {}, [])


def test_the_hosts_of_a_file_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("a slots=2\nb slots=2\n")

    assert read_settings(f"mpirun --hostfile {path}")[0] == {"hosts": 2, "instances": 4}
    assert read_settings(f"poprun --hostfile {path}")[0] == {"hosts": 2}


def test_every_value_keeps_the_name_of_its_launcher() -> None:
    request = read_launchers([call("gc-profile -d D"), call("mpiexec -np 2")])

    assert {setting.source for setting in request.settings.values()} == {"gc-profile", "mpirun"}


def test_variables_are_exported_by_mpirun_and_through_poprun() -> None:
    local_args, global_args = "-x A=1 -x 'B=two = 2' -x C=--d=e", "--tag-output -x F="
    exported = {"A": "1", "B": "two = 2", "C": "--d=e", "F": ""}

    assert read_settings(f"mpirun -np 2 {local_args} -x F=")[1] == exported
    line = f'poprun --mpi-local-args="{local_args}" --mpi-global-args "{global_args}"'
    assert read_settings(line)[1] == exported


def test_a_variable_without_a_value_is_inherited() -> None:
    reason = "the run inherits every variable of this shell"

    assert read_settings("mpirun -np 2 -x PATH")[1:] == ({}, [("-x PATH", reason)])
    assert read_settings("poprun --mpi-local-args='-x PATH'")[1:] == ({}, [("-x PATH", reason)])


@pytest.mark.parametrize("table", [POPRUN, MPIRUN], ids=lambda table: table.name)
def test_every_option_without_a_counterpart_is_dropped_with_its_reason(table: Any) -> None:
    count_option = "--num-replicas 1" if table is POPRUN else "-np 1"
    for option in table.options:
        if option.dropped:
            words = " ".join([option.spellings[0], *["1"] * option.num_values])
            assert read_settings(f"{table.name} {count_option} {words}")[2] == [
                (words, option.dropped)
            ]


@pytest.mark.parametrize(
    ("line", "dropped"),
    [
        ("poprun --numa-aware=yes", [("--numa-aware=yes", "pinned to its own cores")]),
        ("poprun --vipu-partition p", [("--vipu-partition p", "no device allocation service")]),
        (
            "poprun --only-output-from-instance 0",
            [("--only-output-from-instance 0", "rank 0 prints")],
        ),
        ("mpirun -np 1 -mca a b", [("-mca a b", "MPI is not used")]),
        ("poprun --mpi-global-args='--mca a b'", [("--mca a b", "MPI is not used")]),
        (
            "poprun --mpi-global-args='-np 4 -H a'",
            [("-np 4", "poprun's own options"), ("-H a", "poprun's own options")],
        ),
        ("mpirun", [("mpirun", "sets neither processes nor hosts")]),
        ("mpirun -v -x A=1", [("mpirun", "sets neither processes nor hosts")]),
        ("gc-profile --", [("gc-profile", "writes its own profile")]),
        ("nohup", [("nohup", "before convoy: `nohup convoy run")]),
        ("time -p -o FILE", [("time -p -o FILE", "reports its own time")]),
        ("/usr/bin/time", [("time", "reports its own time")]),
    ],
)
def test_options_without_effect_are_reported_as_typed(
    line: str, dropped: list[tuple[str, str]]
) -> None:
    reported = read_settings(line)[2]

    assert [word for word, _ in reported] == [word for word, _ in dropped]
    assert all(part in reason for (_, reason), (_, part) in zip(reported, dropped, strict=True))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("poprun --num-instances many", "--num-instances expects an integer, got 'many'"),
        ("poprun --num-replicas 0", "--num-replicas must be at least 1, got 0"),
        ("poprun --num-replicas=65537", "--num-replicas must be at most 65536, got 65537"),
        ("poprun --num-replicas=", "--num-replicas needs a value"),
        ("poprun --ipus-per-replica 1.5", "--ipus-per-replica expects an integer, got '1.5'"),
        ("poprun --host ,", "--host lists no host, got ','"),
        ("mpirun -np=-2", "-np must be at least 1, got -2"),
        ("mpirun --hostfile /nowhere", "--hostfile cannot be read: configuration file /nowhere "),
        ("mpirun -np 2 -x =1", "-x needs NAME or NAME=VALUE, got '=1'"),
        ("mpirun -np 2 -x 'a b=1'", "-x needs NAME or NAME=VALUE, got 'a b=1'"),
        ('poprun --mpi-local-args="-x \'A"', "--mpi-local-args cannot be split: no closing quot"),
        (
            "poprun --mpi-local-args='--tag-output A=1 b'",
            "--mpi-local-args contains the unexpected",
        ),
        ("poprun --mpi-local-args='--tag-outputs'", "unknown option --tag-outputs of mpirun; did"),
        ("poprun --mpi-local-args='-x'", "-x needs a value, as in `-x VALUE`"),
        ("poprun --mpi-local-args='-np'", "-np needs a value"),
        ("gc-profile -d --", "-d needs a value, as in `-d VALUE`"),
    ],
)
def test_an_invalid_value_is_reported_as_typed(line: str, message: str) -> None:
    (problem,) = problems(line)

    assert problem.startswith(message)


def test_an_empty_argument_for_mpirun_requests_nothing() -> None:
    assert read_settings('poprun --mpi-local-args=""') == ({}, {}, [])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "poprun --num-replicas 10 --num-instances 4",
            "--num-replicas 10 is not a multiple of --num-instances 4; use --num-replicas 12",
        ),
        (
            "poprun --num-instances 4 --num-replicas=2",
            "--num-replicas 2 is not a multiple of --num-instances 4; use --num-replicas 4",
        ),
        (
            "poprun --num-instances 4",
            "--num-replicas (not given, so 1) is not a multiple of --num-instances 4; "
            "use --num-replicas 4",
        ),
        (
            "poprun --num-instances 4 --num-replicas 4 --host a,b,c",
            "--num-instances 4 cannot be divided evenly among 3 hosts; use --num-instances 6",
        ),
    ],
)
def test_uneven_splits_are_refused(line: str, message: str) -> None:
    assert problems(line) == [message]


def test_hosts_without_instances_do_not_conflict() -> None:
    assert read_settings("poprun --host a,b --num-replicas 4")[0] == {"hosts": 2, "replicas": 4}


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (["poprun", "mpirun -np 2"], "poprun and mpirun"),
        (["mpiexec -np 2", "nohup", "poprun"], "mpiexec and poprun"),
        (["poprun", "poprun"], "poprun and poprun"),
    ],
)
def test_nested_launchers_are_refused(lines: list[str], names: str) -> None:
    assert problems(*lines) == [f"{names} cannot be nested; leave out all but one"]


def test_wrappers_around_a_launcher_are_accepted() -> None:
    assert problems("time", "nohup", "gc-profile -d D", "poprun") == []


def test_all_problems_of_all_launchers_are_reported_together() -> None:
    lines = problems("gc-profile --nope", "poprun --num-instances x --num-replicas 0 --host ,")

    assert [line.split()[0] for line in lines] == [
        "unknown",
        "--num-instances",
        "--num-replicas",
        "--host",
    ]


# The documented options of the reference applications, and the common ones of mpirun.
DOCUMENTED = {
    "poprun": "--num-instances --num-replicas --ipus-per-replica --numa-aware --host "
    "--mpi-global-args --mpi-local-args --executable-cache-path --only-output-from-instance "
    "--offline-mode --vipu-server-host --vipu-server-port --vipu-server-timeout --vipu-partition "
    "--vipu-cluster --vipu-allocation --update-partition --reset-partition --remove-partition "
    "--num-ilds --sync-type --print-topology -v -vv --vv",
    "mpirun": "-np --np -n -H --host --hostfile -bind-to --bind-to -map-by --map-by -x "
    "--tag-output --mca --allow-run-as-root",
    "gc-profile": "-d",
}


def parsed_options(line: str, name: str = "poprun") -> tuple[list[tuple[str, ...]], str]:
    """The options with their values, and the rest of the line."""
    words = line.split()
    launcher_call = parse_launcher_call(name, words)
    assert launcher_call.problems == ()
    rest = words[len(launcher_call.words) :]
    return [occurrence.words for occurrence in launcher_call.options], " ".join(rest)


def launcher_problems(words: list[str], name: str = "poprun") -> list[str]:
    return [str(problem) for problem in parse_launcher_call(name, words).problems]


def test_every_documented_spelling_is_known() -> None:
    documented = [
        (name, spelling) for name, line in DOCUMENTED.items() for spelling in line.split()
    ]

    assert [pair for pair in documented if LAUNCHERS[pair[0]].find(pair[1]) is None] == []


@pytest.mark.parametrize("table", LAUNCHERS.values(), ids=LAUNCHERS)
def test_every_option_sets_a_value_or_is_dropped_with_a_reason(table: Launcher) -> None:
    for option in table.options:
        assert not (option.setting and option.dropped)
        assert option.setting or option.dropped or table.dropped
        assert all(table.find(spelling) is option for spelling in option.spellings)


@pytest.mark.parametrize(
    ("line", "options", "rest"),
    [
        ("-v --num-instances 2 python3 a.py", [("-v",), ("--num-instances", "2")], "python3 a.py"),
        ("--num-instances=2 a.py -v", [("--num-instances=2",)], "a.py -v"),
        ("--num-instances 2 -- -x", [("--num-instances", "2")], "-x"),
        ("python3 -v", [], "python3 -v"),
        ("", [], ""),
        ("--mpi-local-args --tag-output a.py", [("--mpi-local-args", "--tag-output")], "a.py"),
        ("--offline-mode a.py", [("--offline-mode",)], "a.py"),
        ("--offline-mode A=1", [("--offline-mode",)], "A=1"),
        ("--offline-mode -v A=1", [("--offline-mode",), ("-v",)], "A=1"),
        ("--offline-mode on A=1", [("--offline-mode", "on")], "A=1"),
        ("--offline-mode=1 A=1", [("--offline-mode=1",)], "A=1"),
    ],
)
def test_the_arguments_of_poprun_end_before_the_program(
    line: str, options: list[tuple[str, ...]], rest: str
) -> None:
    assert parsed_options(line) == (options, rest)


@pytest.mark.parametrize(
    ("line", "options", "rest"),
    [
        ("-np 2 a.py", [("-np", "2")], "a.py"),
        ("--np 2 a.py", [("--np", "2")], "a.py"),
        ("-bind-to none --bind-to core x", [("-bind-to", "none"), ("--bind-to", "core")], "x"),
        ("-mca btl tcp --mca a b env", [("-mca", "btl", "tcp"), ("--mca", "a", "b")], "env"),
        ("-x A=--b=c -x B x", [("-x", "A=--b=c"), ("-x", "B")], "x"),
        ("-H a,b -tag-output x", [("-H", "a,b"), ("-tag-output",)], "x"),
    ],
)
def test_mpirun_accepts_one_dash_or_two(
    line: str, options: list[tuple[str, ...]], rest: str
) -> None:
    assert parsed_options(line, "mpirun") == (options, rest)


@pytest.mark.parametrize("spelling", ["-num-instances", "-host", "num-instances", "--v"])
def test_poprun_is_strict_about_dashes(spelling: str) -> None:
    assert POPRUN.find(spelling) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--ipus-per-replica -v a.py", "--ipus-per-replica needs a value, as in `--ipus-per-repl"),
        ("--ipus-per-replica python3 a.py", "--ipus-per-replica needs a value"),
        ("--ipus-per-replica a.py", "--ipus-per-replica needs a value"),
        ("--ipus-per-replica", "--ipus-per-replica needs a value"),
        ("--mpi-local-args --num-instances=2 a.py", "--mpi-local-args needs a value, as in `--mp"),
        ("--host mpirun -np 2 a.py", "--host needs a value, as in `--host VALUE`"),
        ("-v=1 a.py", "-v takes no value"),
        ("--num-instance 3 a.py", "unknown option --num-instance of poprun; did you mean --num-i"),
        ("--qqq=3 a.py", "unknown option --qqq of poprun; leave it out"),
    ],
)
def test_an_invalid_argument_is_reported_as_typed(line: str, message: str) -> None:
    (problem,) = launcher_problems(line.split())

    assert problem.startswith(message)


def test_an_option_needs_the_right_number_of_values() -> None:
    assert launcher_problems(["--mca", "btl"], "mpirun") == [
        "--mca needs 2 values, as in `--mca VALUE VALUE`"
    ]


def test_all_invalid_options_of_a_launcher_are_reported_together() -> None:
    line = "--nope a b --ipus-per-replica --num-replicas --what -v=2 python3 --nothing"

    assert [text.partition(";")[0] for text in launcher_problems(line.split())] == [
        "unknown option --nope of poprun",
        "--ipus-per-replica needs a value, as in `--ipus-per-replica N`",
        "--num-replicas needs a value, as in `--num-replicas N`",
        "unknown option --what of poprun",
        "-v takes no value",
    ]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("python3", True),
        ("/usr/bin/python3.9", True),
        ("train.py", True),
        ("./a/b.py", True),
        ("mpirun", True),
        ("host1", False),
        ("A=1", False),
        ("python3x", False),
    ],
)
def test_the_word_that_starts_a_program_is_recognized(word: str, expected: bool) -> None:
    assert starts_program(word) is expected
