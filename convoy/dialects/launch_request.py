"""What launchers and environment variables request: the number of processes, hosts, variables.

Launchers request it with options (launchers.py), environment variables with their values, which
are parsed here. All other variables are passed to the run unchanged: DATA_DIR (in the option
table), DATASETS_DIR (read by benchmarks), WANDB_MODE, and every unknown one.
"""

import json
import re
import shlex
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


def merge_requests(requests: Sequence[LaunchRequest]) -> LaunchRequest:
    """Merge requests; the last one wins."""
    return LaunchRequest(
        "",
        {name: setting for request in requests for name, setting in request.settings.items()},
        {name: text for request in requests for name, text in request.environment.items()},
        [dropped for request in requests for dropped in request.dropped],
        [problem for request in requests for problem in request.problems],
    )


def conflict_problems(sources: Iterable[Settings]) -> list[Problem]:
    """Report each value on which two sources disagree."""
    first: Settings = {}
    problems = []
    for settings in sources:
        for name, setting in settings.items():
            before = first.setdefault(name, setting)
            if before.value != setting.value:
                values = (
                    f"{before.source} sets {format_value(before.value)} and "
                    f"{setting.source} sets {format_value(setting.value)}"
                )
                text = f"{name.replace('_', ' ')}: {values}; make them agree"
                problems.append(Problem("", text))
    return list(dict.fromkeys(problems))


_NO_DEVICE_RUNTIME = "it configures a device runtime that is not used"
_NO_PARTITIONS = "there is no device allocation service"
_RANKS_ASSIGNED = "convoy assigns ranks itself"
_SYNTHETIC_IS_RANDOM = "synthetic images are random, and used only if requested"
_LOCAL_REPLICAS = "replicas_per_instance"

# A name that ends with an underscore stands for all names with that prefix.
_DROPPED_VARIABLES = {
    "POPLAR_": _NO_DEVICE_RUNTIME,
    "POPLIBS_": _NO_DEVICE_RUNTIME,
    "POPART_": _NO_DEVICE_RUNTIME,
    "POPTORCH_": _NO_DEVICE_RUNTIME,
    "GCL_": _NO_DEVICE_RUNTIME,
    "IPUOF_": _NO_PARTITIONS,
    "VIPU_": _NO_PARTITIONS,
    "PARTITION": _NO_PARTITIONS,
    "TF_CPP_": "it configures the log of TensorFlow, which is not used",
    "OMPI_COMM_": _RANKS_ASSIGNED,
    "OMPI_MCA_": "MPI is not used",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "all instances always have equally many replicas",
    "POPDIST_": _RANKS_ASSIGNED,
}


def read_environment(variables: Mapping[str, str]) -> LaunchRequest:
    """Parse the variables of a command; those not parsed are passed to the run."""
    requests = [_read_variable(name, text) for name, text in variables.items()]
    merged = merge_requests(requests)
    settings, uneven = _derive_instances(merged.settings)
    conflicts = conflict_problems([*(request.settings for request in requests), settings])
    return replace(merged, settings=settings, problems=[*merged.problems, *conflicts, *uneven])


def _read_variable(name: str, text: str) -> LaunchRequest:
    request = LaunchRequest(f"environment {name}")
    prefixes = (prefix for prefix in _DROPPED_VARIABLES if prefix.endswith("_"))
    prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), name)
    reason = _DROPPED_VARIABLES.get(name, _DROPPED_VARIABLES.get(prefix))
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


def parse_count(text: str) -> int:
    """Parse a number of processes, hosts or devices."""
    number: int = ValueType(int).parse([text])
    if (problem := COUNT_LIMIT.problem(number)) is not None:
        raise OptionTypeError(problem)
    return number


def _count_parser(name: str) -> Callable[[str, LaunchRequest], None]:
    return lambda text, request: request.set(name, parse_count(text))


def _text_parser(name: str) -> Callable[[str, LaunchRequest], None]:
    return lambda text, request: request.set(name, ValueType(str).parse([text]))


def _derive_instances(settings: Settings) -> tuple[Settings, list[Problem]]:
    """Derive the number of instances: all replicas, divided by those of one instance."""
    remaining = dict(settings)
    total, local = settings.get("replicas"), remaining.pop(_LOCAL_REPLICAS, None)
    if local is None:
        return remaining, []
    if total is None or total.value % local.value:
        value = "not set" if total is None else f"{total.value}"
        text = f"{local.value} must divide POPDIST_NUM_TOTAL_REPLICAS, which is {value}"
        return remaining, [Problem("POPDIST_NUM_LOCAL_REPLICAS", text)]
    return remaining | {"instances": Setting(total.value // local.value, local.source)}, []


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
                request.set("executable_cache_path", ValueType(str).parse([value]))
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
    "POPDIST_NUM_TOTAL_REPLICAS": _count_parser("replicas"),
    "POPDIST_NUM_LOCAL_REPLICAS": _count_parser(_LOCAL_REPLICAS),
    "POPDIST_NUM_IPUS_PER_REPLICA": _count_parser("devices_per_replica"),
    "POPDIST_EXECUTABLE_CACHE_PATH": _text_parser("executable_cache_path"),
    "GC_PROFILE_LOG_DIR": _text_parser("profile_dir"),
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
        raise OptionTypeError(f"expects a whole number, got {quote_shortened(text)}")
    number: int = ValueType(int).parse([text])
    return number
