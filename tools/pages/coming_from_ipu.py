"""docs/coming-from-ipu.md: every word of the three applications, and what became of it."""

from collections.abc import Iterator
from pathlib import Path

from convoy.config.command_line import as_flags
from convoy.config.flags import Dialect, Flag, canonical
from convoy.config.option import Option, Support
from convoy.dialects.command import PROGRAMS
from convoy.dialects.launchers import LAUNCHERS, Launcher
from convoy.dialects.popart import popart
from convoy.dialects.pytorch import pytorch
from convoy.dialects.tensorflow import tensorflow

HEAD = Path(__file__).parent / "coming_from_ipu_head.md"

_LAYOUT = {
    "hosts": "`--hosts`",
    "hostfile": "`--hosts`",
    "instances": "`--instances`",
    "replicas": "`--replicas`",
    "devices_per_replica": "stages of a replica, which must agree with the program's",
    "executable_cache_path": "`--model-cache-path`",
    "export": "a variable for the run",
    "mpirun": "its variables are taken",
    "profile_dir": "left out: a profile lies in the run's folder",
    "verbosity": "left out: `--progress` says how much is shown",
}


def coming_from_ipu_page() -> str:
    """Words written by hand, then the tables."""
    parts = [HEAD.read_text().rstrip(), "", "## Programs", ""]
    parts += ["| program | dialect | here |", "|---|---|---|", *_programs()]
    for table in dict.fromkeys(one for one in LAUNCHERS.values() if one.options):
        parts += ["", f"## Options of {table.name}", "", "| option | here |", "|---|---|"]
        parts += list(_launcher(table))
    parts += ["", "## Options of the TensorFlow application", "", *_options(tensorflow())]
    parts += ["", "## Options of the PopART application", "", *_options(popart())]
    parts += ["", "## Options of the PyTorch application", ""]
    parts += ["All options of [options.md](options.md) under their own names, and these:", ""]
    parts += list(_options(pytorch(), without=frozenset(_own_names())))
    parts += ["", _LEGEND]
    return "\n".join(parts) + "\n"


_LEGEND = (
    "Marks: ¹ not available in this version, or not in all its values; ² on CUDA only; "
    "³ no counterpart, taken and recorded."
)
_VERBS = {
    "train": "`convoy train`",
    "resume": "`convoy resume RUN`",
    "validate": "`convoy validate RUN`, or `--random-weights`",
    "average": "`convoy average RUN`",
    "infer": "`convoy validate --random-weights`",
    "synthetic benchmark": "`convoy train`",
    "data benchmark": "`convoy data bench`",
    "benchmark": "its commands, resolved with `--dry-run`",
}


def _programs() -> Iterator[str]:
    for dialect, programs in PROGRAMS.items():
        for name, purpose in programs.items():
            here = _VERBS.get(purpose, "not available in this version")
            yield f"| `{name}` | {dialect} | {here} |"


def _launcher(table: Launcher) -> Iterator[str]:
    for row in table.options:
        spellings = " ".join(f"`{one}`" for one in row.spellings)
        here = _LAYOUT.get(row.to, "") if not row.why else f"left out: {row.why}"
        yield f"| {spellings} | {here or 'taken'} |"


def _own_names() -> Iterator[str]:
    """What options.md shows already."""
    for flag in canonical().flags:
        if flag.option and flag.spelling.replace("--no-", "--", 1) == flag.option.flag:
            yield flag.spelling


def _options(dialect: Dialect, without: frozenset[str] = frozenset()) -> Iterator[str]:
    yield "| option | here |"
    yield "|---|---|"
    for flag in dialect.flags:
        if flag.spelling not in without:
            yield f"| `{flag.spelling}` | {_here(flag, dialect)} |"


def _here(flag: Flag, dialect: Dialect) -> str:
    if flag.why:
        return f"left out: {flag.why}"
    mark = _mark(flag.option) if flag.option else ""
    if flag.spelling in dialect.says:
        return dialect.says[flag.spelling] + mark
    assert flag.option is not None, f"{flag.spelling} is a part that nobody explains"
    words = [flag.option.flag] if flag.means is None else as_flags(flag.option, flag.means)
    return f"`{' '.join(words)}`{mark}"


def _mark(row: Option) -> str:
    marks = {Support.CUDA: "²", Support.NOWHERE: "³"}
    return marks.get(row.declared.support, "¹" if row.pending else "")
