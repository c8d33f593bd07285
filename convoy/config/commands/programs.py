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
from itertools import pairwise

from convoy.config.commands.launcher_tables import file_name
from convoy.config.commands.split import Command
from convoy.config.user_text import shown
from convoy.errors import ConfigError
from convoy.registry import suggest

_OPTION = re.compile(r"--?[A-Za-z]")  # and no negative number
_RUNNER = "examples_utils"


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
class Known:
    """What a dialect knows: its spellings, the named configurations it ships, its networks."""

    spellings: Collection[str]
    configs: Collection[str] = ()
    models: Collection[str] = ()


def identify(command: Command, known: Mapping[str, Known], dialect: str | None = None) -> Program:
    """The program that a command means; `known` decides where two dialects have it."""
    name = _name(command)
    having = [one for one, programs in PROGRAMS.items() if name in programs]
    if not having:
        names = {one for programs in PROGRAMS.values() for one in programs}
        raise ConfigError(f"unknown program {shown(name)}; {suggest(name, names)}")
    if dialect is not None and dialect not in having:
        raise ConfigError(f"--dialect {dialect} has no {name}; use {' or '.join(having)}")
    chosen = dialect or _likeliest(command, having, known)
    skipped = name.count(" ")  # the runner's word `benchmark` is part of its name
    return Program(name, chosen, PROGRAMS[chosen][name], command.words[skipped:])


def _name(command: Command) -> str:
    if not command.is_module:
        return file_name(command.program)
    if command.program == _RUNNER:
        return " ".join([_RUNNER, *command.words[:1]])
    return command.program.rpartition(".")[2] + ".py"


def _likeliest(command: Command, having: list[str], known: Mapping[str, Known]) -> str:
    """The one that knows most words; of equals the preferred one, which `max` finds first."""
    preferred = "tensorflow" if "tensorflow" in command.program.lower() else "pytorch"
    ordered = sorted(having, key=lambda one: one != preferred)
    return max(ordered, key=lambda one: _known_words(command.words, known.get(one, Known(()))))


def _known_words(words: tuple[str, ...], known: Known) -> int:
    options = {word.partition("=")[0] for word in words if _OPTION.match(word)}
    configs = set(behind("--config", words)) & set(known.configs)
    models = set(behind("--model", words)) & set(known.models)
    spelled = sum(_knows(known.spellings, option) for option in options)
    return spelled + len(configs) + len(models)


def _knows(spellings: Collection[str], option: str) -> bool:
    fits = [one for one in spellings if one.startswith(option)]
    return option in fits or len(fits) == 1


def behind(option: str, words: tuple[str, ...]) -> Iterator[str]:
    """The names behind an option, in both ways of writing it."""
    yield from (word for before, word in pairwise(words) if before == option)
    yield from (word.partition("=")[2] for word in words if word.startswith(f"{option}="))
