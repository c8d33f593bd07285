"""Programs that start programs (poprun, mpirun, gc-profile, …): for each of their options, the
setting it requests or the reason it is dropped.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from convoy.config.option import OptionTypeError
from convoy.config.schema import Problem, Settings
from convoy.dialects.launch_request import (
    NO_MPI,
    NO_PARTITIONS,
    LaunchRequest,
    SlotsPerHost,
    parse_count,
    parse_hosts,
    parse_text,
    read_hostfile,
    split_words,
)
from convoy.registry import near_names
from convoy.text import printable, quote_shortened

_INTERPRETER = re.compile(r"python(\d(\.\d+)?)?", re.ASCII)


@dataclass(frozen=True)
class LauncherOption:
    """An option of a launcher: the setting it requests, or the reason it is dropped."""

    spellings: tuple[str, ...]
    setting: str = ""
    num_values: int = 1
    const: int = 0  # the value that a switch sets
    dropped: str = ""
    value_is_optional: bool = False

    @property
    def is_count(self) -> bool:
        return self.setting in ("instances", "replicas", "devices_per_replica")


@dataclass(frozen=True)
class Launcher:
    """A launcher: its options, and the reason it is dropped if it requests nothing."""

    name: str
    options: tuple[LauncherOption, ...] = ()
    starts_processes: bool = False
    allow_single_dash: bool = False  # `-bind-to` is `--bind-to`
    dropped: str = ""

    def find(self, spelling: str) -> LauncherOption | None:
        name = self._normalized(spelling)
        matches = (
            option for option in self.options if name in map(self._normalized, option.spellings)
        )
        return next(matches, None)

    def _normalized(self, spelling: str) -> str:
        return spelling.lstrip("-") if self.allow_single_dash else spelling


def _value(setting: str, *spellings: str) -> LauncherOption:
    return LauncherOption(spellings, setting)


def _switch(setting: str, const: int, *spellings: str) -> LauncherOption:
    return LauncherOption(spellings, setting, num_values=0, const=const)


def _dropped(reason: str, *spellings: str, num_values: int = 1) -> LauncherOption:
    return LauncherOption(spellings, num_values=num_values, dropped=reason)


_ALWAYS_BOUND = "each process is always pinned to its own cores"
_RANK_0_PRINTS = "rank 0 prints for all processes"
_SHOWN_BY_PLAN = "`convoy plan` shows where each process runs"
_CAPACITY_CHECKED = "the capacity of the machine is checked before a run starts"
_NO_DEVICE_NEEDED = "a program that uses no device does not reserve one"

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
        _value("mpirun", "--mpi-global-args", "--mpi-local-args"),
        _switch("verbosity", 1, "-v", "--verbose"),
        _switch("verbosity", 2, "-vv", "--vv"),
        _dropped(_ALWAYS_BOUND, "--numa-aware", "--process-placement"),
        _dropped(_RANK_0_PRINTS, "--only-output-from-instance"),
        LauncherOption(("--offline-mode",), dropped=_NO_DEVICE_NEEDED, value_is_optional=True),
        _dropped(_SHOWN_BY_PLAN, "--print-topology"),
        _dropped(
            NO_PARTITIONS,
            *("--vipu-server-host", "--vipu-server-port", "--vipu-server-timeout"),
            *("--vipu-partition", "--vipu-partition-attempts", "--vipu-cluster"),
            *("--vipu-allocation", "--update-partition", "--reset-partition"),
            "--remove-partition",
        ),
        _dropped("devices are not grouped into link domains", "--num-ilds"),
        _dropped("replicas synchronize at every update", "--sync-type"),
    ),
)

MPIRUN = Launcher(
    "mpirun",
    starts_processes=True,
    allow_single_dash=True,
    dropped="it sets neither processes nor hosts",
    options=(
        _value("instances", "-np", "-n", "-c"),
        _value("hosts", "--host", "-H"),
        _value("hostfile", "--hostfile", "--machinefile"),
        _value("export", "-x"),
        _switch("verbosity", 1, "-v", "--verbose"),
        _switch("verbosity", -1, "-q", "--quiet"),
        _dropped(_ALWAYS_BOUND, "--bind-to", "--map-by", "--rank-by"),
        _dropped(_SHOWN_BY_PLAN, "--report-bindings", "--display-map", num_values=0),
        _dropped(_RANK_0_PRINTS, "--tag-output", "--timestamp-output", num_values=0),
        _dropped(NO_MPI, "--mca", "--gmca", num_values=2),
        _dropped(NO_MPI, "--prefix"),
        _dropped(
            "MPI is not used, so there is no check for root", "--allow-run-as-root", num_values=0
        ),
        _dropped(_CAPACITY_CHECKED, "--oversubscribe", num_values=0),
    ),
)

LAUNCHERS = {
    "poprun": POPRUN,
    "mpirun": MPIRUN,
    "mpiexec": MPIRUN,
    "orterun": MPIRUN,
    "gc-profile": Launcher(
        "gc-profile", (_value("profile_dir", "-d"),), dropped="a run writes its own profile"
    ),
    "nohup": Launcher("nohup", dropped="write it before convoy: `nohup convoy run …`"),
    "time": Launcher(
        "time",
        (
            _switch("", 0, "-p", "-v", "--verbose", "--portability", "-a", "--append"),
            _value("", "-f", "--format", "-o", "--output"),
        ),
        dropped="a run reports its own time",
    ),
}


def file_name(word: str) -> str:
    """Return the last part of a path, which identifies a program in any folder."""
    return PurePosixPath(word).name


def is_interpreter(word: str) -> bool:
    return _INTERPRETER.fullmatch(file_name(word)) is not None


def is_variable(name: str) -> bool:
    return name.isascii() and name.isidentifier()


def starts_program(word: str) -> bool:
    """Whether an argument must be the next program of a command, not a value of a launcher."""
    return file_name(word) in LAUNCHERS or is_interpreter(word) or word.endswith(".py")


@dataclass(frozen=True)
class OptionOccurrence:
    """An option of a launcher as typed: its arguments, and the values among them."""

    option: LauncherOption
    words: tuple[str, ...]
    values: tuple[str, ...]

    @property
    def spelling(self) -> str:
        return self.words[0].partition("=")[0]

    @property
    def problem(self) -> Problem | None:
        expected, got = self.option.num_values, len(self.values)
        if expected == 0 and got > 0:
            return Problem(self.spelling, "takes no value")
        if got >= expected or (got == 0 and self.option.value_is_optional):
            return None
        needed = "a value" if expected == 1 else f"{expected} values"
        example = " N" if self.option.is_count else " VALUE" * expected
        return Problem(self.spelling, f"needs {needed}, as in `{self.spelling}{example}`")


@dataclass(frozen=True)
class LauncherCall:
    """A launcher as typed, with its arguments."""

    name: str
    words: tuple[str, ...]
    options: tuple[OptionOccurrence, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def launcher(self) -> Launcher:
        return LAUNCHERS[self.name]


def parse_launcher_call(name: str, words: Sequence[str]) -> LauncherCall:
    """Parse the arguments up to the first that is neither an option of the launcher nor a value."""
    launcher, rest = LAUNCHERS[name], deque(words)
    options: list[OptionOccurrence] = []
    problems: list[Problem] = []
    while rest and rest[0].startswith("-"):
        word = rest.popleft()
        if word == "--":
            break
        spelling, equals, value = word.partition("=")
        option = launcher.find(spelling)
        if option is None:
            problems.append(_unknown_option_problem(spelling, launcher))
            # Skip what may be its values, so that the rest is still parsed.
            while rest and not (equals or rest[0].startswith("-") or starts_program(rest[0])):
                rest.popleft()
            continue
        values = [] if equals else _pop_values(option, launcher, rest)
        occurrence = OptionOccurrence(
            option, (word, *values), (value,) if equals else tuple(values)
        )
        options.append(occurrence)
        if occurrence.problem:
            problems.append(occurrence.problem)
    consumed = tuple(words[: len(words) - len(rest)])
    return LauncherCall(name, consumed, tuple(options), tuple(problems))


def _pop_values(option: LauncherOption, launcher: Launcher, rest: deque[str]) -> list[str]:
    values: list[str] = []
    while len(values) < option.num_values and rest and _is_option_value(rest[0], option, launcher):
        values.append(rest.popleft())
    return values


def _is_option_value(word: str, option: LauncherOption, launcher: Launcher) -> bool:
    if starts_program(word):
        return False
    if option.setting == "mpirun":  # only an option of the launcher ends the arguments of mpirun
        return launcher.find(word.partition("=")[0]) is None
    if option.value_is_optional and word.lower() not in ("0", "1", "yes", "no", "on", "off"):
        return False
    return not word.startswith("-")


def _unknown_option_problem(spelling: str, launcher: Launcher) -> Problem:
    spellings = [spelling for option in launcher.options for spelling in option.spellings]
    near = near_names(spelling, spellings)
    hint = f"did you mean {', '.join(near)}? Otherwise leave it out" if near else "leave it out"
    return Problem("", f"unknown option {printable(spelling)} of {launcher.name}; {hint}")


_ENVIRONMENT_INHERITED = "the run inherits every variable of this shell"
_POPRUN_SETS_PROCESSES = "poprun's own options set the number of processes and hosts"


def read_launchers(calls: Sequence[LauncherCall]) -> LaunchRequest:
    """Read the launchers of a command; only one of them may start processes."""
    request = LaunchRequest()
    starters = [call.name for call in calls if call.launcher.starts_processes]
    if len(starters) > 1:
        text = f"{' and '.join(starters)} cannot be nested; leave out all but one"
        request.problems.append(Problem("", text))
    for call in calls:
        request.merge(_call_to_request(call))
    return request


def _call_to_request(call: LauncherCall) -> LaunchRequest:
    launcher = call.launcher
    request = LaunchRequest(launcher.name, problems=list(call.problems))
    for occurrence in call.options:
        try:
            _apply_option(occurrence, request)
        except OptionTypeError as error:
            request.problems.append(Problem(occurrence.spelling, str(error)))
    _set_host_counts(request, launcher)
    if launcher.dropped and not request.settings.keys() - {"verbosity"}:
        unused = [
            word
            for occurrence in call.options
            if not (occurrence.option.setting or occurrence.option.dropped)
            for word in occurrence.words
        ]
        request.add_dropped([call.name, *unused], launcher.dropped)
    if launcher is POPRUN:
        request.problems.extend(_uneven_split_problems(request.settings))
    return request


def _apply_option(occurrence: OptionOccurrence, request: LaunchRequest) -> None:
    """Apply one option to the request, or drop it with its reason."""
    if occurrence.option.dropped:
        request.add_dropped(occurrence.words, occurrence.option.dropped)
    if not occurrence.option.setting or len(occurrence.values) != occurrence.option.num_values:
        return
    match occurrence.option.setting:
        case "hosts":
            request.set("slots_per_host", parse_hosts(occurrence.values[0]))
        case "hostfile":
            request.set("slots_per_host", read_hostfile(occurrence.values[0]))
        case "export":
            _export_variable(occurrence, request)
        case "mpirun":
            _parse_mpirun_args(occurrence, request)
        case name if not occurrence.values:
            request.set(name, occurrence.option.const)
        case name if occurrence.option.is_count:
            request.set(name, parse_count(occurrence.values[0]))
        case name:
            request.set(name, parse_text(occurrence.values[0]))


def _set_host_counts(request: LaunchRequest, launcher: Launcher) -> None:
    """Set the number of hosts; without `-np`, mpirun starts a process in each slot."""
    if "slots_per_host" not in request.settings:
        return
    hosts: SlotsPerHost = request.settings.pop("slots_per_host").value
    request.set("hosts", len(hosts))
    if launcher is MPIRUN and "instances" not in request.settings:
        request.set("instances", hosts.total())


def _export_variable(occurrence: OptionOccurrence, request: LaunchRequest) -> None:
    name, equals, value = occurrence.values[0].partition("=")
    if not is_variable(name):
        raise OptionTypeError(
            f"needs NAME or NAME=VALUE, got {quote_shortened(occurrence.values[0])}"
        )
    if equals:
        request.environment[name] = value
    else:
        request.add_dropped(occurrence.words, _ENVIRONMENT_INHERITED)


def _parse_mpirun_args(occurrence: OptionOccurrence, request: LaunchRequest) -> None:
    """Parse the arguments that poprun passes to mpirun: variables are used, the rest is dropped."""
    words = split_words(occurrence.values[0])
    call = parse_launcher_call("mpirun", words)
    request.problems.extend(call.problems)
    for inner in call.options:
        if inner.option.setting in ("instances", "hosts", "hostfile"):
            request.add_dropped(inner.words, _POPRUN_SETS_PROCESSES)
        else:
            _apply_option(inner, request)
    if len(call.words) < len(words):
        raise OptionTypeError(
            f"contains the unexpected argument {quote_shortened(words[len(call.words)])}"
        )


def _uneven_split_problems(settings: Settings) -> Iterator[Problem]:
    """Report replicas that do not divide evenly among instances, or instances among hosts."""
    replicas, instances, hosts = (
        settings[name].value if name in settings else 1
        for name in ("replicas", "instances", "hosts")
    )
    if replicas % instances:
        value = replicas if "replicas" in settings else "(not given, so 1)"
        yield Problem(
            "--num-replicas",
            f"{value} is not a multiple of --num-instances {instances}; "
            f"use --num-replicas {-(-replicas // instances) * instances}",
        )
    if "instances" in settings and instances % hosts:
        yield Problem(
            "--num-instances",
            f"{instances} cannot be divided evenly among {hosts} hosts; "
            f"use --num-instances {-(-instances // hosts) * hosts}",
        )
