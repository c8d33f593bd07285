"""Users' own networks and datasets: imported by name, or passed as objects from Python.

Objects reach the workers of a run through the pipes that multiprocessing starts them with, as
multiprocessing passes its own arguments. cloudpickle serializes them, so that classes of a script
or a notebook work too. Nothing is unpickled that this program did not write itself.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # it has no type hints

from convoy.config.schema import EXPLICIT_SOURCES, Setting
from convoy.config.sections.data import DATA
from convoy.config.sections.network import MODELS
from convoy.data.sources.user_dataset import UserData, as_splits
from convoy.errors import ConfigError
from convoy.layers.user_network import NetworkSource as NetworkSource
from convoy.layers.user_network import UserNetwork

OBJECT_PREFIX = "python:"  # of the names of objects that were passed from Python


@dataclass(frozen=True)
class UserObjects:
    """A network and a dataset, or functions that create them, with their names."""

    model_name: str = ""
    model: Any = None
    data_name: str = ""
    data: Any = None

    def register(self) -> None:
        """Make the objects known as values of `--model` and `--data` in this process."""
        if self.model is not None:
            UserNetwork(self.model_name, self.model)
        if self.data is not None:
            data = self.data() if callable(self.data) else self.data
            UserData(self.data_name, *as_splits(data, self.data_name))

    def to_bytes(self) -> bytes:
        by_value = [module for module in list(sys.modules.values()) if not _is_importable(module)]
        for module in by_value:
            cloudpickle.register_pickle_by_value(module)
        try:
            return bytes(cloudpickle.dumps(self))
        except Exception as error:
            raise ConfigError(
                f"your network or dataset cannot be sent to the workers: {error}; pass a function "
                "that creates it, or use one process"
            ) from error
        finally:
            for module in by_value:
                cloudpickle.unregister_pickle_by_value(module)

    @staticmethod
    def from_bytes(content: bytes) -> "UserObjects":
        objects = cloudpickle.loads(content)
        assert isinstance(objects, UserObjects)
        return objects


def _is_importable(module: ModuleType) -> bool:
    """Whether a worker can import a module by its name; a module loaded from a file may not be."""
    if module.__name__ == "__main__" or not isinstance(vars(module).get("__file__"), str):
        return True  # cloudpickle handles the script, and the rest is built in
    top = module.__name__.partition(".")[0]
    return any(finder.find_spec(top, None) is not None for finder in sys.meta_path)


def is_import_path(name: Any) -> bool:
    """Whether a value of `--model` or `--data` names a function of the user: `module:function`."""
    return isinstance(name, str) and ":" in name


def register_import_paths(settings: Mapping[str, Setting]) -> None:
    """Import the functions that `--model` and `--data` name.

    Only names that the user gives for this command are imported: the configuration of a run may
    come from somebody else.
    """
    for option, registry in (("model", MODELS), ("data", DATA)):
        setting = settings.get(option)
        if setting is None or not is_import_path(setting.value) or setting.value in registry:
            continue
        if setting.source not in EXPLICIT_SOURCES:
            raise ConfigError(_missing_code(setting.value, option))
        factory = _import_function(setting.value, option)
        objects = (
            UserObjects(model_name=setting.value, model=factory)
            if option == "model"
            else UserObjects(data_name=setting.value, data=factory)
        )
        objects.register()


def _missing_code(name: str, option: str) -> str:
    """How to give the code of a run again."""
    if name.startswith(OBJECT_PREFIX):
        what = "network" if option == "model" else "dataset"
        return (
            f"this run uses your own {what}, a Python object ({name}); pass it again, as "
            f"{option}=… in Python (as in convoy.load(run, model=…)), or name a function that "
            f"creates it: --{option} package.module:function"
        )
    return f"this run uses your own code, {name}; pass --{option} {name} again to run it"


def _import_function(name: str, option: str) -> Any:
    """Import `module:function`; modules in the current folder are found too."""
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        function = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"--{option} {name} cannot be imported: {error}") from error
    if not callable(function):
        raise ConfigError(f"--{option} {name} is a {type(function).__name__}, not a function")
    return function
