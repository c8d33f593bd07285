"""Train and resume runs, and read what is in their folders."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from convoy.api.keywords import RunOptions
from convoy.api.requests import (
    PathLike,
    find_checkpoints,
    load_user_code,
    options_from_keywords,
    register_objects,
)
from convoy.config.resolve import read_run_settings, resolve, resolve_resumed
from convoy.config.schema import setting_values
from convoy.errors import ConfigError, ExitCode
from convoy.events import Event
from convoy.report.summary import Summary
from convoy.run.folder import RunFolder, RunRequest
from convoy.run.start import RunOutcome, start

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.figure import Figure

    from convoy.run.user_code import NetworkSource

Columns: TypeAlias = "dict[str, npt.NDArray[np.float64]]"


class Run(os.PathLike[str]):
    """A run folder. It can be passed wherever a path of a run is expected.

    Its files are read each time an attribute is read, so it also shows a run that is in progress.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(path)
        self._folder = RunFolder(self.path)
        if not self._folder.config.is_file():
            raise ConfigError(f"{self.path} is not a run folder: config.yaml is missing")

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"convoy.Run({str(self.path)!r})"

    @property
    def config(self) -> dict[str, Any]:
        """The value of every option."""
        return setting_values(read_run_settings(self._folder.config))

    @property
    def summary(self) -> Summary:
        """The result of the run: accuracy, length, speed, `weights_sha256`, `exit_reason`."""
        return Summary.read(self._folder.summary)

    @property
    def metrics(self) -> Columns:
        """Training metrics as columns: `update`, `epoch`, `loss`, `accuracy`, `learning_rate`, …"""
        return _read_columns(self._folder.metrics)

    @property
    def validations(self) -> Columns:
        """Validation results as columns: `update`, `epoch`, `top1`, `top5`, `loss`, …"""
        return _read_columns(self._folder.validation)

    @property
    def checkpoints(self) -> list[Path]:
        """The checkpoints, oldest first; averages after those they were computed from."""
        return find_checkpoints(self.path)[0]

    def plot(self, file: PathLike | None = None) -> "Figure":
        """Draw loss and accuracy over epochs; if `file` is given, also save the figure.

        Requires the extra `plot`.
        """
        figure = _draw_curves(self.metrics, self.validations)
        if file is not None:
            figure.savefig(file, dpi=90)
        return figure


def _draw_curves(training: "Columns", validation: "Columns") -> "Figure":
    """Draw loss and accuracy over epochs, of training and validation, side by side."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("plots need matplotlib: install the extra `plot`") from error
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    panels = zip(figure.subplots(1, 2), ("loss", "accuracy"), ("loss", "top1"), strict=True)
    for axes, trained, validated in panels:
        axes.set(xlabel="epoch", ylabel=trained)
        axes.grid(alpha=0.3)
        if trained in training:
            axes.plot(training["epoch"], training[trained], label="training")
        if validated in validation:
            axes.plot(validation["epoch"], validation[validated], "o-", label="validation")
        if axes.has_data():
            axes.legend()
    return figure


def _read_columns(path: Path) -> Columns:
    """Read a JSON Lines file; a missing value, and an unfinished last line, is NaN or dropped."""
    import numpy as np

    lines = path.read_text().splitlines() if path.is_file() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        name: np.array([_to_float(row.get(name)) for row in rows], np.float64)
        for name in names
        if not any(_is_text(row.get(name)) for row in rows)
    }


def _to_float(value: Any) -> float:
    return float("nan") if value is None else float(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value not in ("nan", "inf", "-inf")


def train(
    *,
    model: "str | NetworkSource | None" = None,
    data: Any = None,
    observers: Sequence[Callable[[Event], None]] = (),
    config: str | None = None,
    config_path: PathLike | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Train a network; the options are those of `convoy train`.

    Without options this trains a small ResNet on the built-in dataset `shapes`. With `replicas`
    or `shards` the run starts worker processes; under torchrun, this process is one of the run.

    Args:
        model: Name of a network (`convoy models` lists them), or your own: a `torch.nn.Sequential`,
            a mapping of named layers, any `torch.nn.Module`, or a function that returns one, which
            may take `num_classes`. `"package.module:function"` names such a function.
        data: Name of a dataset, or your own: a pair of map-style datasets (train, validation) with
            items (image, label), or a function that returns one.
        observers: Functions that are called with every event of the run; see `convoy.events`. One
            that raises is reported once and removed.
        config: Name of a configuration; `convoy configs` lists them.
        config_path: Path of your own configuration file.
        **options: Options of the run, such as `model="resnet20"` or `epochs=3`.

    Returns:
        The run, also if it was stopped by `stop_after`.

    Raises:
        ConvoyError: The run could not start or failed; each subclass is one kind of failure.
        KeyboardInterrupt: Ctrl-C was pressed. The state is saved, and `resume` continues. A second
            Ctrl-C stops at once, without saving.
        SystemExit: The process received SIGTERM. The state is saved.
    """
    called = _check_observers(observers)
    with own_torch_settings():
        objects, names = register_objects(model, data)
        keywords = {**options, **names, "config": config, "config_path": config_path}
        resolved = resolve(options_from_keywords(keywords).to_request())
        quiet = resolved.config.report.progress == "none"
        return _run(RunRequest(resolved, quiet=quiet, observers=called, user_objects=objects))


