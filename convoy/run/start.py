"""The start of a run. Read this file first:

    the verb resolves the options → `start` inspects the data, plans, and runs in this process,
    in worker processes, or as one process of torchrun → `run_process` joins the process groups →
    `train` (run/phase.py): open data, build, load, train, finish → `fine_tune`, if asked for

One process and a worker call the same `run_process`; only a worker receives its arguments by
message. torch is not imported before a process of the run begins.
"""

import os
import signal
import sys
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from convoy.config.catalog import DATA
from convoy.config.resolve import Resolved
from convoy.config.schema import option_table
from convoy.config.settings import Setting
from convoy.config.support import refuse_unready
from convoy.errors import ConfigError, ExitCode
from convoy.events import StopRequest
from convoy.launch.world import World, has_launcher
from convoy.machine import handle_signals, threads_each
from convoy.plan.plan import RunPlan, plan_phases, plan_run, used_samples
from convoy.report.progress import make_bar
from convoy.report.stream import SafeStream, print_error
from convoy.report.summary import closing_lines
from convoy.run.folder import RunRequest

_PRELOAD = ("convoy.run.phase",)  # with torch and everything else: most of a worker's start
_SHOW_CURSOR = "\x1b[?25h"


def start(request: RunRequest) -> int:
    """Train or resume to the end; returns the exit code."""
    refuse_unready(request.resolved)
    world = World.from_environment(os.environ) if has_launcher(os.environ) else None
    resolved, samples = inspect_data(request.resolved, quiet=world is not None and world.rank > 0)
    plan = plan_run(resolved.config, samples)
    plan_phases(plan)  # what a later phase cannot do is refused before the first one begins
    if world is None and plan.topology.hosts > 1:
        raise ConfigError(
            f"--hosts {plan.topology.hosts}: convoy starts processes on one machine; "
            "start it on each host with torchrun"
        )
    if world is None and plan.topology.processes == 1:
        world = World.alone()
    if world is None:
        return run_in_workers(replace(request, resolved=resolved), plan)
    resolved = settle(resolved, world.local_size)
    return run_process(
        replace(request, resolved=resolved), replace(plan, config=resolved.config), world
    )


def run_in_workers(request: RunRequest, plan: RunPlan) -> int:
    """Run in processes of their own, one for each rank, even if there is only one."""
    from convoy.launch.supervisor import Limits, run_workers

    settled = settle(request.resolved, plan.topology.processes)
    stage_bytes = [stage.total for phase in plan_phases(plan) for stage in phase.memory]
    outcome = run_workers(
        plan.topology,
        f"{__name__}:run_worker",
        _to_message(replace(request, resolved=settled), plan.loop.samples),
        settled.config.device.threads,
        Limits(bytes_each=max(stage_bytes)),
        preload=_PRELOAD,
    )
    error = outcome.error()
    if error is not None:
        raise error
    return outcome.code


def run_worker(world: World, message: dict[str, Any]) -> int:
    request = _from_message(message)
    return run_process(request, plan_run(request.resolved.config, message["samples"]), world)


def run_process(request: RunRequest, plan: RunPlan, world: World) -> int:
    """One process of a run: the only one, a worker, or one that torchrun started."""
    from convoy.run.fine_tuning import fine_tune, first_phase
    from convoy.run.phase import train
    from convoy.run.process import join_run

    stop = StopRequest()
    with _stop_on_signals(stop), join_run(world, plan) as context:
        finished = train(first_phase(request), context, stop)
        if plan.config.fine_tune.half_res_training:
            finished = fine_tune(request, finished, context, stop)
    if world.rank == 0 and not request.quiet:
        stdout = SafeStream(sys.stdout)  # a reader that has gone does not spoil the exit code
        if finished.was_complete:
            stdout.print("already complete: nothing was changed")
        for line in closing_lines(finished.summary, finished.folder):
            stdout.print(line)
    return finished.summary.exit_code


def _to_message(request: RunRequest, samples: int) -> dict[str, Any]:
    """As JSON can carry it to a worker."""
    return {
        "settings": {n: [one.value, one.source] for n, one in request.resolved.settings.items()},
        "folder": request.folder and str(request.folder),
        "checkpoint": request.checkpoint and str(request.checkpoint),
        "override": request.override,
        "quiet": request.quiet,
        "samples": samples,
    }


def _from_message(message: dict[str, Any]) -> RunRequest:
    table = option_table()
    settings = {
        name: Setting(table[name].kind.check(value), source)
        for name, (value, source) in message["settings"].items()
    }
    folder, checkpoint = (
        message[name] and Path(message[name]) for name in ("folder", "checkpoint")
    )
    return RunRequest(
        Resolved.of(settings), folder, checkpoint, message["override"], message["quiet"]
    )


def _stop_on_signals(stop: StopRequest) -> AbstractContextManager[None]:
    """SIGTERM and SIGHUP ask for a save and a stop, SIGINT too; a second SIGINT stops at once.

    A handler only remembers; the loop acts between two updates.
    """
    arrived: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and number in arrived:
            _leave_now()
        arrived.append(number)
        stop.ask("interrupted" if number == signal.SIGINT else "preempted")

    return handle_signals((signal.SIGTERM, signal.SIGHUP, signal.SIGINT), handle)


def _leave_now() -> None:
    """No clean-up: an unfinished checkpoint stays a temporary folder, the last one is intact."""
    if sys.stdout is not None and sys.stdout.isatty():
        os.write(sys.stdout.fileno(), _SHOW_CURSOR.encode())
    os._exit(ExitCode.INTERRUPTED)


def inspect_data(resolved: Resolved, quiet: bool = False) -> tuple[Resolved, int | None]:
    """The number of training samples in use, if only the files tell it (None: the data set's own).

    The classes of a folder become those of the network, unless the user has set them.
    """
    config = resolved.config.data
    if not DATA[config.data].any_classes or config.data_dir is None:
        return resolved, None
    from convoy.data.sources.open import look_into, look_quietly

    folder = Path(config.data_dir)
    if quiet:
        found = look_quietly(folder)
    else:
        with closing(make_bar(sys.stderr, "indexing", "bytes")) as indexing:
            found = look_into(folder, print_error, indexing)
    samples = None if found.train is None else used_samples(resolved.config, found.train)
    if config.num_classes is not None:
        return resolved, samples
    classes = Setting(found.classes, f"data in {config.data_dir}")
    return Resolved.of({**resolved.settings, "num_classes": classes}), samples


def settle(resolved: Resolved, processes: int) -> Resolved:
    """Make values that were found here part of the run's configuration.

    Results depend on the number of threads, and a run may be resumed from another folder.
    """
    settings = dict(resolved.settings)
    if not resolved.config.device.threads:
        settings["threads"] = Setting(threads_each(0, processes), "cores of this machine")
    if resolved.config.data.data_dir is not None:
        whole = str(Path(resolved.config.data.data_dir).absolute())
        settings["data_dir"] = Setting(whole, settings["data_dir"].source)
    return Resolved.of(settings)
