"""Where the words of a launcher end, and what is wrong with them."""

import pytest

from convoy.config.commands.launcher_tables import (
    LAUNCHERS,
    MPIRUN,
    POPRUN,
    LauncherTable,
    begins_program,
)
from convoy.config.commands.launcher_words import own_words

# Section 21 of the options of the reference applications, and mpirun's usual ones.
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


def own(line: str, table: LauncherTable = POPRUN) -> tuple[list[tuple[str, ...]], str]:
    """The options with their values, and what is left."""
    words = line.split()
    found = own_words(table, words)
    assert found.problems == []
    return [one.words for one in found.typed], " ".join(words[found.length :])


def problems(words: list[str], table: LauncherTable = POPRUN) -> list[str]:
    return [str(problem) for problem in own_words(table, words).problems]


@pytest.mark.parametrize(
    ("name", "spelling"),
    [(name, one) for name, line in DOCUMENTED.items() for one in line.split()],
)
def test_every_documented_spelling_is_known(name: str, spelling: str) -> None:
    assert LAUNCHERS[name].find(spelling) is not None


@pytest.mark.parametrize("table", LAUNCHERS.values(), ids=LAUNCHERS)
def test_every_option_asks_for_something_or_says_why_not(table: LauncherTable) -> None:
    for option in table.options:
        assert not (option.to and option.why)
        assert option.to or option.why or table.why
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
def test_the_words_of_poprun_end_before_the_program(
    line: str, options: list[tuple[str, ...]], rest: str
) -> None:
    assert own(line) == (options, rest)


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
def test_one_dash_or_two_are_the_same_to_mpirun(
    line: str, options: list[tuple[str, ...]], rest: str
) -> None:
    assert own(line, MPIRUN) == (options, rest)


@pytest.mark.parametrize("spelling", ["-num-instances", "-host", "num-instances", "--v"])
def test_poprun_is_strict_about_dashes(spelling: str) -> None:
    assert POPRUN.find(spelling) is None


@pytest.mark.parametrize(
    ("line", "told"),
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
def test_a_wrong_word_is_told_with_a_way_out(line: str, told: str) -> None:
    (problem,) = problems(line.split())

    assert problem.startswith(told)


def test_an_option_of_two_values_says_so() -> None:
    assert problems(["--mca", "btl"], MPIRUN) == ["--mca needs 2 values, as in `--mca VALUE VALUE`"]


def test_all_wrong_words_of_a_launcher_are_told_together() -> None:
    line = "--nope a b --ipus-per-replica --num-replicas --what -v=2 python3 --nothing"

    assert [text.partition(";")[0] for text in problems(line.split())] == [
        "unknown option --nope of poprun",
        "--ipus-per-replica needs a value, as in `--ipus-per-replica N`",
        "--num-replicas needs a value, as in `--num-replicas N`",
        "unknown option --what of poprun",
        "-v takes no value",
    ]


@pytest.mark.parametrize(
    ("word", "begins"),
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
def test_a_program_is_no_value(word: str, begins: bool) -> None:
    assert begins_program(word) is begins
