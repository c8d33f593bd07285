"""What a path on the command line means: a run, or one checkpoint of it."""

from dataclasses import dataclass
from pathlib import Path

from convoy.config.layers import Setting
from convoy.config.resume import settings_of_run
from convoy.errors import CheckpointError, ConfigError
from convoy.plan.places import FINE_TUNE


@dataclass(frozen=True)
class Target:
    """Checkpoints, and the settings of the run they belong to."""

    paths: list[Path]
    settings: dict[str, Setting]


def find_target(path: Path) -> Target:
    """A run means all of its checkpoints, averages behind those they are of, fine-tuned ones last;
    a checkpoint means only itself."""
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    if (path / "config.yaml").is_file():
        paths = _below(path / "checkpoints") + _below(path / FINE_TUNE / "checkpoints")
        if not paths:
            raise CheckpointError(f"no checkpoint in {path / 'checkpoints'}")
        return Target(paths, settings_of_run(path / "config.yaml"))
    home = home_of(path)
    paths = [] if (path / "MANIFEST.json").exists() else _below(path)
    return Target(paths or [path], settings_of_run(home / "config.yaml") if home else {})


def home_of(path: Path) -> Path | None:
    """The run that a path is, or lies in."""
    places = (path, *path.resolve().parents)
    return next((one for one in places if (one / "config.yaml").is_file()), None)


def _below(folder: Path) -> list[Path]:
    """The checkpoints of a folder, averages after those of the training."""
    averages = sorted(one for one in (folder / "averaged").glob("*") if one.is_dir())
    return [path for place in (folder, *averages) for path in _in_order(place)]


def _in_order(folder: Path) -> list[Path]:
    found = [one for one in folder.glob("update-*") if one.name.removeprefix("update-").isdigit()]
    return sorted(found, key=lambda one: int(one.name.removeprefix("update-")))
