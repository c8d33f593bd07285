"""What the front of a command asks of a run: how many processes, on which hosts, which variables.

Launchers ask through their options (launchers.py), environment variables through their values,
which are read here. A variable that nothing here reads is passed on to the run as it is: DATA_DIR,
which the option table names, DATASETS_DIR, which benchmarks read, WANDB_MODE, and all unknown ones.
"""

import json
import re
import shlex
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convoy.config.flags import Given
from convoy.config.option import Limit, ValueType, WrongType, spelled
from convoy.config.settings import Dropped, Problem, Setting
from convoy.config.yaml_reader import clean_text, read_limited
from convoy.errors import ConfigError
from convoy.text import shown

MAX_PROCESSES = 65536
COUNT = Limit(at_least=1, at_most=MAX_PROCESSES)


@dataclass
class LaunchRequest:
    """What one launcher or variable asks for, or all of them together.

    `settings` holds any of hosts, instances, replicas (of all instances together),
    devices_per_replica, executable_cache_path, profile_dir, synthetic_data and verbosity.
    `environment` is for the run.
    """

    source: str = ""  # the launcher or variable; empty for several
    settings: Given = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    dropped: list[Dropped] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def set(self, name: str, value: Any) -> None:
        self.settings[name] = Setting(value, self.source)

    def drop(self, words: Sequence[str], reason: str) -> None:
        self.dropped.append(Dropped(" ".join(words), reason))


def combine(requests: Sequence[LaunchRequest]) -> LaunchRequest:
    """All requests as one; the last one wins."""
    return LaunchRequest(
        "",
        {name: setting for request in requests for name, setting in request.settings.items()},
        {name: text for request in requests for name, text in request.environment.items()},
        [dropped for request in requests for dropped in request.dropped],
        [problem for request in requests for problem in request.problems],
    )


def contradictions(sources: Iterable[Given]) -> list[Problem]:
    """A problem for each value that two sources give differently."""
    first: Given = {}
    problems = []
    for settings in sources:
        for name, setting in settings.items():
            before = first.setdefault(name, setting)
            if before.value != setting.value:
                says = f"{before.source} says {spelled(before.value)}"
                other = f"{setting.source} {spelled(setting.value)}"
                what = name.replace("_", " ")
                problems.append(Problem("", f"{what}: {says} and {other}; make them agree"))
    return list(dict.fromkeys(problems))


_RUNTIME = "the device runtime it speaks to is not used"
_PARTITIONS = "there is no service that hands out devices"
_NUMBERING = "a run numbers its own processes"
_IMAGES = "synthetic images are random, and none are made unless asked for"
_LOCAL_REPLICAS = "replicas_per_instance"

# A name that ends with an underscore stands for all that begin with it.
_DROPPED = {
    "POPLAR_": _RUNTIME,
    "POPLIBS_": _RUNTIME,
    "POPART_": _RUNTIME,
    "POPTORCH_": _RUNTIME,
    "GCL_": _RUNTIME,
    "IPUOF_": _PARTITIONS,
    "VIPU_": _PARTITIONS,
    "PARTITION": _PARTITIONS,
    "TF_CPP_": "TensorFlow, whose log it sets, is not used",
    "OMPI_COMM_": _NUMBERING,
    "OMPI_MCA_": "processes find their own way to each other, without MPI",
    "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE": "instances have equally many replicas either way",
    "POPDIST_": _NUMBERING,
}


def read_environment(variables: Mapping[str, str]) -> LaunchRequest:
    """What the variables of a command ask for, and which of them the run itself gets."""
    requests = [_read_variable(name, text) for name, text in variables.items()]
    request = combine(requests)
    settings, uneven = _with_instances(request.settings)
    conflicts = contradictions([*(each.settings for each in requests), settings])
    return replace(request, settings=settings, problems=[*request.problems, *conflicts, *uneven])


def _read_variable(name: str, text: str) -> LaunchRequest:
    request = LaunchRequest(f"environment {name}")
    kind = next((one for one in _DROPPED if one.endswith("_") and name.startswith(one)), name)
    reason = _DROPPED.get(name, _DROPPED.get(kind))
    if name in _READERS:
        try:
            _READERS[name](text, request)
        except WrongType as wrong:
            request.problems.append(Problem(name, str(wrong)))
    elif reason is not None:
        request.drop([name], reason)
    else:
        request.environment[name] = text
    return request


def read_count(text: str) -> int:
    """A number of processes, hosts or devices."""
    number: int = ValueType(int).read([text])
    if (problem := COUNT.problem(number)) is not None:
        raise WrongType(problem)
    return number


def _count(name: str) -> Callable[[str, LaunchRequest], None]:
    return lambda text, request: request.set(name, read_count(text))


def _text(name: str) -> Callable[[str, LaunchRequest], None]:
    return lambda text, request: request.set(name, ValueType(str).read([text]))


