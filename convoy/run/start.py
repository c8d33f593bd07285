"""The start of a run. Read this file first:

    the verb resolves the options → `start` inspects the data, plans, and runs in this process,
    in worker processes, or as one process of torchrun → `run_process` joins the process groups →
    `train` (run/phase.py): open data, build, load, train, finish → `fine_tune`, if configured

A single process and a worker call the same `run_process`. torch is not imported before a process
of the run starts.
"""

import os
import signal
import sys
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from convoy.config.resolve import ResolvedConfig, refuse_unavailable
from convoy.config.schema import Setting
from convoy.config.sections.data import DATA
from convoy.errors import ConfigError, ExitCode
from convoy.events import Event, Observers, StopRequest, event_from_json, event_to_json
from convoy.launch.worker import publish
from convoy.launch.world import World, has_launcher
from convoy.machine import default_threads, handle_signals
from convoy.planning.plan import RunPlan, num_used_samples, plan_phases, plan_run
from convoy.report.progress import make_bar
from convoy.report.stream import SafeStream, print_error
from convoy.report.summary import closing_lines
from convoy.run.folder import RunRequest

_PRELOAD = ("convoy.run.phase",)  # imports torch and the rest: most of a worker's startup time
_SHOW_CURSOR = b"\x1b[?25h"


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended: its exit code and its folder, if it has one already."""

    code: int
    folder: Path | None


def start(request: RunRequest) -> RunOutcome:
    """Train or resume a run."""
    refuse_unavailable(request.resolved)
    world = World.from_environment(os.environ) if has_launcher(os.environ) else None
    resolved, samples = inspect_data(request.resolved, quiet=world is not None and world.rank > 0)
    plan = plan_run(resolved.config, samples)
    plan_phases(plan)  # refuse an impossible later phase before the first one starts
    if world is None and plan.topology.hosts > 1:
        raise ConfigError(
            f"--hosts {plan.topology.hosts}: convoy starts processes on one machine only; "
            "use torchrun on each host"
        )
    if world is None and plan.topology.processes == 1:
        world = World.single_process()
    if world is None:
        return run_in_workers(replace(request, resolved=resolved), plan)
    resolved = fix_machine_values(resolved, world.local_world_size)
    plan = replace(plan, config=resolved.config)
    return run_process(world, replace(request, resolved=resolved), plan)


def run_in_workers(request: RunRequest, plan: RunPlan) -> RunOutcome:
    """Run in worker processes, one per rank, even if there is only one.

    Observers are called here, with the events that rank 0 publishes.
    """
    from convoy.launch.supervisor import LaunchOptions, run_workers

    observers, folders = Observers(request.observers), list[Path]()

    def on_record(record: dict[str, Any]) -> None:
        if "folder" in record:
            folders.append(Path(record["folder"]))
        else:
            observers.notify(event_from_json(record))

    resolved = fix_machine_values(request.resolved, plan.topology.processes)
    stage_bytes = [stage.total for phase in plan_phases(plan) for stage in phase.memory]
    objects = request.user_objects
    outcome = run_workers(
        plan.topology,
        f"{__name__}:run_worker",
        WorkerPayload(
            replace(request, resolved=resolved, observers=(), user_objects=None),
            replace(plan, config=resolved.config),
            bool(request.observers),
            b"" if objects is None else objects.to_bytes(),
        ),
        resolved.config.device.threads,
        LaunchOptions(_PRELOAD, bytes_per_worker=max(stage_bytes)),
        on_record,
    )
    error = outcome.error()
    if error is not None:
        raise error
    return RunOutcome(outcome.code, folders[-1] if folders else None)


@dataclass(frozen=True)
class WorkerPayload:
    """What a worker receives."""

    request: RunRequest
    plan: RunPlan
    publishes_events: bool
    user_objects: bytes  # of `UserObjects`; empty if there are none


def run_worker(world: World, payload: WorkerPayload) -> int:
    request = payload.request
    if payload.publishes_events:
        request = replace(request, observers=(_publish_event,))
    _register_user_code(payload)
    outcome = run_process(world, request, payload.plan)
    if world.rank == 0:
        publish({"folder": str(outcome.folder)})
    return outcome.code


def _publish_event(event: Event) -> None:
    publish(event_to_json(event))


def _register_user_code(payload: WorkerPayload) -> None:
    """Register the user's own network and dataset."""
    config = payload.plan.config
    if payload.user_objects or ":" in config.network.model + config.data.data:
        from convoy.run.user_code import UserObjects, register_import_paths

        if payload.user_objects:
            UserObjects.from_bytes(payload.user_objects).register()
        register_import_paths(payload.request.resolved.settings)


