"""A command line as typed → variables, launchers, interpreter, program and its words, without a
shell; and the application that is meant, which decides the dialect.

`train.py`, `restore.py` and `weight_avg.py` exist in two dialects, so the words decide:
1. `--dialect` has the last word.
2. The dialect that knows most of the words wins: each option counts, known as a whole or by a
   unique prefix, and so do the names behind `--config`, known if the dialect ships it, and
   `--model`.
3. At a tie, tensorflow if the path of the program says so, otherwise pytorch.
The winner need not know every word: its own error then names those that it does not know.
"""

import re
import shlex
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise

from convoy.config.catalog import MODELS
from convoy.config.named import shipped
from convoy.dialects import DIALECTS
from convoy.dialects.launchers import (
    LAUNCHERS,
    LauncherCall,
    file_name,
    is_interpreter,
    is_variable,
    read_call,
)
from convoy.dialects.pytorch import NOT_THEIRS
from convoy.dialects.tensorflow_defaults import FAMILIES
from convoy.errors import ConfigError
from convoy.registry import near_names, suggest
from convoy.text import printable, shown

EXAMPLE = "convoy run -- python3 train.py --config NAME"

_SHELL_SIGNS = "|&;<>"
_SHELL_WORD = re.compile(r"\d?[|&;<>]+[\d-]?")  # `|`, `&&`, `>>`, `2>&1`
_CONTINUED = re.compile(r"\\\r?\n")  # a backslash at the end of a line
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_HOME = re.compile(r"^((?:[\w-]+=)?)~(?=/|$)", re.ASCII)  # `~/data`, `--data-dir=~/data`
# One-letter flags of Python alone, then perhaps one with a value: `-u`, `-W ignore`, `-um MODULE`.
_PYTHON_FLAGS = re.compile(r"-(?=.)([bBdEiIOPqRsStuvx]*)(?:([mWXc])(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """A command line in parts; none of them has been given a meaning yet."""

    environment: Mapping[str, str]
    launchers: tuple[LauncherCall, ...]
    interpreter: tuple[str, ...]  # Python with its flags; empty for a program started directly
    program: str  # as typed: a path, or a module's dotted name
    words: tuple[str, ...]
    is_module: bool = False


def split_command(typed: Sequence[str], environment: Mapping[str, str]) -> Command:
    """Split what was typed; `environment` has the variables that a quoted text refers to."""
    rest = deque(words_of(typed, environment))
    variables: dict[str, str] = {}
    launchers: list[LauncherCall] = []
    while rest:
        word = rest.popleft()
        name, equals, value = word.partition("=")
        if equals and is_variable(name):
            variables[name] = value
        elif file_name(word) == "env":
            if rest and rest[0].startswith("-") and rest[0] != "--":
                raise ConfigError(
                    f"env {printable(rest[0])} is not understood; give env only variables, "
                    "as in `env NAME=VALUE python3 train.py`"
                )
        elif file_name(word) in LAUNCHERS:
            launchers.append(read_call(file_name(word), list(rest)))
            for _ in launchers[-1].words:
                rest.popleft()
        elif is_interpreter(word):
            flags, is_module = _interpreter_flags(word, rest)
            program, *words = rest
            python = (word, *flags)
            return Command(variables, tuple(launchers), python, program, tuple(words), is_module)
        elif word.endswith(".py"):
            return Command(variables, tuple(launchers), (), word, tuple(rest))
        elif word != "--":
            raise _unknown(word, rest)
    raise ConfigError(f"the command starts no program; name one, as in `{EXAMPLE}`")


def words_of(typed: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The words of one command: as the shell split them, or out of one quoted text."""
    is_text = len(typed) == 1 and len(typed[0].split()) > 1
    words = _split(typed[0], environment) if is_text else [word for word in typed if word.strip()]
    for word in words:
        if _SHELL_WORD.fullmatch(word):
            raise _needs_shell(word)
    if not words:
        raise ConfigError(f"there is no command to run; write it behind --, as in `{EXAMPLE}`")
    home = environment.get("HOME", "~")
    return [_HOME.sub(lambda found: found[1] + home, word) for word in words]


def _split(text: str, environment: Mapping[str, str]) -> list[str]:
    """As a shell would, with quotes, continued lines and variables, but nothing is executed."""
    lexer = shlex.shlex(_CONTINUED.sub("", text), posix=True, punctuation_chars=_SHELL_SIGNS)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        reason = str(error).lower()
        raise ConfigError(f"the quoted command cannot be split: {reason}; close it") from None
    for word in words:
        if "$(" in word or "${" in _VARIABLE.sub("", word) or "`" in word:
            raise _needs_shell(word)
    return [_VARIABLE.sub(lambda found: _value(found, environment), word) for word in words]


def _value(found: re.Match[str], environment: Mapping[str, str]) -> str:
    name = found[1] or found[2]
    if name not in environment:
        raise ConfigError(f"${name} in the quoted command is not set; set it, or write its value")
    return environment[name]


def _needs_shell(word: str) -> ConfigError:
    return ConfigError(
        f"{shown(word)} is for a shell, and none is started; give one command, and write pipes and "
        "redirections outside its quotes, as in `convoy run -- COMMAND | tee log.txt`"
    )


def _interpreter_flags(python: str, rest: deque[str]) -> tuple[list[str], bool]:
    """Flags between Python and its program, and whether the program is a module."""
    flags: list[str] = []
    while rest and (found := _PYTHON_FLAGS.fullmatch(rest[0])):
        alone, kind, value = found.groups()
        rest.popleft()
        if alone:
            flags.append(f"-{alone}")
        if kind == "c":
            raise ConfigError(f"{python} -c runs text; name a program instead, as in `{EXAMPLE}`")
        if kind:
            rest.extendleft([value] if value else [])  # `-mtrain` is `-m train`
            _require_program(f"{python} -{kind}", rest)
        if kind == "m":
            return flags, True
        if kind:
            flags.append(f"-{kind} {rest.popleft()}")
    if rest and rest[0] == "--":
        rest.popleft()
    _require_program(python, rest)
    return flags, False


def _require_program(before: str, rest: deque[str]) -> None:
    if not rest:
        raise ConfigError(f"nothing follows {before}; name a program, as in `{EXAMPLE}`")
    if rest[0].startswith("-"):
        raise ConfigError(
            f"{before} is followed by {printable(rest[0])} where its program should be; "
            f"name it first, as in `{EXAMPLE}`"
        )


def _unknown(word: str, rest: deque[str]) -> ConfigError:
    """The first word that no command can begin with, and what to do about it."""
    name = file_name(word)
    if name == "sudo":
        return ConfigError("sudo has no place here: no command needs it; leave it out")
    if name == "convoy":
        itself = printable(" ".join(["convoy", *list(rest)[:1]]))
        return ConfigError(f"`{itself}` is convoy's own command; run it without `convoy run --`")
    if len(word.split()) > 1:
        return ConfigError(f"{shown(word)} is one word; quote the whole command or none of it")
    if word.startswith("-"):
        return ConfigError(
            f"the command begins with {printable(word)}; name a program first, as in `{EXAMPLE}`"
        )
    near = near_names(name, [*LAUNCHERS, "env", "python3", "train.py"], most=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return ConfigError(
        f"unknown program or launcher {shown(word)}; {hint}A command begins with python3, a "
        "program such as train.py, poprun, mpirun, gc-profile or NAME=VALUE"
    )


# Which application a command means

_OPTION = re.compile(r"--?[A-Za-z]")  # and no negative number
_RUNNER = "examples_utils"
CONFIG_FLAGS = ("--config", "--config-path", "--help")  # of every program


class Purpose(StrEnum):
    """What a program of the reference applications is for."""

    TRAIN = "train"
    RESUME = "resume"
    VALIDATE = "validate"
    AVERAGE = "average"
    INFER = "infer"
    BENCHMARK = "benchmark"  # a file of benchmarks
    SYNTHETIC_BENCHMARK = "synthetic benchmark"  # one network on made-up data
    DATA_BENCHMARK = "data benchmark"
    DATA_VERIFY = "data verify"
    DATA_CONVERT = "data convert"
    DATA_EVEN_OUT = "data even out"
    CHECKPOINT_CHECK = "checkpoint check"
    UPLOAD = "upload"
    SERVE = "serve"
    REQUEST = "request"


PROGRAMS: dict[str, dict[str, Purpose]] = {
    "tensorflow": {
        "train.py": Purpose.TRAIN,
        "restore.py": Purpose.RESUME,
        "validation.py": Purpose.VALIDATE,
        "weight_avg.py": Purpose.AVERAGE,
        "inference_embedded.py": Purpose.INFER,
        "analyse_checkpoints.py": Purpose.CHECKPOINT_CHECK,
        "upload_run.py": Purpose.UPLOAD,
    },
    "pytorch": {
        "train.py": Purpose.TRAIN,
        "restore.py": Purpose.RESUME,
        "validate.py": Purpose.VALIDATE,
        "weight_avg.py": Purpose.AVERAGE,
        "run_benchmark.py": Purpose.INFER,
        "host_benchmark.py": Purpose.DATA_BENCHMARK,
        "validate_dataset.py": Purpose.DATA_VERIFY,
        "create_webdataset.py": Purpose.DATA_CONVERT,
        "distributed_webdataset.py": Purpose.DATA_EVEN_OUT,
        "run_benchmark_with_triton_server.py": Purpose.SERVE,
        "send_request.py": Purpose.REQUEST,
    },
    "popart": {
        "resnet_main.py": Purpose.TRAIN,
        "resnet_synthetic_benchmark.py": Purpose.SYNTHETIC_BENCHMARK,
    },
    _RUNNER: {f"{_RUNNER} benchmark": Purpose.BENCHMARK},
}


@dataclass(frozen=True)
class Program:
    """An application's program, and the words that its dialect has to read."""

    name: str
    dialect: str
    purpose: Purpose
    words: tuple[str, ...]


@dataclass(frozen=True)
class Vocabulary:
    """What a dialect knows: its spellings, the named configurations it ships, its networks."""

    spellings: Collection[str]
    configs: Collection[str] = ()
    models: Collection[str] = ()


@cache
def vocabularies() -> dict[str, Vocabulary]:
    """Of each dialect, for a command line or a file."""
    folders = {name: path.parent.name for name, path in shipped().items()}
    return {
        name: Vocabulary(
            {*dialect().by_spelling, *map(as_flag, dialect().by_name), *CONFIG_FLAGS}
            - (NOT_THEIRS if name == "pytorch" else set()),
            {config for config, folder in folders.items() if folder == name},
            FAMILIES if name == "tensorflow" else MODELS,
        )
        for name, dialect in DIALECTS.items()
    }


def as_flag(key: str) -> str:
    """The flag of a key in a configuration file."""
    return f"--{key.replace('_', '-')}"


def identify(
    command: Command, known: Mapping[str, Vocabulary], dialect: str | None = None
) -> Program:
    """The program that a command means; `known` decides where two dialects have it."""
    name = _name(command)
    candidates = [each for each, programs in PROGRAMS.items() if name in programs]
    if not candidates:
        names = {each for programs in PROGRAMS.values() for each in programs}
        raise ConfigError(f"unknown program {shown(name)}; {suggest(name, names)}")
    if dialect is not None and dialect not in candidates:
        raise ConfigError(f"--dialect {dialect} has no {name}; use {' or '.join(candidates)}")
    chosen = dialect or _likeliest(command, candidates, known)
    skipped = name.count(" ")  # the runner's word `benchmark` is part of its name
    return Program(name, chosen, PROGRAMS[chosen][name], command.words[skipped:])


def _name(command: Command) -> str:
    if not command.is_module:
        return file_name(command.program)
    if command.program == _RUNNER:
        return " ".join([_RUNNER, *command.words[:1]])
    return command.program.rpartition(".")[2] + ".py"


def _likeliest(command: Command, candidates: list[str], known: Mapping[str, Vocabulary]) -> str:
    """The one that knows most words; of equals the preferred one, which `max` finds first."""
    preferred = "tensorflow" if "tensorflow" in command.program.lower() else "pytorch"
    ordered = sorted(candidates, key=lambda dialect: dialect != preferred)
    nothing = Vocabulary(())
    return max(ordered, key=lambda dialect: _score(command.words, known.get(dialect, nothing)))


def _score(words: tuple[str, ...], known: Vocabulary) -> int:
    """How many of the words a dialect knows."""
    options = {word.partition("=")[0] for word in words if _OPTION.match(word)}
    configs = set(values_after("--config", words)) & set(known.configs)
    models = set(values_after("--model", words)) & set(known.models)
    spelled = sum(_knows(known.spellings, option) for option in options)
    return spelled + len(configs) + len(models)


def _knows(spellings: Collection[str], option: str) -> bool:
    return option in spellings or sum(known.startswith(option) for known in spellings) == 1


def values_after(option: str, words: tuple[str, ...]) -> Iterator[str]:
    """The values of an option, as `--option VALUE` and `--option=VALUE`."""
    yield from (word for before, word in pairwise(words) if before == option)
    yield from (word.partition("=")[2] for word in words if word.startswith(f"{option}="))
