"""A command falls apart into variables, launchers, interpreter, program and its words."""

import shlex

import pytest
from readme_commands import ROWS, Row

from convoy.config.commands.launchers import Launcher
from convoy.config.commands.split import Command, split
from convoy.errors import ConfigError

WHOLE = [row for row in ROWS if row.start != "python3"]
(WITHOUT_PROGRAM,) = [row for row in ROWS if row.start == "python3"]
EIGHT = (
    *("-v", "--numa-aware", "1", "--num-instances", "8", "--num-replicas", "16"),
    *("--ipus-per-replica", "1", "--mpi-local-args=--tag-output"),
)
FOUR = (
    *("-v", "--numa-aware", "1", "--num-instances", "4", "--num-replicas", "4"),
    *("--ipus-per-replica", "--mpi-local-args=--tag-output"),
)
CLUSTER = '{"cluster":{"worker":["host1:3636","host2:3636"]},"task":{"type":"worker"}}'
MPI = (
    *("--tag-output", "-H", "host1,host2", "-bind-to", "none", "-map-by", "slot"),
    *("-x", "LD_LIBRARY_PATH", "-x", "PATH", "-x", f"TF_CONFIG={CLUSTER}"),
)


def taken_apart(line: str) -> Command:
    """The same whether the shell has split it or not."""
    command = split([line], {})

    assert split(shlex.split(line), {}) == command
    return command


def launchers(line: str) -> dict[str, tuple[str, ...]]:
    return {one.name: one.words for one in taken_apart(line).launchers}


def refusal(line: str) -> str:
    with pytest.raises(ConfigError) as refused:
        split([line] if " " in line else line.split(), {})

    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("row", WHOLE, ids=lambda row: row.line[:60])
def test_every_line_of_the_readmes_is_cut_as_by_hand(row: Row) -> None:
    command = taken_apart(row.line)
    python, *module, program = row.start.split()

    assert command.interpreter == (python,)
    assert command.is_module == (module == ["-m"])
    assert command.program == program
    assert command.words == tuple(row.tail.split())
    assert command.environment == {}
    assert len(command.launchers) == (1 if row.front else 0)


@pytest.mark.parametrize(
    ("front", "name", "words"),
    [
        ("poprun -v --numa-aware 1 --num-instances 8", "poprun", EIGHT),
        ("poprun -v --numa-aware 1 --num-instances 4", "poprun", FOUR),
        ("poprun --num-instances=8", "poprun", ("--num-instances=8", "--num-replicas=16")),
        ("mpirun", "mpirun", MPI),
        ("gc-profile", "gc-profile", ("-d", "profile_dir", "--")),
    ],
)
def test_launchers_of_the_readmes_keep_their_own_words(
    front: str, name: str, words: tuple[str, ...]
) -> None:
    rows = [row for row in ROWS if row.front.startswith(front)]

    assert rows
    assert all(launchers(row.line) == {name: words} for row in rows)


def test_python_without_a_program_is_refused_with_an_example() -> None:
    assert refusal(WITHOUT_PROGRAM.line) == (
        "python3 is followed by --config where its program should be; "
        "name it first, as in `convoy run -- python3 train.py --config NAME`"
    )


@pytest.mark.parametrize(
    ("line", "interpreter", "program", "is_module"),
    [
        ("python train.py x", ("python",), "train.py", False),
        ("python3.11 train.py x", ("python3.11",), "train.py", False),
        ("/usr/bin/python3 a/b/train.py x", ("/usr/bin/python3",), "a/b/train.py", False),
        ("python3 -u train.py x", ("python3", "-u"), "train.py", False),
        ("python3 -uB -O train.py x", ("python3", "-uB", "-O"), "train.py", False),
        ("python3 -W ignore train.py x", ("python3", "-W ignore"), "train.py", False),
        ("python3 -uXdev train.py x", ("python3", "-u", "-X dev"), "train.py", False),
        ("python3 -- train.py x", ("python3",), "train.py", False),
        ("python3 -m examples_utils x", ("python3",), "examples_utils", True),
        ("python3 -u -m examples_utils x", ("python3", "-u"), "examples_utils", True),
        ("python3 -um examples_utils x", ("python3", "-u"), "examples_utils", True),
        ("python3 -mcnns.train x", ("python3",), "cnns.train", True),
        ("./train.py x", (), "./train.py", False),
        ("train.py x", (), "train.py", False),
        ("/a/b/train.py x", (), "/a/b/train.py", False),
    ],
)
def test_a_program_is_found_in_every_way_to_start_it(
    line: str, interpreter: tuple[str, ...], program: str, is_module: bool
) -> None:
    assert taken_apart(line) == Command({}, (), interpreter, program, ("x",), is_module)


