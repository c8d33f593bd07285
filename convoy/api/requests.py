"""Options from a command line or keywords, and the checkpoints they apply to."""

import json
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from convoy.config.flags import Dialect, canonical
from convoy.config.named_configs import read_named_config
from convoy.config.option import OptionTypeError
from convoy.config.resolve import read_run_settings
from convoy.config.schema import (
    KEYWORD,
    Problem,
    RequestedOptions,
    Setting,
    Settings,
    limit_problems,
    option_table,
    raise_problems,
    reads_no_files,
    setting_values,
    settings_from,
)
from convoy.errors import CheckpointError, ConfigError
from convoy.files import FINE_TUNE_FOLDER, storage_errors
from convoy.registry import suggest
from convoy.run.folder import RunFolder
from convoy.text import quote_shortened

if TYPE_CHECKING:
    from convoy.run.user_code import UserObjects

PathLike: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True)
class UserOptions:
    """Options of a run as the user passed them, and the problems with them."""

    settings: Settings = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    config: str | None = None  # named configuration
    config_path: str | None = None
    dialect: str = canonical().name  # of the file at config_path

    def to_request(
        self,
        extra_problems: Iterable[Problem] = (),
        exclude: Collection[str] = (),
        run_settings: Settings | None = None,
    ) -> RequestedOptions:
        """Combine them with the named configuration or with the settings of a run.

        `exclude` lists options that the caller handles itself.
        """
        settings = {name: setting for name, setting in self.settings.items() if name not in exclude}
        if run_settings:
            load_user_code(run_settings | settings)
            problems = [*self.problems, *extra_problems]
            if self.config or self.config_path:
                text = "cannot be combined with a run, which has its own configuration"
                problems.append(Problem("--config", text))
            return RequestedOptions(settings, run_settings, problems)
        dialect = _find_dialect(self.dialect)
        try:
            named, problems = read_named_config(
                self.config, self.config_path, dialect, partial(find_in_other_dialects, dialect)
            )
        except ConfigError as error:  # the rules would speak of values it has not set
            raise_problems([*self.problems, Problem("", str(error))])
            raise
        load_user_code(named | settings)
        defaults = dialect.default_settings(setting_values(named | self.settings))
        problems = [*self.problems, *problems, *extra_problems]
        if not problems:
            defaults |= _recognize_data(defaults | named | self.settings)
        return RequestedOptions(settings, named, problems, dialect_defaults=defaults)


def _recognize_data(settings: Settings) -> Settings:
    """The dataset in --data-dir, if no option names one; an error if it reads no files."""
    if "data_dir" not in settings or settings["data_dir"].value is None:
        return {}
    folder = settings["data_dir"].value
    if "data" not in settings:
        from convoy.data.sources.open import recognize_data

        return {"data": Setting(recognize_data(Path(folder)), f"files in {folder}")}
    name = settings["data"].value
    if reads_no_files(settings):
        raise ConfigError(
            f"--data-dir {folder}: --data {name} reads no files; remove --data to use the images "
            "in the folder, or remove --data-dir"
        )
    return {}


def load_user_code(settings: Settings) -> None:
    """Import the user's own network and dataset, if `--model` or `--data` names any."""
    chosen = [settings[name].value for name in ("model", "data") if name in settings]
    if any(":" in str(value) for value in chosen):
        from convoy.run.user_code import register_import_paths

        register_import_paths(settings)


def register_objects(model: Any, data: Any) -> "tuple[UserObjects | None, dict[str, str]]":
    """Register what is not a name; return it, and the options `model` and `data` as names."""
    names = {"model": model, "data": data}
    named = {name: value for name, value in names.items() if isinstance(value, str)}
    arguments = {name: value for name, value in names.items() if value is not None}
    objects = {name: value for name, value in arguments.items() if name not in named}
    if not objects:
        return None, named
    from convoy.run.user_code import OBJECT_PREFIX, UserObjects

    labels = {name: f"{OBJECT_PREFIX}{_object_name(value)}" for name, value in objects.items()}
    registered = UserObjects(
        labels.get("model", ""), objects.get("model"), labels.get("data", ""), objects.get("data")
    )
    registered.register()
    return registered, named | labels


def _object_name(value: Any) -> str:
    """A name of an object for messages and `config.yaml`."""
    return str(getattr(value, "__name__", type(value).__name__)).strip("<>")


