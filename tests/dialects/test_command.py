"""Split command lines into variables, launchers, interpreter and program, without a shell."""

import shlex

import pytest
from support.readme_commands import ROWS, Row

from convoy.dialects.command import Command, shell_words, split_command
from convoy.errors import ConfigError

ROWS_WITH_PROGRAM = [row for row in ROWS if row.program != "python3"]
(WITHOUT_PROGRAM,) = [row for row in ROWS if row.program == "python3"]
EIGHT_INSTANCES = (
    *("-v", "--numa-aware", "1", "--num-instances", "8", "--num-replicas", "16"),
    *("--ipus-per-replica", "1", "--mpi-local-args=--tag-output"),
)
FOUR_INSTANCES = (
    *("-v", "--numa-aware", "1", "--num-instances", "4", "--num-replicas", "4"),
    *("--ipus-per-replica", "--mpi-local-args=--tag-output"),
)
CLUSTER = '{"cluster":{"worker":["host1:3636","host2:3636"]},"task":{"type":"worker"}}'
MPIRUN_WORDS = (
    *("--tag-output", "-H", "host1,host2", "-bind-to", "none", "-map-by", "slot"),
    *("-x", "LD_LIBRARY_PATH", "-x", "PATH", "-x", f"TF_CONFIG={CLUSTER}"),
)


def split_line(line: str) -> Command:
    """Split a command, quoted and as separate arguments."""
    command = split_command([line], {})

    assert split_command(shlex.split(line), {}) == command
    return command


def launchers(line: str) -> dict[str, tuple[str, ...]]:
    return {call.name: call.words for call in split_line(line).launchers}


def error_message(line: str) -> str:
    with pytest.raises(ConfigError) as error:
        split_command([line] if " " in line else line.split(), {})

    assert "\n" not in str(error.value)
    return str(error.value)


def expected_command(row: Row) -> Command:
    python, *module, program = row.program.split()
    calls = split_line(row.line).launchers[: 1 if row.launcher else 0]
    return Command({}, calls, (python,), program, tuple(row.arguments.split()), module == ["-m"])


def test_every_readme_command_is_split_as_expected() -> None:
    commands = {row.line: split_line(row.line) for row in ROWS_WITH_PROGRAM}

    assert commands == {row.line: expected_command(row) for row in ROWS_WITH_PROGRAM}
    assert all(len(commands[row.line].launchers) == bool(row.launcher) for row in ROWS_WITH_PROGRAM)


@pytest.mark.parametrize(
    ("front", "name", "words"),
    [
        ("poprun -v --numa-aware 1 --num-instances 8", "poprun", EIGHT_INSTANCES),
        ("poprun -v --numa-aware 1 --num-instances 4", "poprun", FOUR_INSTANCES),
        ("poprun --num-instances=8", "poprun", ("--num-instances=8", "--num-replicas=16")),
        ("mpirun", "mpirun", MPIRUN_WORDS),
        ("gc-profile", "gc-profile", ("-d", "profile_dir", "--")),
    ],
)
def test_launchers_of_the_readmes_have_their_arguments(
    front: str, name: str, words: tuple[str, ...]
) -> None:
    rows = [row for row in ROWS if row.launcher.startswith(front)]

    assert rows
    assert all(launchers(row.line) == {name: words} for row in rows)


def test_python_without_a_program_is_refused_with_an_example() -> None:
    message = error_message(WITHOUT_PROGRAM.line)

    assert message.startswith("python3 is followed by --config")
    assert "`convoy run -- python3 train.py --config NAME`" in message


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
def test_a_program_is_found_however_it_is_started(
    line: str, interpreter: tuple[str, ...], program: str, is_module: bool
) -> None:
    assert split_line(line) == Command({}, (), interpreter, program, ("x",), is_module)


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
def test_variables_and_launchers_can_have_any_order(line: str) -> None:
    command = split_line(line)

    assert command.environment == {"A": "1", "B": "two = 2"}
    assert [call.name for call in command.launchers] == ["gc-profile", "poprun"]
    assert [call.words[:2] for call in command.launchers] == [("-d", "D"), ("--num-instances", "2")]
    assert command.program.endswith("train.py") and command.words == ()


