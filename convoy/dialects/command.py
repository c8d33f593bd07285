"""Split a command line, without a shell, into variables, launchers, interpreter, program and
arguments, and select the application, which determines the dialect.

`train.py`, `restore.py` and `weight_avg.py` exist in two dialects, so the arguments decide:
1. `--dialect` takes precedence.
2. The dialect that knows most of the arguments wins. Each option counts, known in full or by a
   unique prefix, and so do the values of `--config`, if the dialect ships that configuration, and
   of `--model`.
3. On a tie, tensorflow if the program's path contains that word, otherwise pytorch.
The winner need not know every argument: its error then lists the unknown ones.
"""

import re
import shlex
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise

from convoy.config.named_configs import shipped_configs
from convoy.config.sections.network import MODELS
from convoy.dialects import DIALECTS
from convoy.dialects.launchers import (
    LAUNCHERS,
    LauncherCall,
    file_name,
    is_interpreter,
    is_variable,
    parse_launcher_call,
)
from convoy.dialects.pytorch import TENSORFLOW_ONLY_FLAGS
from convoy.dialects.tensorflow_defaults import FAMILIES
from convoy.errors import ConfigError
from convoy.registry import near_names, suggest
from convoy.text import printable, quote_shortened

EXAMPLE = "convoy run -- python3 train.py --config NAME"

_SHELL_OPERATORS = "|&;<>"
_SHELL_WORD = re.compile(r"\d?[|&;<>]+[\d-]?")  # `|`, `&&`, `>>`, `2>&1`
_LINE_CONTINUATION = re.compile(r"\\\r?\n")  # a backslash at the end of a line
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)
_TILDE = re.compile(r"^((?:[\w-]+=)?)~(?=/|$)", re.ASCII)  # `~/data`, `--data-dir=~/data`
# Switches of Python, then optionally a flag with a value: `-u`, `-W ignore`, `-um MODULE`.
_PYTHON_FLAGS = re.compile(r"-(?=.)([bBdEiIOPqRsStuvx]*)(?:([mWXc])(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Command:
    """The parts of a command line, not interpreted yet."""

    environment: Mapping[str, str]
    launchers: tuple[LauncherCall, ...]
    interpreter: tuple[str, ...]  # Python with its flags; empty if the program is started directly
    program: str  # as typed: a path, or a module's dotted name
    words: tuple[str, ...]
    is_module: bool = False


def split_command(typed: Sequence[str], environment: Mapping[str, str]) -> Command:
    """Split a command line; `environment` resolves variables in a quoted command."""
    rest = deque(shell_words(typed, environment))
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
                    f"env {printable(rest[0])} is not supported; pass only variables to env, "
                    "as in `env NAME=VALUE python3 train.py`"
                )
        elif file_name(word) in LAUNCHERS:
            launchers.append(parse_launcher_call(file_name(word), list(rest)))
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
            raise _unknown_word_error(word, rest)
    raise ConfigError(f"the command does not start a program; name one, as in `{EXAMPLE}`")