def options_from_keywords(keywords: Mapping[str, Any]) -> UserOptions:
    """Check the names and values of keyword arguments; `config` names a configuration."""
    values = dict(keywords)
    config, config_path = values.pop("config", None), values.pop("config_path", None)
    settings: Settings = {}
    problems: list[Problem] = []
    for keyword, value in values.items():
        name = _keyword_names().get(keyword)
        if name is None:
            text = f"is not an option; {suggest(keyword, _keyword_names())}"
            problems.append(Problem(f"{keyword}=", text))
            continue
        try:
            plain = option_table()[name].value_type.check(_to_plain(value))
            settings[name] = Setting(plain, KEYWORD)
        except OptionTypeError as error:
            problems.append(Problem(f"{keyword}=", str(error)))
    problems += limit_problems(settings, lambda name, _: f"{name}=")
    return UserOptions(settings, problems, config, config_path and os.fspath(config_path))


@cache
def _keyword_names() -> dict[str, str]:
    """Map each keyword, a name or an alias, to the name of its option."""
    table = option_table()
    aliases = {
        alias.removeprefix("--").replace("-", "_"): row.name
        for row in table.values()
        for alias in row.aliases
    }
    return aliases | {name: name for name in table}


def _to_plain(value: Any) -> Any:
    """Convert paths and the scalars of numpy and torch to the types of YAML."""
    match value:
        case bool() | int() | float() | str() | None:
            return value
        case os.PathLike():
            return os.fspath(value)
        case Integral():
            return int(value)
        case Real():
            return float(value)
        case list() | tuple():
            return [_to_plain(item) for item in value]
    return value


def _find_dialect(name: str) -> Dialect:
    if name == canonical().name:
        return canonical()
    from convoy.dialects import DIALECTS

    if name not in DIALECTS:
        text = f"--dialect {quote_shortened(name)} is unknown"
        raise ConfigError(f"{text}; {suggest(name, DIALECTS)}")
    return DIALECTS[name]()


def find_in_other_dialects(here: Dialect, flag: str) -> str | None:
    """Look up a flag in the other dialects; imported lazily, since few commands need them."""
    from convoy.dialects import find_in_other_dialects as find

    return find(flag, here)


def find_checkpoints(path: Path) -> tuple[list[Path], Settings]:
    """Return the checkpoints at a path, and the settings of the run they belong to.

    For a run, these are all of its checkpoints: averages after those they were computed from,
    fine-tuned ones last.
    """
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    run_folder = find_run_folder(path)
    if run_folder == path:
        phases = (path, path / FINE_TUNE_FOLDER)
        paths = [found for run in phases for found in _list_checkpoints(run / "checkpoints")]
        if not paths:
            raise CheckpointError(f"no checkpoint in {path / 'checkpoints'}")
    else:
        paths = [] if (path / "MANIFEST.json").exists() else _list_checkpoints(path)
    return paths or [path], read_run_settings(run_folder / "config.yaml") if run_folder else {}


def settings_without_dataset(path: Path) -> Settings:
    """The settings of the run that a checkpoint belongs to, for a verb that reads no data.

    A dataset of the user is not needed then: the plan of the run has its size and classes.
    """
    settings = find_checkpoints(path)[1]
    folder = find_run_folder(path)
    if folder is None or ":" not in str(settings["data"].value):
        return settings
    with storage_errors("read", folder):
        network = json.loads(RunFolder(folder).plan.read_bytes())["network"]
    values = {"data": "generated", "num_classes": network["classes"]}
    if settings["image_size"].value is None and not settings["half_res_training"].value:
        values["image_size"] = network["image_size"]
    return settings | settings_from("plan of the run", values)


def find_run_folder(path: Path) -> Path | None:
    """Return the run folder that a path is or is inside of."""
    folders = (path, *path.resolve().parents)
    return next((folder for folder in folders if (folder / "config.yaml").is_file()), None)


def _list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, averages after those of the run."""
    paths: list[Path] = []
    for parent in (folder, *sorted((folder / "averaged").glob("*/"))):
        updates = (path.name.removeprefix("update-") for path in parent.glob("update-*"))
        numbers = sorted(filter(str.isdigit, updates), key=int)
        paths += [parent / f"update-{number}" for number in numbers]
    return paths
