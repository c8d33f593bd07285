"""Variables in front of a command, or exported by its launcher → what they ask for.

One that nothing here reads is passed on to the run as it is: DATA_DIR, which the option table
names, DATASETS_DIR, which benchmarks read, WANDB_MODE, and all that are unknown.
"""

import json
import shlex
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from convoy.config.commands.launch import Given, Heard, Launch, contradictions, together
from convoy.config.commands.launcher_tables import COUNT
from convoy.config.layers import Setting
from convoy.config.problems import Problem
from convoy.config.user_text import shown
from convoy.config.values import Kind, WrongType

_RUNTIME = "the device runtime it speaks to is not used"
_PARTITIONS = "there is no service that hands out devices"
_NUMBERING = "a run numbers its own processes"
_IMAGES = "synthetic images are random, and none are made unless asked for"
_LOCAL = "replicas_per_instance"

# A name that ends with a dash below stands for all that begin so.
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


def read_environment(variables: Mapping[str, str]) -> tuple[Launch, list[Problem]]:
    """What the variables of a command ask for, and which of them the run itself gets."""
    heard = [_listen(name, text) for name, text in variables.items()]
    launch = together(heard)
    given, uneven = _with_instances(launch.given)
    problems = [problem for one in heard for problem in one.problems]
    problems += contradictions([*(one.given for one in heard), given])
    return replace(launch, given=given), [*problems, *uneven]


def _listen(name: str, text: str) -> Heard:
    heard = Heard(f"environment {name}")
    reason = next((why for known, why in _DROPPED.items() if _fits(name, known)), None)
    if name in _READERS:
        try:
            _READERS[name](text, heard)
        except WrongType as wrong:
            heard.problems.append(Problem(name, str(wrong)))
    elif reason is not None:
        heard.drop([name], reason)
    else:
        heard.environment[name] = text
    return heard


def _fits(name: str, known: str) -> bool:
    return name.startswith(known) if known.endswith("_") else name == known


def _count(to: str) -> Callable[[str, Heard], None]:
    def read(text: str, heard: Heard) -> None:
        number = Kind(int).read([text])
        if (problem := COUNT.problem(number)) is not None:
            raise WrongType(problem)
        heard.give(to, number)

    return read


def _text(to: str) -> Callable[[str, Heard], None]:
    return lambda text, heard: heard.give(to, Kind(str).read([text]))


def _with_instances(given: Given) -> tuple[Given, list[Problem]]:
    """All replicas, divided by those of one instance, are the instances."""
    total, local = given.get("replicas"), given.get(_LOCAL)
    rest = {name: setting for name, setting in given.items() if name != _LOCAL}
    if local is None:
        return rest, []
    if total is None or total.value % local.value:
        known = "not set" if total is None else f"{total.value}"
        text = f"{local.value} must divide POPDIST_NUM_TOTAL_REPLICAS, which is {known}"
        return rest, [Problem("POPDIST_NUM_LOCAL_REPLICAS", text)]
    return rest | {"instances": Setting(total.value // local.value, local.source)}, []


def _tf_config(text: str, heard: Heard) -> None:
    """Workers of a cluster, each a process; several may share a host."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise WrongType(f"is not JSON: {shown(text)}") from None
    match document:
        case {"cluster": {"worker": [_, *_] as workers, **others}} if all(
            map(_is_address, workers)
        ):
            heard.give("hosts", len({worker.rpartition(":")[0] or worker for worker in workers}))
            heard.give("instances", len(workers))
        case _:
            wanted = '{"cluster": {"worker": ["host1:3636", "host2:3636"]}}'
            raise WrongType(f"names no workers; it should be like {wanted}")
    for job in others:
        heard.drop([f"TF_CONFIG cluster.{job}"], "only workers train")
    match document:
        case {"task": {"index": _}}:
            heard.drop(["TF_CONFIG task.index"], _NUMBERING)


def _is_address(worker: Any) -> bool:
    return isinstance(worker, str) and worker != ""


def _tf_poplar_flags(text: str, heard: Heard) -> None:
    """Flags of the TensorFlow runtime: `--name=value`, `--name value` or `--name`."""
    try:
        rest = deque(shlex.split(text))
    except ValueError as error:
        raise WrongType(f"cannot be split: {str(error).lower()}") from None
    while rest:
        name, equals, value = (word := rest.popleft()).partition("=")
        if not equals and rest and not rest[0].startswith("-"):
            value = rest.popleft()
            word = f"{word} {value}"
        match name:
            case "--executable_cache_path":
                heard.give("executable_cache_path", Kind(str).read([value]))
            case "--use_synthetic_data" if value.lower() not in ("false", "0"):
                heard.give("synthetic_data", True)
            case "--use_synthetic_data" | "--synthetic_data_initializer":
                heard.drop(["TF_POPLAR_FLAGS", word], _IMAGES)
            case _:
                heard.drop(["TF_POPLAR_FLAGS", word], _RUNTIME)


_READERS: dict[str, Callable[[str, Heard], None]] = {
    "TF_CONFIG": _tf_config,
    "TF_POPLAR_FLAGS": _tf_poplar_flags,
    "POPDIST_NUM_TOTAL_REPLICAS": _count("replicas"),
    "POPDIST_NUM_LOCAL_REPLICAS": _count(_LOCAL),
    "POPDIST_NUM_IPUS_PER_REPLICA": _count("devices_per_replica"),
    "POPDIST_EXECUTABLE_CACHE_PATH": _text("executable_cache_path"),
    "GC_PROFILE_LOG_DIR": _text("profile_dir"),
}
