"""What launchers and environment variables request: the number of processes, hosts, variables.

Launchers request it with options (launchers.py), environment variables with their values, which
are parsed here. All other variables are passed to the run unchanged: DATA_DIR (in the option
table), DATASETS_DIR (read by benchmarks), WANDB_MODE, and every unknown one.
"""

import json
import re
import shlex
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from convoy.config.option import Limit, OptionTypeError, ValueType, format_value
from convoy.config.schema import DroppedWord, Problem, Setting, Settings
from convoy.config.yaml_reader import decode_text, read_limited
from convoy.errors import ConfigError
from convoy.text import quote_shortened

MAX_PROCESSES = 65536
COUNT_LIMIT = Limit(at_least=1, at_most=MAX_PROCESSES)


@dataclass
class LaunchRequest:
    """The request of one launcher or variable, or of all of them together.

    `settings` may contain hosts, instances, replicas (of all instances together),
    devices_per_replica, executable_cache_path, profile_dir, synthetic_data and verbosity.
    `environment` is for the run.
    """

    source: str = ""  # the launcher or variable; empty if there are several
    settings: Settings = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    dropped: list[DroppedWord] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def set(self, name: str, value: Any) -> None:
        self.settings[name] = Setting(value, self.source)

    def add_dropped(self, words: Sequence[str], reason: str) -> None:
        self.dropped.append(DroppedWord(" ".join(words), reason))

    def merge(self, other: "LaunchRequest") -> None:
        """Add another request; each value on which the two disagree is a problem."""
        for name, setting in other.settings.items():
            existing = self.settings.setdefault(name, setting)
            if existing.value != setting.value:
                values = (
                    f"{existing.source} sets {format_value(existing.value)} and "
                    f"{setting.source} sets {format_value(setting.value)}"
                )
                text = f"{name.replace('_', ' ')}: {values}; set both to the same value"
                self.problems.append(Problem("", text))
        self.environment |= other.environment
        self.dropped += other.dropped
        self.problems += other.problems


_NO_DEVICE_RUNTIME = "it configures a device runtime that is not used"
NO_MPI = "MPI is not used"
NO_PARTITIONS = "there is no device allocation service"
_RANKS_ASSIGNED = "convoy assigns the ranks"
_SYNTHETIC_IS_RANDOM = "synthetic images are random, and used only if requested"
_LOCAL_REPLICAS = "replicas_per_instance"

_DROPPED_VARIABLES = {  # by pattern; the first that matches applies
    "POPLAR_*": _NO_DEVICE_RUNTIME,
    "POPLIBS_*": _NO_DEVICE_RUNTIME,
    "POPART_*": _NO_DEVICE_RUNTIME,
    "POPTORCH_*": _NO_DEVICE_RUNTIME,
    "GCL_*": _NO_DEVICE_RUNTIME,
    "IPUOF_*": NO_PARTITIONS,
    "VIPU_*": NO_PARTITIONS,
    "PARTITION": NO_PARTITIONS,
    "TF_CPP_*": "it configures the log of TensorFlow, which is not used",
    "OMPI_COMM_*": _RANKS_ASSIGNED,
    "OMPI_MCA_*": NO_MPI,
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "all instances have the same number of replicas",
    "POPDIST_*": _RANKS_ASSIGNED,
}


def read_environment(variables: Mapping[str, str]) -> LaunchRequest:
    """Parse the variables of a command; those not parsed are passed to the run."""
    request = LaunchRequest()
    for name, text in variables.items():
        request.merge(_read_variable(name, text))
    _derive_instances(request)
    return request


def _read_variable(name: str, text: str) -> LaunchRequest:
    request = LaunchRequest(f"environment {name}")
    dropped = _DROPPED_VARIABLES.items()
    reason = next((reason for pattern, reason in dropped if fnmatchcase(name, pattern)), None)
    if name in _VARIABLE_PARSERS:
        try:
            _VARIABLE_PARSERS[name](text, request)
        except OptionTypeError as error:
            request.problems.append(Problem(name, str(error)))
    elif reason is not None:
        request.add_dropped([name], reason)
    else:
        request.environment[name] = text
    return request


def parse_text(text: str) -> str:
    """Parse a value that must not be empty."""
    value: str = ValueType(str).parse([text])
    return value


def parse_count(text: str) -> int:
    """Parse a number of processes, hosts or devices."""
    number: int = ValueType(int).parse([text])
    if (problem := COUNT_LIMIT.problem(number)) is not None:
        raise OptionTypeError(problem)
    return number


def _parser(name: str, parse: Callable[[str], Any]) -> Callable[[str, LaunchRequest], None]:
    """Return a parser of a variable that sets one value."""
    return lambda text, request: request.set(name, parse(text))