@pytest.mark.parametrize(
    "line",
    [
        "A=1 B='two = 2' gc-profile -d D -- poprun --num-instances 2 python3 train.py",
        "env A=1 'B=two = 2' gc-profile -d D poprun --num-instances 2 python3 train.py",
        "gc-profile -d D env A=1 B='two = 2' poprun --num-instances 2 -- python3 train.py",
        "A=0 gc-profile -d D poprun --num-instances 2 A=1 /bin/env B='two = 2' ./train.py",
        "env -- A=1 B='two = 2' gc-profile -d D -- poprun --num-instances 2 ./train.py",
    ],
)
def test_variables_and_launchers_may_come_in_any_order(line: str) -> None:
    command = taken_apart(line)

    assert command.environment == {"A": "1", "B": "two = 2"}
    assert [one.name for one in command.launchers] == ["gc-profile", "poprun"]
    assert [one.words[:2] for one in command.launchers] == [("-d", "D"), ("--num-instances", "2")]
    assert command.program.endswith("train.py") and command.words == ()


def test_only_words_in_front_are_variables_and_launchers() -> None:
    command = taken_apart("python3 train.py A=1 time -- python3 --lr=1")

    assert command == Command(
        {}, (), ("python3",), "train.py", ("A=1", "time", "--", "python3", "--lr=1")
    )


def test_a_launcher_is_known_wherever_it_lies() -> None:
    line = "/usr/bin/time -p nohup /opt/bin/mpiexec -n 2 python3 train.py -n 3"

    assert taken_apart(line).launchers == (
        Launcher("time", ("-p",)),
        Launcher("nohup"),
        Launcher("mpiexec", ("-n", "2")),
    )


def test_a_missing_value_or_an_unknown_option_does_not_hide_the_program() -> None:
    line = "poprun --num-instances --nope 3 --what=4 A=1 python3 train.py --lr 1"

    assert taken_apart(line).program == "train.py"
    assert taken_apart(line).environment == {"A": "1"}
    assert launchers(line) == {"poprun": ("--num-instances", "--nope", "3", "--what=4")}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("python3", "nothing follows python3; name a program, as in `convoy run -- python3 tr"),
        ("python3 -m", "nothing follows python3 -m; name a program"),
        ("python3 -m --lr 1", "python3 -m is followed by --lr where its program should be"),
        ("python3 - train.py", "python3 is followed by - where its program should be"),
        ("python3 -W", "nothing follows python3 -W"),
        ("python3 -V", "python3 is followed by -V where its program should be"),
        ("python3 -c 'import x'", "python3 -c runs text; name a program instead"),
        ("poprun --num-instances 2", "the command starts no program; name one, as in `convoy run"),
        ("A=1", "the command starts no program"),
        ("A=1 env B=2", "the command starts no program"),
        ("--config x", "the command begins with --config; name a program first, as in `convoy run"),
        ("sudo python3 train.py", "sudo has no place here: no command needs it; leave it out"),
        ("sudo -E poprun python3 train.py", "sudo has no place here"),
        ("convoy train --lr 1", "`convoy train` is convoy's own command; run it without `convoy "),
        ("env -i A=1 python3 train.py", "env -i is not understood; give env only variables"),
        ("torchrun --nproc 2 train.py", "unknown program or launcher 'torchrun'; "),
        ("pyton3 train.py", "unknown program or launcher 'pyton3'; did you mean python3? A comm"),
        ("train --lr 1", "unknown program or launcher 'train'; did you mean train.py?"),
        ("bash train.sh", "unknown program or launcher 'bash'; A command begins with python3, a"),
        ("python3.x train.py", "unknown program or launcher 'python3.x'"),
        ("1A=2 python3 train.py", "unknown program or launcher '1A=2'"),
    ],
)
def test_a_shape_that_is_none_is_refused_on_one_line(line: str, told: str) -> None:
    assert refusal(line).startswith(told)


def test_a_word_with_spaces_among_others_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^'poprun -v' is one word; quote the whole command or"):
        split(["poprun -v", "python3", "train.py"], {})


@pytest.mark.parametrize("line", ["a\x1b[2J b", "python3 --a\x1b[2J", "--a\x1b b", "env -\x1b c"])
def test_a_refusal_never_drives_the_terminal(line: str) -> None:
    assert refusal(line).isprintable()
