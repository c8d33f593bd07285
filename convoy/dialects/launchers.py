"""Programs that start programs (poprun, mpirun, gc-profile, …): their options, and what each of
them asks for or why it is dropped.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from convoy.config.flags import Given
from convoy.config.option import ValueType, WrongType
from convoy.config.settings import Problem
from convoy.dialects.launch_request import (
    Hosts,
    LaunchRequest,
    combine,
    read_count,
    read_hostfile,
    read_hosts,
    split_words,
)
from convoy.registry import near_names
from convoy.text import printable, shown

_INTERPRETER = re.compile(r"python(\d(\.\d+)?)?", re.ASCII)


@dataclass(frozen=True)
class LauncherOption:
    """Spellings of one option: `to` names what it asks for, `why` says that it asks for nothing."""

    spellings: tuple[str, ...]
    to: str = ""
    values: int = 1
    means: int = 0  # the value of a switch
    why: str = ""
    value_is_optional: bool = False

    @property
    def is_count(self) -> bool:
        return self.to in ("instances", "replicas", "devices_per_replica")


@dataclass(frozen=True)
class Launcher:
    """A launcher: its options, and why it is dropped itself if it asks for nothing."""

    name: str
    options: tuple[LauncherOption, ...] = ()
    starts_processes: bool = False
    one_dash_will_do: bool = False  # `-bind-to` is `--bind-to`
    why: str = ""

    def find(self, spelling: str) -> LauncherOption | None:
        wanted = self._normalized(spelling)
        fits = (row for row in self.options if wanted in map(self._normalized, row.spellings))
        return next(fits, None)

    def _normalized(self, spelling: str) -> str:
        return spelling.lstrip("-") if self.one_dash_will_do else spelling


def _value(to: str, *spellings: str) -> LauncherOption:
    return LauncherOption(spellings, to)


def _switch(to: str, means: int, *spellings: str) -> LauncherOption:
    return LauncherOption(spellings, to, values=0, means=means)


def _dropped(why: str, *spellings: str, values: int = 1) -> LauncherOption:
    return LauncherOption(spellings, values=values, why=why)


def _each_dropped(why: str, *spellings: str) -> Iterator[LauncherOption]:
    return (_dropped(why, spelling) for spelling in spellings)


_PARTITIONS = "there is no service that hands out devices"
_WIRING = "processes find their own way to each other, without MPI"
_BINDING = "each process is bound to cores of its own either way"
_ONE_VOICE = "one process prints for all of them"
_TOPOLOGY = "`convoy plan` shows the layout"
_OFFLINE = "a program that needs no device takes none"

POPRUN = Launcher(
    "poprun",
    starts_processes=True,
    options=(
        _value("instances", "--num-instances"),
        _value("replicas", "--num-replicas"),
        _value("devices_per_replica", "--ipus-per-replica"),
        _value("hosts", "--host", "-H"),
        _value("hostfile", "--hostfile"),
        _value("executable_cache_path", "--executable-cache-path"),
        _value("mpirun", "--mpi-global-args"),
        _value("mpirun", "--mpi-local-args"),
        _switch("verbosity", 1, "-v", "--verbose"),
        _switch("verbosity", 2, "-vv", "--vv"),
        *_each_dropped(_BINDING, "--numa-aware", "--process-placement"),
        _dropped(_ONE_VOICE, "--only-output-from-instance"),
        LauncherOption(("--offline-mode",), why=_OFFLINE, value_is_optional=True),
        _dropped(_TOPOLOGY, "--print-topology"),
        *_each_dropped(
            _PARTITIONS,
            *("--vipu-server-host", "--vipu-server-port", "--vipu-server-timeout"),
            *("--vipu-partition", "--vipu-partition-attempts", "--vipu-cluster"),
            *("--vipu-allocation", "--update-partition", "--reset-partition"),
            "--remove-partition",
        ),
        _dropped("devices are not linked in domains", "--num-ilds"),
        _dropped("replicas meet at every update, in one way", "--sync-type"),
    ),
)

MPIRUN = Launcher(
    "mpirun",
    starts_processes=True,
    one_dash_will_do=True,
    why="it names neither processes nor hosts",
    options=(
        _value("instances", "-np", "-n", "-c"),
        _value("hosts", "--host", "-H"),
        _value("hostfile", "--hostfile", "--machinefile"),
        _value("export", "-x"),
        _switch("verbosity", 1, "-v", "--verbose"),
        _switch("verbosity", -1, "-q", "--quiet"),
        *_each_dropped(_BINDING, "--bind-to", "--map-by", "--rank-by"),
        _dropped(_TOPOLOGY, "--report-bindings", "--display-map", values=0),
        _dropped(_ONE_VOICE, "--tag-output", "--timestamp-output", values=0),
        _dropped(_WIRING, "--mca", "--gmca", values=2),
        _dropped(_WIRING, "--prefix"),
        _dropped("MPI is not used, nor its guard against root", "--allow-run-as-root", values=0),
        _dropped("the machine's capacity is checked before a run", "--oversubscribe", values=0),
    ),
)

GC_PROFILE = Launcher(
    "gc-profile", (_value("profile_dir", "-d"),), why="a run writes its own profile"
)
NOHUP = Launcher("nohup", why="write it in front of convoy itself: `nohup convoy run …`")
TIME = Launcher(
    "time",
    (
        LauncherOption(("-p", "-v", "--verbose", "--portability", "-a", "--append"), values=0),
        LauncherOption(("-f", "--format", "-o", "--output")),
    ),
    why="a run tells its own time",
)

LAUNCHERS = {
    "poprun": POPRUN,
    "mpirun": MPIRUN,
    "mpiexec": MPIRUN,
    "orterun": MPIRUN,
    "gc-profile": GC_PROFILE,
    "nohup": NOHUP,
    "time": TIME,
}


def file_name(word: str) -> str:
    """The last part of a path: programs are known by it, in whatever folder they are."""
    return PurePosixPath(word).name


def is_interpreter(word: str) -> bool:
    """Whether a word starts Python."""
    return _INTERPRETER.fullmatch(file_name(word)) is not None


def is_variable(name: str) -> bool:
    """Whether an environment variable can have this name."""
    return name.isascii() and name.isidentifier()


def begins_program(word: str) -> bool:
    """Whether a word can only be the next program of a command, and no value of a launcher."""
    return file_name(word) in LAUNCHERS or is_interpreter(word) or word.endswith(".py")


@dataclass(frozen=True)
class TypedOption:
    """An option of a launcher as typed: its words, and the values among them."""

    option: LauncherOption
    words: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def spelling(self) -> str:
        return self.words[0].partition("=")[0]

    @property
    def problem(self) -> Problem | None:
        """What is wrong with the number of its values."""
        wanted, got = self.option.values, len(self.values)
        if wanted == 0 and got > 0:
            return Problem(self.spelling, "takes no value")
        if got >= wanted or (got == 0 and self.option.value_is_optional):
            return None
        needed = "a value" if wanted == 1 else f"{wanted} values"
        example = " N" if self.option.is_count else " VALUE" * wanted
        return Problem(self.spelling, f"needs {needed}, as in `{self.spelling}{example}`")


@dataclass(frozen=True)
class LauncherCall:
    """A launcher as typed, with the words of its own."""

    name: str
    words: tuple[str, ...]
    options: tuple[TypedOption, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def launcher(self) -> Launcher:
        return LAUNCHERS[self.name]


def read_call(name: str, words: Sequence[str]) -> LauncherCall:
    """A launcher's own words end where one is neither an option nor a value of one."""
    launcher, rest = LAUNCHERS[name], deque(words)
    options: list[TypedOption] = []
    problems: list[Problem] = []
    while rest and rest[0].startswith("-"):
        word = rest.popleft()
        if word == "--":
            break
        spelling, equals, value = word.partition("=")
        option = launcher.find(spelling)
        if option is None:
            problems.append(_unknown(spelling, launcher))
            # Pass over what may belong to it, so that the rest is still read.
            while rest and not (equals or rest[0].startswith("-") or begins_program(rest[0])):
                rest.popleft()
            continue
        values = [] if equals else _take_values(option, launcher, rest)
        typed = TypedOption(option, (word, *values), (value,) if equals else tuple(values))
        options.append(typed)
        if typed.problem:
            problems.append(typed.problem)
    own = tuple(words[: len(words) - len(rest)])
    return LauncherCall(name, own, tuple(options), tuple(problems))