def resume(
    run: PathLike,
    *,
    model: "str | NetworkSource | None" = None,
    data: Any = None,
    checkpoint: PathLike | None = None,
    override: bool = False,
    observers: Sequence[Callable[[Event], None]] = (),
    **options: Unpack[RunOptions],
) -> Run:
    """Resume a run from its newest valid checkpoint, bit-exactly.

    Args:
        run: The run folder.
        model: Your own network, as for `train`, if the run has one.
        data: Your own dataset, likewise.
        checkpoint: Resume from this checkpoint instead of the newest one.
        override: Allow options that change the training results.
        observers: As for `train`.
        **options: Options to change; those that the weights depend on need `override`.
    """
    called = _check_observers(observers)
    source = None if checkpoint is None else Path(checkpoint)
    with own_torch_settings():
        objects, names = register_objects(model, data)
        requested, folder = options_from_keywords({**options, **names}), Path(run)
        run_settings = read_run_settings(folder / "config.yaml")
        load_user_code(run_settings | requested.settings)
        resolved = resolve_resumed(run_settings, requested.settings, requested.problems, override)
        quiet = resolved.config.report.progress == "none"
        return _run(RunRequest(resolved, folder, source, override, quiet, called, objects))


def _check_observers(observers: Any) -> tuple[Callable[[Event], None], ...]:
    """One observer, or something else that is no list of functions, is a likely mistake."""
    if not isinstance(observers, Iterable) or not all(map(callable, items := tuple(observers))):
        kind = type(observers).__name__
        raise TypeError(f"observers must be a list of functions, got {kind}: {observers!r:.80}")
    return items


def _run(request: RunRequest) -> Run:
    return _raise_if_stopped(start(replace(request, keeps_process=True)))


def _raise_if_stopped(outcome: RunOutcome) -> Run:
    """Return the run, unless a signal stopped it: then this process stops as usual."""
    if outcome.code == ExitCode.INTERRUPTED or outcome.folder is None:
        raise KeyboardInterrupt
    run = Run(outcome.folder)
    if run.summary.final_exit_reason == "preempted":
        raise SystemExit(ExitCode.PREEMPTED)
    return run


@contextmanager
def own_torch_settings() -> Iterator[None]:
    """Run with the settings of a new process, whatever the caller has set, and restore them.

    Gradients, autocast, default dtype and default device would change results; a run changes the
    number of threads, the deterministic mode and the random generator.
    """
    import torch

    dtype, device = torch.get_default_dtype(), torch.get_default_device()
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(_restored_determinism())
        for name in ("cpu", "cuda"):
            if torch.is_autocast_enabled(name):
                stack.enter_context(torch.autocast(name, enabled=False))
        if device.type != "cpu":  # a device context slows down every call
            stack.enter_context(torch.device("cpu"))
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        yield


@contextmanager
def _restored_determinism() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
