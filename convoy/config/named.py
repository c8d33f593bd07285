"""Named configurations: find one, read it, and know the line of each value."""

from pathlib import Path
from typing import TYPE_CHECKING

from convoy.config.layers import Setting
from convoy.config.problems import Problem
from convoy.config.schema import option_table
from convoy.config.values import WrongType
from convoy.config.yaml_limits import printable
from convoy.errors import ConfigError
from convoy.registry import suggest

if TYPE_CHECKING:
    from convoy.config.yaml_file import Entry

SHIPPED = Path(__file__).parent.parent / "configs"


def shipped_names() -> list[str]:
    """The configurations that come with the program."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def read_named(name: str | None, path: str | None) -> tuple[dict[str, Setting], list[Problem]]:
    """The settings of `--config NAME`, of a file, or of the entry NAME in that file."""
    if path is not None:
        return _settings(_entry(_read(Path(path)), name, printable(path)), printable(path))
    if name is None:
        return {}, []
    if name not in shipped_names():
        raise ConfigError(f"--config {name!r} is unknown; {suggest(name, shipped_names())}")
    return _settings(_read(SHIPPED / f"{name}.yaml"), f"config {name}")


def read_settings(path: Path) -> tuple[dict[str, Setting], list[Problem]]:
    """The settings of one flat file."""
    return _settings(_read(path), printable(str(path)))


def _read(path: Path) -> "dict[str, Entry]":
    from convoy.config.yaml_file import read_yaml  # most commands need no YAML parser

    return read_yaml(path)


def _entry(entries: "dict[str, Entry]", name: str | None, path: str) -> "dict[str, Entry]":
    named = {key: one.value for key, one in entries.items() if isinstance(one.value, dict)}
    if name is None and named and not any(key in option_table() for key in entries):
        listed = ", ".join(map(printable, named))
        raise ConfigError(f"{path} holds several configurations; choose with --config: {listed}")
    if name is None:
        return entries
    if not named:
        raise ConfigError(f"{path} holds one configuration without a name; leave out --config")
    if name not in named:
        raise ConfigError(f"{path} has no configuration {name!r}; {suggest(name, named)}")
    return named[name]


def _settings(entries: "dict[str, Entry]", origin: str) -> tuple[dict[str, Setting], list[Problem]]:
    settings: dict[str, Setting] = {}
    problems: list[Problem] = []
    for key, entry in entries.items():
        where = f"{origin}, line {entry.line}"
        text = _take(key, entry, where, settings)
        if text is not None:
            problems.append(Problem(f"{where}: {printable(key)}", text))
    return settings, problems


def _take(key: str, entry: "Entry", where: str, settings: dict[str, Setting]) -> str | None:
    """Keep one value, and say what is wrong with it; beyond its limits it stays for the rules."""
    row = option_table().get(key)
    if row is None:
        return f"is no option; {suggest(key, option_table())}"
    try:
        settings[key] = Setting(row.kind.check(entry.plain()), where)
    except WrongType as wrong:
        return str(wrong)
    return row.problem(settings[key].value)