def _with_instances(settings: Given) -> tuple[Given, list[Problem]]:
    """The number of instances: all replicas, divided by those of one instance."""
    rest = dict(settings)
    total, local = settings.get("replicas"), rest.pop(_LOCAL_REPLICAS, None)
    if local is None:
        return rest, []
    if total is None or total.value % local.value:
        known = "not set" if total is None else f"{total.value}"
        text = f"{local.value} must divide POPDIST_NUM_TOTAL_REPLICAS, which is {known}"
        return rest, [Problem("POPDIST_NUM_LOCAL_REPLICAS", text)]
    return rest | {"instances": Setting(total.value // local.value, local.source)}, []


def _tf_config(text: str, request: LaunchRequest) -> None:
    """Workers of a cluster, each a process; several may share a host."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise WrongType(f"is not JSON: {shown(text)}") from None
    match document:
        case {"cluster": {"worker": [_, *_] as workers, **others}} if all(
            isinstance(worker, str) and worker for worker in workers
        ):
            request.set("hosts", len({worker.rpartition(":")[0] or worker for worker in workers}))
            request.set("instances", len(workers))
        case _:
            wanted = '{"cluster": {"worker": ["host1:3636", "host2:3636"]}}'
            raise WrongType(f"names no workers; it should be like {wanted}")
    for job in others:
        request.drop([f"TF_CONFIG cluster.{job}"], "only workers train")
    match document:
        case {"task": {"index": _}}:
            request.drop(["TF_CONFIG task.index"], _NUMBERING)


def _tf_poplar_flags(text: str, request: LaunchRequest) -> None:
    """Flags of the TensorFlow runtime: `--name=value`, `--name value` or `--name`."""
    rest = deque(split_words(text))
    while rest:
        name, equals, value = (word := rest.popleft()).partition("=")
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.popleft()
            word = f"{word} {value}"
        match name:
            case "--executable_cache_path":
                request.set("executable_cache_path", ValueType(str).read([value]))
            case "--use_synthetic_data" if value.lower() not in ("false", "0"):
                request.set("synthetic_data", True)
            case "--use_synthetic_data" | "--synthetic_data_initializer":
                request.drop(["TF_POPLAR_FLAGS", word], _IMAGES)
            case _:
                request.drop(["TF_POPLAR_FLAGS", word], _RUNTIME)


def split_words(text: str) -> list[str]:
    """The words of a value that holds a part of a command line."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise WrongType(f"cannot be split: {str(error).lower()}") from None


_READERS: dict[str, Callable[[str, LaunchRequest], None]] = {
    "TF_CONFIG": _tf_config,
    "TF_POPLAR_FLAGS": _tf_poplar_flags,
    "POPDIST_NUM_TOTAL_REPLICAS": _count("replicas"),
    "POPDIST_NUM_LOCAL_REPLICAS": _count(_LOCAL_REPLICAS),
    "POPDIST_NUM_IPUS_PER_REPLICA": _count("devices_per_replica"),
    "POPDIST_EXECUTABLE_CACHE_PATH": _text("executable_cache_path"),
    "GC_PROFILE_LOG_DIR": _text("profile_dir"),
}


# Lists and files of hosts, as launchers take them

_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")  # a comma in brackets belongs to the name
_RANGE = re.compile(r"(.*?)\[([0-9,-]+)\](.*)")
_SLOTS = re.compile(r"\bslots\s*=\s*(\S+)")

Hosts = Counter[str]  # host → processes that are started there


def read_hosts(text: str) -> Hosts:
    """`a:4,node[0-2]`; each mention of a host without a number is one process."""
    hosts: Hosts = Counter()
    for entry in _ENTRY.findall(text):
        pattern, _, slots = entry.strip().partition(":")
        for host in _expand(pattern):
            hosts[host] += _number(slots) if slots else 1
            if len(hosts) > MAX_PROCESSES:
                raise WrongType(f"names more than {MAX_PROCESSES:,} hosts")
    return _checked(hosts, f", got {shown(text)}")


def read_hostfile(path: str) -> Hosts:
    """A line for each host: its name, optionally `slots=N` and a comment after `#`."""
    try:
        text = clean_text(read_limited(Path(path)), path)
    except ConfigError as error:
        raise WrongType(f"cannot be read: {error}") from None
    hosts: Hosts = Counter()
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words:
            slots = _SLOTS.search(" ".join(words[1:]))
            for host, processes in read_hosts(words[0]).items():
                hosts[host] += _number(slots[1]) if slots else processes
    return _checked(hosts, f": {shown(path)} is empty")


def _checked(hosts: Hosts, if_empty: str) -> Hosts:
    if not hosts:
        raise WrongType(f"names no host{if_empty}")
    if not 1 <= hosts.total() <= MAX_PROCESSES:
        raise WrongType(
            f"has places for {hosts.total():,} processes, not for 1 to {MAX_PROCESSES:,}"
        )
    return hosts


def _expand(pattern: str) -> Iterator[str]:
    """`node[0-2]` → node0, node1, node2."""
    found = _RANGE.fullmatch(pattern)
    if found is None:
        if not pattern or "[" in pattern:
            raise WrongType(f"cannot read the host {shown(pattern)}")
        yield pattern
        return
    prefix, numbers, suffix = found.groups()
    for span in numbers.split(","):
        first, _, last = span.partition("-")
        for number in range(_number(first), _number(last or first) + 1):
            for rest in _expand(suffix) if suffix else [""]:
                yield f"{prefix}{number:0{len(first)}}{rest}"


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise WrongType(f"expects a whole number, got {shown(text)}")
    number: int = ValueType(int).read([text])
    return number
