"""Named configurations: find one, read it, and know the line of each value."""

from pathlib import Path

from convoy.config.layers import Setting
from convoy.config.problems import Problem
from convoy.config.schema import option_table
from convoy.config.values import WrongType
from convoy.config.yaml_file import Entry, read_yaml
from convoy.errors import ConfigError
from convoy.registry import suggest

SHIPPED = Path(__file__).parent.parent / "configs"


def shipped_names() -> list[str]:
    """The configurations that come with the program."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def read_named(name: str | None, path: str | None) -> tuple[dict[str, Setting], list[Problem]]:
    """The settings of `--config NAME`, of a file, or of the entry NAME in that file."""
    if path is not None:
        return _settings(_entry(read_yaml(Path(path)), name, path), path)
    if name is None:
        return {}, []
    if name not in shipped_names():
        raise ConfigError(f"--config {name!r} is unknown; {suggest(name, shipped_names())}")
    return _settings(read_yaml(SHIPPED / f"{name}.yaml"), f"config {name}")


def read_settings(path: Path) -> tuple[dict[str, Setting], list[Problem]]:
    """The settings of one flat file."""
    return _settings(read_yaml(path), str(path))


def _entry(entries: dict[str, Entry], name: str | None, path: str) -> dict[str, Entry]:
    if name is None:
        return entries
    named = {key: one.value for key, one in entries.items() if isinstance(one.value, dict)}
    if name not in named:
        raise ConfigError(f"{path} has no configuration {name!r}; {suggest(name, named)}")
    return named[name]


def _settings(entries: dict[str, Entry], origin: str) -> tuple[dict[str, Setting], list[Problem]]:
    settings: dict[str, Setting] = {}
    problems: list[Problem] = []
    for key, entry in entries.items():
        where = f"{origin}, line {entry.line}"
        text = _problem(key, entry)
        if text is not None:
            problems.append(Problem(f"{where}: {key}", text))
        else:
            settings[key] = Setting(option_table()[key].kind.check(entry.plain()), where)
    return settings, problems


def _problem(key: str, entry: Entry) -> str | None:
    if key not in option_table():
        return f"is no option; {suggest(key, option_table())}"
    row = option_table()[key]
    try:
        return row.problem(row.kind.check(entry.plain()))
    except WrongType as wrong:
        return str(wrong)
