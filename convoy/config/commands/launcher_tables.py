"""The options of programs that start programs: what each asks for, or why it is dropped."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from convoy.config.fields import Limit, at_least

_INTERPRETER = re.compile(r"python(\d(\.\d+)?)?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)

COUNT = at_least(1, at_most=65536)


@dataclass(frozen=True)
class LauncherOption:
    """Spellings of one option: `to` names what it asks for, `why` tells that it asks for nothing.

    An option with a `limit` is a whole number; one that `may_stand_alone` needs no value.
    """

    spellings: tuple[str, ...]
    to: str = ""
    values: int = 1
    limit: Limit | None = None
    means: int = 0  # what a switch stands for
    why: str = ""
    may_stand_alone: bool = False


@dataclass(frozen=True)
class LauncherTable:
    """A launcher: its options, and why it is dropped itself if it asks for nothing."""

    name: str
    options: tuple[LauncherOption, ...]
    starts_processes: bool = False
    one_dash_will_do: bool = False  # `-bind-to` is `--bind-to`
    why: str = ""

    def find(self, spelling: str) -> LauncherOption | None:
        """The row of a spelling."""
        if self.one_dash_will_do and spelling.startswith("-"):
            spelling = _two_dashes(spelling)
            known = {_two_dashes(one): row for row in self.options for one in row.spellings}
        else:
            known = {one: row for row in self.options for one in row.spellings}
        return known.get(spelling)

    @property
    def spellings(self) -> list[str]:
        return [one for row in self.options for one in row.spellings]


def _two_dashes(spelling: str) -> str:
    return "--" + spelling.lstrip("-")


def _count(to: str, *spellings: str) -> LauncherOption:
    return LauncherOption(spellings, to, limit=COUNT)


def _text(to: str, *spellings: str) -> LauncherOption:
    return LauncherOption(spellings, to)


def _switch(to: str, means: int, *spellings: str) -> LauncherOption:
    return LauncherOption(spellings, to, values=0, means=means)


def _dropped(why: str, *spellings: str, values: int = 1) -> LauncherOption:
    return LauncherOption(spellings, values=values, why=why)


_PARTITIONS = "there is no service that hands out devices"
_WIRING = "processes find their own way to each other, without MPI"
_BINDING = "each process is bound to cores of its own either way"
_ONE_VOICE = "one process prints for all of them"

POPRUN = LauncherTable(
    "poprun",
    starts_processes=True,
    options=(
        _count("instances", "--num-instances"),
        _count("replicas", "--num-replicas"),
        _count("devices_per_replica", "--ipus-per-replica"),
        _text("hosts", "--host", "-H"),
        _text("hostfile", "--hostfile"),
        _text("executable_cache_path", "--executable-cache-path"),
        _text("mpirun", "--mpi-global-args"),
        _text("mpirun", "--mpi-local-args"),
        _switch("verbosity", 1, "-v", "--verbose"),
        _switch("verbosity", 2, "-vv", "--vv"),
        _dropped(_BINDING, "--numa-aware"),
        _dropped(_BINDING, "--process-placement"),
        _dropped(_ONE_VOICE, "--only-output-from-instance"),
        LauncherOption(
            ("--offline-mode",),
            why="a program that needs no device takes none",
            may_stand_alone=True,
        ),
        _dropped("`convoy plan` shows the layout", "--print-topology"),
        _dropped(_PARTITIONS, "--vipu-server-host"),
        _dropped(_PARTITIONS, "--vipu-server-port"),
        _dropped(_PARTITIONS, "--vipu-server-timeout"),
        _dropped(_PARTITIONS, "--vipu-partition"),
        _dropped(_PARTITIONS, "--vipu-partition-attempts"),
        _dropped(_PARTITIONS, "--vipu-cluster"),
        _dropped(_PARTITIONS, "--vipu-allocation"),
        _dropped(_PARTITIONS, "--update-partition"),
        _dropped(_PARTITIONS, "--reset-partition"),
        _dropped(_PARTITIONS, "--remove-partition"),
        _dropped("devices are not linked in domains", "--num-ilds"),
        _dropped("replicas meet at every update, in one way", "--sync-type"),
    ),
)

MPIRUN = LauncherTable(
    "mpirun",
    starts_processes=True,
    one_dash_will_do=True,
    why="it names neither processes nor hosts",
    options=(
        _count("instances", "-np", "-n", "-c"),
        _text("hosts", "--host", "-H"),
        _text("hostfile", "--hostfile", "--machinefile"),
        _text("export", "-x"),
        _switch("verbosity", 1, "-v", "--verbose"),
        _switch("verbosity", -1, "-q", "--quiet"),
        _dropped(_BINDING, "--bind-to"),
        _dropped(_BINDING, "--map-by"),
        _dropped(_BINDING, "--rank-by"),
        _dropped("`convoy plan` shows the layout", "--report-bindings", "--display-map", values=0),
        _dropped(_ONE_VOICE, "--tag-output", "--timestamp-output", values=0),
        _dropped(_WIRING, "--mca", "--gmca", values=2),
        _dropped(_WIRING, "--prefix"),
        _dropped("MPI is not used, nor its guard against root", "--allow-run-as-root", values=0),
        _dropped("the machine's capacity is checked before a run", "--oversubscribe", values=0),
    ),
)

GC_PROFILE = LauncherTable(
    "gc-profile",
    (_text("profile_dir", "-d"),),
    why="a run writes its own profile",
)
NOHUP = LauncherTable("nohup", (), why="write it in front of convoy itself: `nohup convoy run …`")
TIME = LauncherTable(
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
    """The last part of a path: programs are known by it, wherever they lie."""
    return PurePosixPath(word).name


def launcher(word: str) -> LauncherTable | None:
    """The launcher that a word starts."""
    return LAUNCHERS.get(file_name(word))


def is_interpreter(word: str) -> bool:
    """Whether a word starts Python."""
    return _INTERPRETER.fullmatch(file_name(word)) is not None


def is_variable(name: str) -> bool:
    """Whether a name can be one of a variable of the environment."""
    return _VARIABLE.fullmatch(name) is not None


def begins_program(word: str) -> bool:
    """Whether a word can only be the next program of a command, and no value of a launcher."""
    return launcher(word) is not None or is_interpreter(word) or word.endswith(".py")