def _take_values(option: LauncherOption, launcher: Launcher, rest: deque[str]) -> list[str]:
    values: list[str] = []
    while len(values) < option.values and rest and _is_value(rest[0], option, launcher):
        values.append(rest.popleft())
    return values


def _is_value(word: str, option: LauncherOption, launcher: Launcher) -> bool:
    if begins_program(word):
        return False
    if option.to == "mpirun":  # options for another program: only the launcher's own end them
        return launcher.find(word.partition("=")[0]) is None
    if option.value_is_optional and word.lower() not in ("0", "1", "yes", "no", "on", "off"):
        return False
    return not word.startswith("-")


def _unknown(spelling: str, launcher: Launcher) -> Problem:
    near = near_names(spelling, [each for row in launcher.options for each in row.spellings])
    hint = f"did you mean {', '.join(near)}? Otherwise leave it out" if near else "leave it out"
    return Problem("", f"unknown option {printable(spelling)} of {launcher.name}; {hint}")


_INHERITED = "the run has every variable of this shell"
_COUNTED = "poprun's own options say how many processes there are, and where"


def read_launchers(calls: Sequence[LauncherCall]) -> LaunchRequest:
    """What the launchers of a command ask for; only one of them may start processes."""
    request = combine([_request(call) for call in calls])
    starters = [call.name for call in calls if call.launcher.starts_processes]
    if len(starters) > 1:
        text = f"{' and '.join(starters)} cannot be nested; leave out all but one"
        request.problems.insert(0, Problem("", text))
    return request


