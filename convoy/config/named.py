"""Named configurations: find one, read it, and know the line of each value."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from convoy.config.flags import (
    TARGET,
    Dialect,
    OtherDialects,
    Translation,
    canonical,
    no_other_dialects,
    put_together,
)
from convoy.config.option import WrongType
from convoy.config.settings import Dropped, Problem, Setting, beyond_limits
from convoy.errors import ConfigError
from convoy.registry import suggest
from convoy.text import printable, shown

if TYPE_CHECKING:
    from convoy.config.yaml_reader import YamlEntry

DialectFile = tuple[dict[str, Setting], list[Problem], list[Dropped]]

SHIPPED = Path(__file__).parent.parent / "configs"
GRANTED = "# What that application takes for granted."  # the line above such values
INFERENCE = "inference"  # the sub-folder of those that only infer


def shipped() -> dict[str, Path]:
    """The configurations that come with the program, by name.

    Those of other applications lie in folders of their own. The ones that only infer keep the
    folder in their name: three of them share the rest of it with a training.
    """
    return _in_folder(SHIPPED)


@cache
def _in_folder(folder: Path) -> dict[str, Path]:
    return {
        f"{INFERENCE}/{path.stem}" if path.parent.name == INFERENCE else path.stem: path
        for path in sorted(folder.rglob("*.yaml"))
    }


def shipped_names() -> list[str]:
    return sorted(shipped())


def read_named(
    name: str | None,
    path: str | None,
    dialect: Dialect | None = None,
    elsewhere: OtherDialects = no_other_dialects,
) -> tuple[dict[str, Setting], list[Problem]]:
    """The settings of `--config NAME`, of a file, or of the entry NAME in that file.

    The files that come with the program are canonical; one of the user's may speak a dialect.
    """
    for flag, word in (("--config", name), ("--config-path", path)):
        if word == "":
            raise ConfigError(f"{flag} needs a value")
    if path is not None:
        return read_dialect_file(name, path, dialect or canonical(), elsewhere)[:2]
    if name is None:
        return {}, []
    return _settings(_read(_file_of(name)), f"config {name}", canonical())[:2]


def read_dialect_file(
    name: str | None, path: str, dialect: Dialect, elsewhere: OtherDialects = no_other_dialects
) -> DialectFile:
    """The same of a file in a dialect, with the words that nothing comes of."""
    entry = _entry(_read(Path(path)), name, printable(path), dialect)
    return _settings(entry, printable(path), dialect, elsewhere)


def _file_of(name: str) -> Path:
    """A training wins over an inference of the same name."""
    known = shipped()
    path = known.get(name) or known.get(f"{INFERENCE}/{name}")
    if path is None:
        raise ConfigError(f"--config {shown(name)} is unknown; {suggest(name, known)}")
    return path


def entry_names(path: Path) -> list[str]:
    """The configurations in a file of several."""
    return [key for key, one in _read(path).items() if isinstance(one.value, dict)]


def entry_keys(path: Path, name: str) -> list[str]:
    """The keys of one of them; none if there is no such, or the file cannot be read."""
    try:
        entry = _read(path).get(name)
    except ConfigError:
        return []
    return list(entry.value) if entry is not None and isinstance(entry.value, dict) else []


def has_entry(path: Path, name: str) -> bool:
    """Whether a file has such an entry, well made or not; one that cannot be read may have it."""
    try:
        return name in _read(path)
    except ConfigError:
        return True


def granted(name: str) -> set[str]:
    """The options of a shipped configuration that its application only takes for granted."""
    lines = _file_of(name).read_text(encoding="utf-8").splitlines()
    start = next((place for place, line in enumerate(lines) if line == GRANTED), len(lines))
    return {line.partition(":")[0] for line in lines[start:] if not line.startswith(("#", " "))}


def read_settings(path: Path) -> tuple[dict[str, Setting], list[Problem]]:
    """The settings of one flat file."""
    return _settings(_read(path), printable(str(path)), canonical())[:2]


def _read(path: Path) -> "dict[str, YamlEntry]":
    from convoy.config.yaml_reader import read_yaml  # most commands need no YAML parser

    return read_yaml(path)


def _entry(
    entries: "dict[str, YamlEntry]", name: str | None, path: str, dialect: Dialect
) -> "dict[str, YamlEntry]":
    named = {key: one.value for key, one in entries.items() if isinstance(one.value, dict)}
    if name is None and named and not any(key in dialect.by_name for key in entries):
        listed = ", ".join(map(printable, named))
        raise ConfigError(f"{path} holds several configurations; choose with --config: {listed}")
    if name is None:
        return entries
    if not named:
        raise ConfigError(f"{path} holds one configuration without a name; leave out --config")
    if name not in named:
        raise ConfigError(f"{path} has no configuration {shown(name)}; {suggest(name, named)}")
    return named[name]


def _settings(
    entries: "dict[str, YamlEntry]",
    origin: str,
    dialect: Dialect,
    elsewhere: OtherDialects = no_other_dialects,
) -> DialectFile:
    translation, direct = Translation({}), set()
    for key, entry in entries.items():
        source = f"{origin}, line {entry.line}"
        subject = f"{source}: {printable(key)}"
        flag = dialect.by_name.get(key.replace("-", "_"))  # a key may have the dashes of a flag
        if flag is None:
            translation.refuse(subject, _unknown(key, dialect, elsewhere))
            continue
        direct.add(flag.to)
        plain = entry.plain()
        try:
            value = flag.value_in_file(plain)
        except WrongType as wrong:
            translation.refuse(subject, str(wrong))
            continue
        if flag.why and value:
            translation.drop(subject, flag.why)
        elif not flag.why and (value is not None or (plain is None and flag.option)):
            translation.given[flag.to] = Setting(value, source)
        if flag.option and (text := flag.option.problem(value)) is not None:
            translation.refuse(subject, text)
    settings = put_together(translation, dialect.combiners)
    combined = {name: one for name, one in settings.items() if name not in direct}
    beyond = beyond_limits(combined, lambda name, one: f"{one.source}: {name}")
    told = [Problem(one.subject or f"{origin}:", one.text) for one in translation.problems]
    if (target := translation.given.get(TARGET)) is not None:
        translation.drop(target.source, "the command itself says what it works on")
    return settings, [*told, *beyond], translation.dropped


def _unknown(key: str, dialect: Dialect, elsewhere: OtherDialects) -> str:
    other = elsewhere("--" + key.replace("_", "-"))
    if other is not None:
        return f"{other}; --dialect says in which one a file is written"
    names = [flag.name for flag in dialect.flags if not flag.name.startswith("no_")]
    return f"is no option; {suggest(key, names)}"
