"""docs/coming-from-ipu.md: every option of the three applications and its mapping."""

import re
from collections.abc import Iterator
from pathlib import Path

from convoy.config.flags import Dialect, Flag, canonical
from convoy.config.option import Option, Support
from convoy.config.schema import option_table
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
    "devices_per_replica": "stages per replica; must match those of the program",
    "executable_cache_path": "`--model-cache-path`",
    "export": "an environment variable of the run",
    "mpirun": "its environment variables are applied",
    "profile_dir": "dropped: a profile is written to the run folder",
    "verbosity": "dropped: `--progress` sets the verbosity",
}


def coming_from_ipu_page() -> str:
    """The hand-written text, followed by the tables."""
    lines = [HEAD.read_text().rstrip(), "", "## Programs", ""]
    lines += ["| program | dialect | convoy |", "|---|---|---|", *_programs()]
    for table in dict.fromkeys(launcher for launcher in LAUNCHERS.values() if launcher.options):
        lines += ["", f"## Options of {table.name}", "", "| option | convoy |", "|---|---|"]
        lines += list(_launcher(table))
    lines += ["", "## Options of the TensorFlow application", "", *_options(tensorflow())]
    lines += ["", "## Options of the PopART application", "", *_options(popart())]
    lines += ["", "## Options of the PyTorch application", ""]
    lines += ["All options of [options.md](options.md) under the same names, and these:", ""]
    lines += list(_options(pytorch(), without=frozenset(_canonical_flags())))
    lines += ["", _LEGEND]
    return "\n".join(lines) + "\n"


_LEGEND = (
    "Marks: ¹ not available in this version, or not in all its values; ² on CUDA only; "
    "³ no effect (IPU only), accepted and recorded."
)
_VERBS = {
    "train": "`convoy train`",
    "resume": "`convoy resume RUN`",
    "validate": "`convoy validate RUN`, or `--random-weights`",
    "average": "`convoy average RUN`",
    "infer": "`convoy validate --random-weights`",
    "synthetic benchmark": "`convoy train`",
    "data benchmark": "`convoy data bench`",
    "data convert": "not translated; use `convoy data convert`",
    "data verify": "not translated; use `convoy data verify`",
    "benchmark": "its commands, resolved with `--dry-run` but not run",
}


def _programs() -> Iterator[str]:
    for dialect, programs in PROGRAMS.items():
        for name, purpose in programs.items():
            verb = _VERBS.get(purpose, "not available in this version")
            yield f"| `{name}` | {dialect} | {verb} |"


def _launcher(table: Launcher) -> Iterator[str]:
    for row in table.options:
        spellings = " ".join(f"`{spelling}`" for spelling in row.spellings)
        meaning = _LAYOUT.get(row.setting, "") if not row.dropped else f"dropped: {row.dropped}"
        yield f"| {spellings} | {meaning or 'accepted'} |"


def _canonical_flags() -> Iterator[str]:
    """The flags of options.md."""
    for flag in canonical().flags:
        if flag.option:
            positive = flag.spelling.replace("--no-", "--", 1)
            if positive in (flag.option.flag, flag.option.shown_flag):
                yield flag.spelling


def _options(dialect: Dialect, without: frozenset[str] = frozenset()) -> Iterator[str]:
    yield "| option | convoy |"
    yield "|---|---|"
    for flag in dialect.flags:
        if flag.spelling not in without:
            yield f"| `{flag.spelling}` | {_mapping(flag, dialect)} |"


def _mapping(flag: Flag, dialect: Dialect) -> str:
    if flag.dropped:
        return f"dropped: {flag.dropped}"
    mark = _mark(flag.option) if flag.option else ""
    if flag.spelling in dialect.help_texts:
        return _show_flags(dialect.help_texts[flag.spelling]) + mark
    assert flag.option is not None, f"{flag.spelling} has neither an option nor a help text"
    arguments = [flag.option.flag] if flag.const is None else flag.option.to_cli_args(flag.const)
    return _show_flags(f"`{' '.join(arguments)}`") + mark


def _show_flags(text: str) -> str:
    """The text with the flags that help and options.md show."""
    for row in option_table().values():
        if row.shown_flag != row.flag:
            text = re.sub(rf"{row.flag}(?=[` ])", row.shown_flag, text)
    return text


def _mark(row: Option) -> str:
    marks = {Support.CUDA_ONLY: "²", Support.UNSUPPORTED: "³"}
    return marks.get(row.support, "¹" if row.available_values is not None else "")