def _request(call: LauncherCall) -> LaunchRequest:
    launcher = call.launcher
    request = LaunchRequest(launcher.name, problems=list(call.problems))
    for typed in call.options:
        try:
            _read_option(typed, request)
        except WrongType as wrong:
            request.problems.append(Problem(typed.spelling, str(wrong)))
    _count_hosts(request, launcher)
    if launcher.why and not request.settings.keys() - {"verbosity"}:
        idle = [typed for typed in call.options if not typed.option.why and not typed.option.to]
        request.drop([call.name, *(word for typed in idle for word in typed.words)], launcher.why)
    if launcher is POPRUN:
        request.problems.extend(_uneven(request.settings))
    return request


def _read_option(typed: TypedOption, request: LaunchRequest) -> None:
    """Record what one option asks for, or drop it with its reason."""
    if typed.option.why:
        request.drop(typed.words, typed.option.why)
    if not typed.option.to or len(typed.values) != typed.option.values:
        return
    match typed.option.to:
        case "hosts":
            request.set("processes_of_hosts", read_hosts(typed.values[0]))
        case "hostfile":
            request.set("processes_of_hosts", read_hostfile(typed.values[0]))
        case "export":
            _export(typed, request)
        case "mpirun":
            _read_arguments_of_mpirun(typed, request)
        case name if not typed.values:
            request.set(name, typed.option.means)
        case name if typed.option.is_count:
            request.set(name, read_count(typed.values[0]))
        case name:
            request.set(name, ValueType(str).read([typed.values[0]]))


def _count_hosts(request: LaunchRequest, launcher: Launcher) -> None:
    """mpirun starts a process in each slot of the hosts unless it was given a number."""
    if "processes_of_hosts" not in request.settings:
        return
    hosts: Hosts = request.settings.pop("processes_of_hosts").value
    request.set("hosts", len(hosts))
    if launcher is MPIRUN and "instances" not in request.settings:
        request.set("instances", hosts.total())


def _export(typed: TypedOption, request: LaunchRequest) -> None:
    name, equals, value = typed.values[0].partition("=")
    if not is_variable(name):
        raise WrongType(f"needs NAME or NAME=VALUE, got {shown(typed.values[0])}")
    if equals:
        request.environment[name] = value
    else:
        request.drop(typed.words, _INHERITED)


def _read_arguments_of_mpirun(typed: TypedOption, request: LaunchRequest) -> None:
    """The text that poprun hands on: its variables are taken, the rest asks for nothing."""
    words = split_words(typed.values[0])
    call = read_call("mpirun", words)
    request.problems.extend(call.problems)
    for inner in call.options:
        if inner.option.to in ("instances", "hosts", "hostfile"):
            request.drop(inner.words, _COUNTED)
        else:
            _read_option(inner, request)
    if len(call.words) < len(words):
        raise WrongType(f"holds the unexpected word {shown(words[len(call.words)])}")


def _uneven(settings: Given) -> Iterator[Problem]:
    """Replicas are shared out evenly to instances, and instances to hosts."""
    replicas, instances, hosts = (
        settings[name].value if name in settings else 1
        for name in ("replicas", "instances", "hosts")
    )
    if replicas % instances:
        typed = replicas if "replicas" in settings else "(not given, so 1)"
        yield Problem(
            "--num-replicas",
            f"{typed} is not a multiple of --num-instances {instances}; "
            f"use --num-replicas {_next_multiple(replicas, instances)}",
        )
    if "instances" in settings and instances % hosts:
        yield Problem(
            "--num-instances",
            f"{instances} cannot be shared out evenly to {hosts} hosts; "
            f"use --num-instances {_next_multiple(instances, hosts)}",
        )


def _next_multiple(number: int, of: int) -> int:
    return -(-number // of) * of