def test_only_leading_arguments_are_variables_and_launchers() -> None:
    command = split_line("python3 train.py A=1 time -- python3 --lr=1")

    assert command == Command(
        {}, (), ("python3",), "train.py", ("A=1", "time", "--", "python3", "--lr=1")
    )


def test_a_launcher_is_recognized_in_any_folder() -> None:
    line = "/usr/bin/time -p nohup /opt/bin/mpiexec -n 2 python3 train.py -n 3"

    assert launchers(line) == {"time": ("-p",), "nohup": (), "mpiexec": ("-n", "2")}


def test_a_missing_value_or_an_unknown_option_does_not_hide_the_program() -> None:
    line = "poprun --num-instances --nope 3 --what=4 A=1 python3 train.py --lr 1"

    assert split_line(line).program == "train.py"
    assert split_line(line).environment == {"A": "1"}
    assert launchers(line) == {"poprun": ("--num-instances", "--nope", "3", "--what=4")}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("python3", "nothing follows python3; name a program, as in `convoy run -- python3 tr"),
        ("python3 -m", "nothing follows python3 -m; name a program"),
        ("python3 -m --lr 1", "python3 -m is followed by --lr where a program is expected"),
        ("python3 - train.py", "python3 is followed by - where a program is expected"),
        ("python3 -W", "nothing follows python3 -W"),
        ("python3 -V", "python3 is followed by -V where a program is expected"),
        ("python3 -c 'import x'", "python3 -c runs a string; name a program instead"),
        (
            "poprun --num-instances 2",
            "the command does not start a program; name one, as in `convoy run",
        ),
        ("A=1", "the command does not start a program"),
        ("A=1 env B=2", "the command does not start a program"),
        ("--config x", "the command starts with --config; name a program first, as in `convoy run"),
        ("sudo python3 train.py", "sudo is not supported and not needed; leave it out"),
        ("sudo -E poprun python3 train.py", "sudo is not supported"),
        ("convoy train --lr 1", "`convoy train` is convoy's own command; run it without `convoy "),
        ("env -i A=1 python3 train.py", "env -i is not supported; pass only variables to env"),
        ("torchrun --nproc 2 train.py", "unknown program or launcher 'torchrun'; "),
        ("pyton3 train.py", "unknown program or launcher 'pyton3'; did you mean python3? a comm"),
        ("train --lr 1", "unknown program or launcher 'train'; did you mean train.py?"),
        ("bash train.sh", "unknown program or launcher 'bash'; a command starts with python3, a"),
        ("python3.x train.py", "unknown program or launcher 'python3.x'"),
        ("1A=2 python3 train.py", "unknown program or launcher '1A=2'"),
    ],
)
def test_an_invalid_command_is_refused_in_one_line(line: str, message: str) -> None:
    assert error_message(line).startswith(message)


def test_a_command_that_is_only_partly_quoted_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^'poprun -v' is a single argument; quote the whole command or"
    ):
        split_command(["poprun -v", "python3", "train.py"], {})


@pytest.mark.parametrize("line", ["a\x1b[2J b", "python3 --a\x1b[2J", "--a\x1b b", "env -\x1b c"])
def test_an_error_message_has_no_control_characters(line: str) -> None:
    assert error_message(line).isprintable()


ENVIRONMENT = {"HOME": "/home/me", "DATASETS_DIR": "/data sets"}


