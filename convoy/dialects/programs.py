"""Which application a command means: its dialect and what it does there.

`train.py`, `restore.py` and `weight_avg.py` exist in two dialects, so the words decide:
1. `--dialect` has the last word.
2. The dialect that knows most of the words wins: each option counts, known as a whole or by a
   unique prefix, and so do the names behind `--config`, known if the dialect ships it, and
   `--model`.
3. At a tie, tensorflow if the path of the program says so, otherwise pytorch.
The winner need not know every word: its own error then names those that it does not know.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise

from convoy.config.catalog import MODELS
from convoy.config.named import shipped
from convoy.dialects import DIALECTS
from convoy.dialects.command import Command
from convoy.dialects.launchers import file_name
from convoy.dialects.pytorch import NOT_THEIRS
from convoy.dialects.tensorflow_defaults import FAMILIES
from convoy.errors import ConfigError
from convoy.registry import suggest
from convoy.text import shown

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
    unknown = Vocabulary(())
    return max(ordered, key=lambda dialect: _score(command.words, known.get(dialect, unknown)))


def _score(words: tuple[str, ...], known: Vocabulary) -> int:
    """How many of the words a dialect knows."""
    options = {word.partition("=")[0] for word in words if _OPTION.match(word)}
    configs = set(values_after("--config", words)) & set(known.configs)
    models = set(values_after("--model", words)) & set(known.models)
    spelled = sum(_knows(known.spellings, option) for option in options)
    return spelled + len(configs) + len(models)


def _knows(spellings: Collection[str], option: str) -> bool:
    matches = [spelling for spelling in spellings if spelling.startswith(option)]
    return option in matches or len(matches) == 1


def values_after(option: str, words: tuple[str, ...]) -> Iterator[str]:
    """The values of an option, as `--option VALUE` and `--option=VALUE`."""
    yield from (word for before, word in pairwise(words) if before == option)
    yield from (word.partition("=")[2] for word in words if word.startswith(f"{option}="))