def _derive_instances(request: LaunchRequest) -> None:
    """Derive the number of instances: all replicas, divided by those of one instance."""
    total, local = request.settings.get("replicas"), request.settings.pop(_LOCAL_REPLICAS, None)
    if local is None:
        return
    if total is None or total.value % local.value:
        value = "not set" if total is None else f"{total.value}"
        text = f"{local.value} must divide POPDIST_NUM_TOTAL_REPLICAS, which is {value}"
        request.problems.append(Problem("POPDIST_NUM_LOCAL_REPLICAS", text))
        return
    instances = Setting(total.value // local.value, local.source)
    request.merge(LaunchRequest(settings={"instances": instances}))


def _parse_tf_config(text: str, request: LaunchRequest) -> None:
    """Parse the workers of a cluster: one process each, and several may share a host."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise OptionTypeError(f"is not JSON: {quote_shortened(text)}") from None
    match document:
        case {"cluster": {"worker": [_, *_] as workers, **other_jobs}} if all(
            isinstance(worker, str) and worker for worker in workers
        ):
            request.set("hosts", len({worker.rpartition(":")[0] or worker for worker in workers}))
            request.set("instances", len(workers))
        case _:
            example = '{"cluster": {"worker": ["host1:3636", "host2:3636"]}}'
            raise OptionTypeError(f"lists no workers; it should look like {example}")
    for job in other_jobs:
        request.add_dropped([f"TF_CONFIG cluster.{job}"], "only workers train")
    match document:
        case {"task": {"index": _}}:
            request.add_dropped(["TF_CONFIG task.index"], _RANKS_ASSIGNED)


def _parse_tf_poplar_flags(text: str, request: LaunchRequest) -> None:
    """Parse flags of the TensorFlow runtime: `--name=value`, `--name value` or `--name`."""
    rest = deque(split_words(text))
    while rest:
        name, equals, value = (word := rest.popleft()).partition("=")
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.popleft()
            word = f"{word} {value}"
        match name:
            case "--executable_cache_path":
                request.set("executable_cache_path", parse_text(value))
            case "--use_synthetic_data" if value.lower() not in ("false", "0"):
                request.set("synthetic_data", True)
            case "--use_synthetic_data" | "--synthetic_data_initializer":
                request.add_dropped(["TF_POPLAR_FLAGS", word], _SYNTHETIC_IS_RANDOM)
            case _:
                request.add_dropped(["TF_POPLAR_FLAGS", word], _NO_DEVICE_RUNTIME)


def split_words(text: str) -> list[str]:
    """Split a value that is part of a command line."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise OptionTypeError(f"cannot be split: {str(error).lower()}") from None


_VARIABLE_PARSERS: dict[str, Callable[[str, LaunchRequest], None]] = {
    "TF_CONFIG": _parse_tf_config,
    "TF_POPLAR_FLAGS": _parse_tf_poplar_flags,
    "POPDIST_NUM_TOTAL_REPLICAS": _parser("replicas", parse_count),
    "POPDIST_NUM_LOCAL_REPLICAS": _parser(_LOCAL_REPLICAS, parse_count),
    "POPDIST_NUM_IPUS_PER_REPLICA": _parser("devices_per_replica", parse_count),
    "POPDIST_EXECUTABLE_CACHE_PATH": _parser("executable_cache_path", parse_text),
    "GC_PROFILE_LOG_DIR": _parser("profile_dir", parse_text),
}


# Host lists and hostfiles, in the formats of the launchers

_HOST_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")  # a comma in brackets belongs to the name
_HOST_RANGE = re.compile(r"(.*?)\[([0-9,-]+)\](.*)")
_SLOTS = re.compile(r"\bslots\s*=\s*(\S+)")

SlotsPerHost = Counter[str]  # host → processes that it runs


def parse_hosts(text: str) -> SlotsPerHost:
    """Parse `a:4,node[0-2]`; a host without a number runs one process each time it is listed."""
    hosts: SlotsPerHost = Counter()
    for entry in _HOST_ENTRY.findall(text):
        pattern, _, slots = entry.strip().partition(":")
        for host in _expand_host_range(pattern):
            hosts[host] += _parse_number(slots) if slots else 1
            if len(hosts) > MAX_PROCESSES:
                raise OptionTypeError(f"lists more than {MAX_PROCESSES:,} hosts")
    return _check_hosts(hosts, f", got {quote_shortened(text)}")


def read_hostfile(path: str) -> SlotsPerHost:
    """Read a hostfile: one host per line, optionally with `slots=N` and a comment after `#`."""
    try:
        text = decode_text(read_limited(Path(path)), path)
    except ConfigError as error:
        raise OptionTypeError(f"cannot be read: {error}") from None
    hosts: SlotsPerHost = Counter()
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            slots = _SLOTS.search(" ".join(words[1:]))
            for host, processes in parse_hosts(words[0]).items():
                hosts[host] += _parse_number(slots[1]) if slots else processes
    return _check_hosts(hosts, f": {quote_shortened(path)} is empty")


def _check_hosts(hosts: SlotsPerHost, if_empty: str) -> SlotsPerHost:
    if not hosts:
        raise OptionTypeError(f"lists no host{if_empty}")
    if not 1 <= hosts.total() <= MAX_PROCESSES:
        raise OptionTypeError(
            f"has slots for {hosts.total():,} processes, expected 1 to {MAX_PROCESSES:,}"
        )
    return hosts


def _expand_host_range(pattern: str) -> Iterator[str]:
    """Expand `node[0-2]` into node0, node1, node2."""
    match = _HOST_RANGE.fullmatch(pattern)
    if match is None:
        if not pattern or "[" in pattern:
            raise OptionTypeError(f"{quote_shortened(pattern)} is not a valid host")
        yield pattern
        return
    prefix, numbers, suffix = match.groups()
    for span in numbers.split(","):
        first, _, last = span.partition("-")
        for number in range(_parse_number(first), _parse_number(last or first) + 1):
            for rest in _expand_host_range(suffix) if suffix else [""]:
                yield f"{prefix}{number:0{len(first)}}{rest}"


def _parse_number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise OptionTypeError(f"expects an integer, got {quote_shortened(text)}")
    number: int = ValueType(int).parse([text])
    return number