def split_words(*typed: str) -> list[str]:
    return shell_words(typed, ENVIRONMENT)


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("python3 train.py --lr 1", ["python3", "train.py", "--lr", "1"]),
        ("  python3\ttrain.py\n", ["python3", "train.py"]),
        ("A='{\"a b\": 1}' python3", ['A={"a b": 1}', "python3"]),
        ('x --args="--tag-output -x A" y', ["x", "--args=--tag-output -x A", "y"]),
        ("python3 train.py \\\n    --lr 1", ["python3", "train.py", "--lr", "1"]),
        ("python3 train.py \\\r\n  --lr 1", ["python3", "train.py", "--lr", "1"]),
        ("python3 train.py --splits a,\\\nb", ["python3", "train.py", "--splits", "a,b"]),
        ("python3 'my train.py'", ["python3", "my train.py"]),
        ("python3 my\\ train.py", ["python3", "my train.py"]),
        ("x --steps Resize(256) --glob * #1", ["x", "--steps", "Resize(256)", "--glob", "*", "#1"]),
        ("x ''", ["x", ""]),
    ],
)
def test_a_quoted_command_is_split_as_in_a_shell(text: str, split: list[str]) -> None:
    assert split_words(text) == split


def test_arguments_split_by_the_shell_stay_unchanged() -> None:
    typed = ["poprun", "--mpi-local-args=-x A", "$B", "`c`", "a|b", "'d'", "e\\ f"]

    assert split_words(*typed) == typed


def test_a_single_argument_without_spaces_is_not_split() -> None:
    assert split_words("./train'.py") == ["./train'.py"]


@pytest.mark.parametrize(
    ("word", "expanded"),
    [
        ("~", "/home/me"),
        ("~/data", "/home/me/data"),
        ("--data-dir=~/data", "--data-dir=/home/me/data"),
        ("DATA_DIR=~/data", "DATA_DIR=/home/me/data"),
        ("~you/data", "~you/data"),
        ("a~/data", "a~/data"),
        ("run~", "run~"),
    ],
)
def test_a_tilde_is_the_home_folder(word: str, expanded: str) -> None:
    assert split_words("python3", word) == ["python3", expanded]
    assert split_words(f"python3 {word}") == ["python3", expanded]


def test_a_tilde_stays_if_home_is_unknown() -> None:
    assert shell_words(["x", "~/data"], {}) == ["x", "~/data"]


def test_the_value_of_a_variable_in_a_quoted_command_is_not_split() -> None:
    assert split_words("x $DATASETS_DIR/a ${DATASETS_DIR}b 'c d$'") == [
        "x",
        "/data sets/a",
        "/data setsb",
        "c d$",
    ]


def test_a_variable_that_is_not_set_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^\$NOWHERE in the quoted command is not set; set it"):
        split_words("x --data-dir $NOWHERE/a")


@pytest.mark.parametrize(
    ("text", "syntax"),
    [
        ("python3 train.py | tee log", "'|'"),
        ("python3 train.py 2>&1", "'>&'"),
        ("python3 train.py>log", "'>'"),
        ("python3 train.py < in", "'<'"),
        ("cd there && python3 train.py", "'&&'"),
        ("A=1; python3 train.py", "';'"),
        ("nohup python3 train.py &", "'&'"),
        ("python3 train.py --lr $(cat lr)", "'$(cat'"),
        ("python3 train.py --lr `cat lr`", "'`cat'"),
        ("python3 train.py --lr ${LR:-1}", "'${LR:-1}'"),
    ],
)
def test_shell_syntax_in_a_quoted_command_is_refused(text: str, syntax: str) -> None:
    with pytest.raises(ConfigError) as error:
        split_words(text)

    assert str(error.value).startswith(f"{syntax} needs a shell")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("word", ["|", "||", "&&", ";", ">", ">>", "<", "2>&1", "&", "2>"])
def test_shell_syntax_in_an_argument_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="needs a shell"):
        split_words("python3", "train.py", word, "log")


def test_shell_characters_inside_quotes_are_plain_text() -> None:
    assert split_words("x 'a|b' \"c>d\" e\\;f") == ["x", "a|b", "c>d", "e;f"]


@pytest.mark.parametrize("text", ["x 'a b", 'x "a', "x a\\"])
def test_unclosed_quotes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^the quoted command cannot be split: no "):
        split_words(text)


@pytest.mark.parametrize("typed", [[], [""], ["  "], ["", " \n"]])
def test_an_empty_command_is_refused_with_an_example(typed: list[str]) -> None:
    with pytest.raises(ConfigError, match="no command to run; write it after --, as in `convoy r"):
        split_words(*typed)
