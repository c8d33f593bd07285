"""Find and read named configurations, keeping the line of each value for messages."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from convoy.config.flags import (
    TARGET,
    Dialect,
    DialectLookup,
    Translation,
    canonical,
    combine_settings,
)
from convoy.config.option import OptionTypeError
from convoy.config.schema import DroppedWord, Problem, Setting, limit_problems
from convoy.errors import ConfigError
from convoy.registry import suggest
from convoy.text import printable, quote_shortened

if TYPE_CHECKING:
    from convoy.config.yaml_reader import YamlEntry

DialectFile = tuple[dict[str, Setting], list[Problem], list[DroppedWord]]

SHIPPED_DIR = Path(__file__).parent.parent / "configs"
DEFAULTS_MARKER = "# Defaults of that application."  # the line above these values
INFERENCE = "inference"  # the subfolder of configurations for inference only


@cache
def shipped_configs(folder: Path = SHIPPED_DIR) -> dict[str, Path]:
    """The configurations shipped with convoy, by name.

    Each reference application has its own folder. Configurations for inference keep the folder in
    their name, because three of them have the name of a training configuration.
    """
    return {
        f"{INFERENCE}/{path.stem}" if path.parent.name == INFERENCE else path.stem: path
        for path in sorted(folder.rglob("*.yaml"))
    }


def shipped_config_names() -> list[str]:
    return sorted(shipped_configs())


def read_named_config(
    name: str | None,
    path: str | None,
    dialect: Dialect | None = None,
    other_dialects: DialectLookup | None = None,
) -> tuple[dict[str, Setting], list[Problem]]:
    """Read `--config NAME`, a file, or the entry NAME of that file.

    Shipped configurations use canonical options; a file of the user may use a dialect.
    """
    for flag, word in (("--config", name), ("--config-path", path)):
        if word == "":
            raise ConfigError(f"{flag} needs a value")
    if path is not None:
        return read_dialect_file(name, path, dialect or canonical(), other_dialects)[:2]
    if name is None:
        return {}, []
    return _parse_settings(_read(_config_path(name)), f"config {name}", canonical())[:2]


def read_dialect_file(
    name: str | None, path: str, dialect: Dialect, other_dialects: DialectLookup | None = None
) -> DialectFile:
    """Read a file in a dialect; also return the keys without an effect."""
    entry = _select_entry(_read(Path(path)), name, printable(path), dialect)
    return _parse_settings(entry, printable(path), dialect, other_dialects)


def _config_path(name: str) -> Path:
    """The path of a shipped configuration; training is preferred to inference."""
    known = shipped_configs()
    path = known.get(name) or known.get(f"{INFERENCE}/{name}")
    if path is None:
        raise ConfigError(f"--config {quote_shortened(name)} is unknown; {suggest(name, known)}")
    return path


def entry_names(path: Path) -> list[str]:
    """The names of the configurations in a file with several."""
    return [key for key, entry in _read(path).items() if isinstance(entry.value, dict)]


def entry_keys(path: Path, name: str) -> list[str]:
    """The keys of a named entry; empty if it does not exist or the file cannot be read."""
    try:
        entry = _read(path).get(name)
    except ConfigError:
        return []
    return list(entry.value) if entry is not None and isinstance(entry.value, dict) else []


def has_entry(path: Path, name: str) -> bool:
    """Whether a file has a key of this name; True if the file cannot be read."""
    try:
        return name in _read(path)
    except ConfigError:
        return True


def application_defaults(name: str) -> set[str]:
    """The options of a shipped configuration that are defaults of its reference application."""
    lines = _config_path(name).read_text(encoding="utf-8").splitlines()
    start = lines.index(DEFAULTS_MARKER) if DEFAULTS_MARKER in lines else len(lines)
    return {line.partition(":")[0] for line in lines[start:] if not line.startswith(("#", " "))}


def read_settings(path: Path) -> tuple[dict[str, Setting], list[Problem]]:
    """Read the settings of a file with one configuration."""
    return _parse_settings(_read(path), printable(str(path)), canonical())[:2]


def _read(path: Path) -> "dict[str, YamlEntry]":
    from convoy.config.yaml_reader import read_yaml  # imported late: most commands need no YAML

    return read_yaml(path)


def _select_entry(
    entries: "dict[str, YamlEntry]", name: str | None, path: str, dialect: Dialect
) -> "dict[str, YamlEntry]":
    named = {key: entry.value for key, entry in entries.items() if isinstance(entry.value, dict)}
    if name is None and named and not any(key in dialect.by_name for key in entries):
        text = "contains several configurations; choose one with --config"
        raise ConfigError(f"{path} {text}: {', '.join(map(printable, named))}")
    if name is None:
        return entries
    if not named:
        raise ConfigError(f"{path} contains one configuration without a name; remove --config")
    if name not in named:
        text = f"has no configuration {quote_shortened(name)}"
        raise ConfigError(f"{path} {text}; {suggest(name, named)}")
    return named[name]


def _parse_settings(
    entries: "dict[str, YamlEntry]",
    origin: str,
    dialect: Dialect,
    other_dialects: DialectLookup | None = None,
) -> DialectFile:
    translation, direct = Translation({}), set()
    for key, entry in entries.items():
        source = f"{origin}, line {entry.line}"
        subject = f"{source}: {printable(key)}"
        flag = dialect.by_name.get(key.replace("-", "_"))  # keys may use dashes like flags
        if flag is None:
            translation.add_problem(subject, _unknown_key(key, dialect, other_dialects))
            continue
        direct.add(flag.option_name)
        yaml_value = entry.to_python()
        try:
            value = flag.parse_yaml_value(yaml_value)
        except OptionTypeError as error:
            translation.add_problem(subject, str(error))
            continue
        if flag.dropped and value:
            translation.add_dropped(subject, flag.dropped)
        elif not flag.dropped and (value is not None or (yaml_value is None and flag.option)):
            translation.settings[flag.option_name] = Setting(value, source)
        if flag.option and (text := flag.option.problem(value)) is not None:
            translation.add_problem(subject, text)
    settings = combine_settings(translation, dialect.combiners)
    combined = {name: setting for name, setting in settings.items() if name not in direct}
    limits = limit_problems(combined, lambda name, setting: f"{setting.source}: {name}")
    problems = [
        Problem(problem.subject or f"{origin}:", problem.message)
        for problem in translation.problems
    ]
    if (target := translation.settings.get(TARGET)) is not None:
        translation.add_dropped(target.source, "the command line sets the run or checkpoint")
    return settings, [*problems, *limits], translation.dropped


def _unknown_key(key: str, dialect: Dialect, other_dialects: DialectLookup | None) -> str:
    other = other_dialects("--" + key.replace("_", "-")) if other_dialects else None
    if other is not None:
        return f"{other}; --dialect sets the dialect of a file"
    names = [flag.name for flag in dialect.flags if not flag.name.startswith("no_")]
    return f"is not an option; {suggest(key, names)}"