def shell_words(typed: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return the words of one command, split by the shell or given as one quoted string."""
    is_text = len(typed) == 1 and len(typed[0].split()) > 1
    words = _split(typed[0], environment) if is_text else [word for word in typed if word.strip()]
    for word in words:
        if _SHELL_WORD.fullmatch(word):
            raise _needs_shell_error(word)
    if not words:
        raise ConfigError(f"there is no command to run; write it after --, as in `{EXAMPLE}`")
    home = environment.get("HOME", "~")
    return [_TILDE.sub(lambda match: match[1] + home, word) for word in words]


def _split(text: str, environment: Mapping[str, str]) -> list[str]:
    """Split as a shell would: quotes, continued lines and variables, but no execution."""
    lexer = shlex.shlex(
        _LINE_CONTINUATION.sub("", text), posix=True, punctuation_chars=_SHELL_OPERATORS
    )
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer)
    except ValueError as error:
        reason = str(error).lower()
        raise ConfigError(
            f"the quoted command cannot be split: {reason}; close the quote"
        ) from None
    for word in words:
        if "$(" in word or "${" in _VARIABLE.sub("", word) or "`" in word:
            raise _needs_shell_error(word)
    return [
        _VARIABLE.sub(lambda match: _expand_variable(match, environment), word) for word in words
    ]


def _expand_variable(match: re.Match[str], environment: Mapping[str, str]) -> str:
    name = match[1] or match[2]
    if name not in environment:
        raise ConfigError(f"${name} in the quoted command is not set; set it, or write its value")
    return environment[name]


def _needs_shell_error(word: str) -> ConfigError:
    return ConfigError(
        f"{quote_shortened(word)} needs a shell, which convoy does not start; pass one command, "
        "with pipes and redirections outside its quotes: `convoy run -- COMMAND | tee log.txt`"
    )


def _interpreter_flags(python: str, rest: deque[str]) -> tuple[list[str], bool]:
    """Consume the flags between Python and its program; also whether the program is a module."""
    flags: list[str] = []
    while rest and (match := _PYTHON_FLAGS.fullmatch(rest[0])):
        switches, kind, value = match.groups()
        rest.popleft()
        if switches:
            flags.append(f"-{switches}")
        if kind == "c":
            raise ConfigError(
                f"{python} -c runs a string; name a program instead, as in `{EXAMPLE}`"
            )
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


def _require_program(previous: str, rest: deque[str]) -> None:
    if not rest:
        raise ConfigError(f"nothing follows {previous}; name a program, as in `{EXAMPLE}`")
    if rest[0].startswith("-"):
        raise ConfigError(
            f"{previous} is followed by {printable(rest[0])} where a program is expected; "
            f"name the program first, as in `{EXAMPLE}`"
        )


def _unknown_word_error(word: str, rest: deque[str]) -> ConfigError:
    """Explain why a command cannot start with this word, and what to do."""
    name = file_name(word)
    if name == "sudo":
        return ConfigError("sudo is not supported and not needed; leave it out")
    if name == "convoy":
        own_command = printable(" ".join(["convoy", *list(rest)[:1]]))
        return ConfigError(
            f"`{own_command}` is convoy's own command; run it without `convoy run --`"
        )
    if len(word.split()) > 1:
        return ConfigError(
            f"{quote_shortened(word)} is a single argument; quote the whole command or none of it"
        )
    if word.startswith("-"):
        return ConfigError(
            f"the command starts with {printable(word)}; name a program first, as in `{EXAMPLE}`"
        )
    near = near_names(name, [*LAUNCHERS, "env", "python3", "train.py"], max_names=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return ConfigError(
        f"unknown program or launcher {quote_shortened(word)}; {hint}a command starts with "
        "python3, a program such as train.py, poprun, mpirun, gc-profile or NAME=VALUE"
    )


# Which application a command runs

_FLAG_PATTERN = re.compile(r"--?[A-Za-z]")  # but not a negative number
_BENCHMARK_RUNNER = "examples_utils"
CONFIG_FLAGS = ("--config", "--config-path", "--help")  # every program has them


class Purpose(StrEnum):
    """The purpose of a program of the reference applications."""

    TRAIN = "train"
    RESUME = "resume"
    VALIDATE = "validate"
    AVERAGE = "average"
    INFER = "infer"
    BENCHMARK = "benchmark"  # a benchmarks.yml
    SYNTHETIC_BENCHMARK = "synthetic benchmark"  # one network on synthetic data
    DATA_BENCHMARK = "data benchmark"
    DATA_VERIFY = "data verify"
    DATA_CONVERT = "data convert"
    DATA_REBALANCE = "data rebalance"
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
        "distributed_webdataset.py": Purpose.DATA_REBALANCE,
        "run_benchmark_with_triton_server.py": Purpose.SERVE,
        "send_request.py": Purpose.REQUEST,
    },
    "popart": {
        "resnet_main.py": Purpose.TRAIN,
        "resnet_synthetic_benchmark.py": Purpose.SYNTHETIC_BENCHMARK,
    },
    _BENCHMARK_RUNNER: {f"{_BENCHMARK_RUNNER} benchmark": Purpose.BENCHMARK},
}


@dataclass(frozen=True)
class Program:
    """A program of an application, and the arguments that its dialect parses."""

    name: str
    dialect: str
    purpose: Purpose
    words: tuple[str, ...]


@dataclass(frozen=True)
class Vocabulary:
    """The names a dialect knows: its flags, the configurations it ships, its networks."""

    spellings: Collection[str]
    configs: Collection[str] = ()
    models: Collection[str] = ()


@cache
def vocabularies() -> dict[str, Vocabulary]:
    """Return the vocabulary of each dialect, for a command line or a file."""
    folders = {name: path.parent.name for name, path in shipped_configs().items()}
    return {
        name: Vocabulary(
            {*dialect().by_spelling, *map(key_to_flag, dialect().by_name), *CONFIG_FLAGS}
            - (TENSORFLOW_ONLY_FLAGS if name == "pytorch" else set()),
            {config for config, folder in folders.items() if folder == name},
            FAMILIES if name == "tensorflow" else MODELS,
        )
        for name, dialect in DIALECTS.items()
    }


def key_to_flag(key: str) -> str:
    """Return the flag that a key in a configuration file stands for."""
    return f"--{key.replace('_', '-')}"


def identify_program(
    command: Command, known: Mapping[str, Vocabulary], dialect: str | None = None
) -> Program:
    """Identify the program of a command; `known` decides if two dialects have it."""
    name = _program_name(command)
    candidates = [key for key, programs in PROGRAMS.items() if name in programs]
    if not candidates:
        names = {program for programs in PROGRAMS.values() for program in programs}
        raise ConfigError(f"unknown program {quote_shortened(name)}; {suggest(name, names)}")
    if dialect is not None and dialect not in candidates:
        raise ConfigError(f"--dialect {dialect} has no {name}; use {' or '.join(candidates)}")
    chosen = dialect or _best_matching_dialect(command, candidates, known)
    skipped = name.count(" ")  # the runner's `benchmark` argument is part of its name
    return Program(name, chosen, PROGRAMS[chosen][name], command.words[skipped:])


def _program_name(command: Command) -> str:
    if not command.is_module:
        return file_name(command.program)
    if command.program == _BENCHMARK_RUNNER:
        return " ".join([_BENCHMARK_RUNNER, *command.words[:1]])
    return command.program.rpartition(".")[2] + ".py"


def _best_matching_dialect(
    command: Command, candidates: list[str], known: Mapping[str, Vocabulary]
) -> str:
    """Return the dialect that knows most arguments; on a tie, `max` finds the preferred first."""
    preferred = "tensorflow" if "tensorflow" in command.program.lower() else "pytorch"
    ordered = sorted(candidates, key=lambda dialect: dialect != preferred)
    empty = Vocabulary(())
    return max(
        ordered, key=lambda dialect: _count_known_words(command.words, known.get(dialect, empty))
    )


def _count_known_words(words: tuple[str, ...], known: Vocabulary) -> int:
    """Count the arguments that a dialect knows."""
    options = {word.partition("=")[0] for word in words if _FLAG_PATTERN.match(word)}
    configs = set(values_after("--config", words)) & set(known.configs)
    models = set(values_after("--model", words)) & set(known.models)
    flags = sum(_is_known_flag(known.spellings, option) for option in options)
    return flags + len(configs) + len(models)


def _is_known_flag(spellings: Collection[str], option: str) -> bool:
    return option in spellings or sum(known.startswith(option) for known in spellings) == 1


def values_after(option: str, words: tuple[str, ...]) -> Iterator[str]:
    """Yield the values of an option, from `--option VALUE` and `--option=VALUE`."""
    yield from (word for previous, word in pairwise(words) if previous == option)
    yield from (word.partition("=")[2] for word in words if word.startswith(f"{option}="))