def run_process(world: World, request: RunRequest, plan: RunPlan) -> RunOutcome:
    """One process of a run: the only one, a worker, or one that torchrun started."""
    from convoy.run.fine_tuning import fine_tune, first_phase_request
    from convoy.run.phase import train
    from convoy.run.process import join_run

    stop = StopRequest()
    # With other processes, cleaning up would wait for them.
    keeps_process = request.keeps_process and world.world_size == 1
    with _stop_on_signals(stop, keeps_process), join_run(world, plan) as context:
        finished = train(first_phase_request(request), context, stop)
        if plan.config.fine_tune.half_res_training:
            finished = fine_tune(request, finished, context, stop)
        if world.rendezvous is None:  # the script of this process may read the run folder next
            context.control.wait_for_rank_zero()
    if world.rank == 0 and not request.quiet:
        stdout = SafeStream(sys.stdout)  # a closed pipe must not change the exit code
        if finished.was_complete:
            stdout.print("the run is already complete; nothing to do")
        for line in closing_lines(finished.summary, finished.folder):
            stdout.print(line)
    return RunOutcome(finished.summary.exit_code, finished.folder)


def _stop_on_signals(stop: StopRequest, keeps_process: bool) -> AbstractContextManager[None]:
    """SIGTERM, SIGHUP and SIGINT request a save and a stop; a second SIGINT stops at once.

    The handler only sets the request; the loop acts between two updates. A second SIGINT ends the
    process, or raises KeyboardInterrupt in a process of the user, such as a notebook.
    """
    received: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and number in received:
            if keeps_process:
                raise KeyboardInterrupt
            # No cleanup: an unfinished checkpoint stays a temporary folder; the last is intact.
            if sys.stdout is not None and sys.stdout.isatty():
                os.write(sys.stdout.fileno(), _SHOW_CURSOR)
            os._exit(ExitCode.INTERRUPTED)
        received.append(number)
        stop.request("interrupted" if number == signal.SIGINT else "preempted")

    return handle_signals((signal.SIGTERM, signal.SIGHUP, signal.SIGINT), handle)


def inspect_data(
    resolved: ResolvedConfig, quiet: bool = False
) -> tuple[ResolvedConfig, int | None]:
    """Read the number of samples and classes from the files, if only they have it.

    None means the known size of the dataset. The number of classes is set unless the user set it.
    """
    config = resolved.config.data
    if not DATA[config.data].classes_from_files or config.data_dir is None:
        return resolved, None
    from convoy.data.sources.open import inspect_folder

    folder, share = Path(config.data_dir), config.validation_share
    if quiet:
        found_classes, found_samples = inspect_folder(folder, share)
    else:
        with closing(make_bar(sys.stderr, "indexing", "bytes")) as indexing:
            found_classes, found_samples = inspect_folder(folder, share, print_error, indexing)
    samples = None if found_samples is None else num_used_samples(resolved.config, found_samples)
    if config.num_classes is not None:
        return resolved, samples
    source = f"data in {config.data_dir}"
    return resolved.with_values({"num_classes": found_classes}, source), samples


def fix_machine_values(resolved: ResolvedConfig, processes: int) -> ResolvedConfig:
    """Make values of this machine part of the run's configuration.

    Results depend on the number of threads, and a run may be resumed from another folder.
    """
    settings = dict(resolved.settings)
    if not resolved.config.device.threads:
        settings["threads"] = Setting(*default_threads(processes))
    if resolved.config.data.data_dir is not None:
        path = str(Path(resolved.config.data.data_dir).absolute())
        settings["data_dir"] = Setting(path, settings["data_dir"].source)
    return ResolvedConfig(settings)
