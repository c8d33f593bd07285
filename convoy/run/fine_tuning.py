"""Fine-tuning: the second phase of a run, after half-resolution training.

It is a run in a folder of its own inside that of the first. Where a resumed run stands is seen from
the files there, so it may have been stopped or lost at any point.
"""

import json
from dataclasses import asdict, replace
from pathlib import Path
from shlex import quote

from convoy.checkpoint.store import Store
from convoy.config.resolve import Resolved, settings_of_run
from convoy.config.settings import Setting, from_source
from convoy.errors import CheckpointError, ConfigError
from convoy.events import StopRequest
from convoy.files import FINE_TUNE
from convoy.parallel.control import ControlGroup
from convoy.plan.plan import fine_tuning_values, plan_run
from convoy.report.log import json_safe
from convoy.report.summary import AverageSummary, FineTuneSummary, Finished, Summary
from convoy.run.folder import RunFolder, RunRequest, reclaim_run_folder
from convoy.run.phase import train
from convoy.run.process import ProcessContext
from convoy.run.starting_point import FIRST_WEIGHTS


def first_phase(request: RunRequest) -> RunRequest:
    """The request for the phase before; the checkpoint to resume from may not be its own."""
    return replace(request, checkpoint=None) if _is_of_fine_tuning(request) else request


def _is_of_fine_tuning(request: RunRequest) -> bool:
    if request.folder is None or request.checkpoint is None:
        return False
    return (request.folder / FINE_TUNE).resolve() in request.checkpoint.resolve().parents


def fine_tune(
    request: RunRequest, trained: Finished, context: ProcessContext, stop: StopRequest
) -> Finished:
    """The second phase, begun with the average of a complete first one, or resumed."""
    trained, is_first = _summary_of_first(trained, context.control), context.control.is_first
    if trained.summary.exit_reason != "done":
        return trained
    home = trained.folder / FINE_TUNE
    # Only the first process must know whether it has begun: the others hear where to start.
    if is_first and Store(RunFolder(home).checkpoints).updates():
        phase = _resumed_fine_tuning(request, trained, home)
    else:
        average = trained.folder / _average_of(trained).path
        phase = RunRequest(_fine_tuning_config(request.resolved, trained, str(average.absolute())))
    plan = plan_run(phase.resolved.config, context.plan.loop.samples)
    tuned = train(phase, replace(context, plan=plan), stop, lambda _: reclaim_run_folder(home))
    return _with_fine_tuning(trained, tuned, is_first)


def _summary_of_first(trained: Finished, control: ControlGroup) -> Finished:
    """The first process averages alone: only it knows whether there is an average to fine-tune."""
    control.wait_for_first()
    message = json.dumps(json_safe(asdict(trained.summary))).encode()
    summary = Summary.from_record(json.loads(control.broadcast(message)))
    return replace(trained, summary=summary)


def _resumed_fine_tuning(request: RunRequest, trained: Finished, home: Path) -> RunRequest:
    """Only if it was begun with the average that the run has now."""
    newest, average = Store(RunFolder(home).checkpoints).newest().contents, _average_of(trained)
    began_with = newest.state.get(FIRST_WEIGHTS)
    if began_with not in (None, average.weights_sha256):
        raise CheckpointError(
            f"{home} was begun with other weights (sha256 {str(began_with)[:12]}…) than the "
            f"average that the run has now (sha256 {average.weights_sha256[:12]}…); move it away "
            "and resume the run again"
        )
    checkpoint = request.checkpoint if _is_of_fine_tuning(request) else None
    # The user counts the updates of both phases.
    before, stop_after = trained.summary.updates, request.resolved.config.length.stop_after
    if checkpoint is None and stop_after is not None and stop_after <= before + newest.update:
        raise ConfigError(
            f"--stop-after {stop_after} lies behind: {before} updates of training and "
            f"{newest.update} of fine-tuning are done"
        )
    # As it was written: the folder may have been moved since.
    first_weights = settings_of_run(home / "config.yaml")["init_path"].value
    resolved = _fine_tuning_config(request.resolved, trained, first_weights)
    return RunRequest(resolved, home, checkpoint, request.override)


def _with_fine_tuning(trained: Finished, tuned: Finished, is_first: bool) -> Finished:
    """The results of both phases, written in the folder of the first."""
    result = tuned.summary
    fine_tuned = FineTuneSummary(
        path=FINE_TUNE,
        exit_reason=result.exit_reason,
        weights_sha256=result.weights_sha256,
        top1=result.top1,
        top5=result.top5,
        updates=result.updates,
        epochs=result.epochs,
    )
    summary = replace(trained.summary, fine_tune=fine_tuned)
    if is_first and summary != trained.summary:
        summary.write(RunFolder(trained.folder).summary)
    return Finished(summary, trained.folder, trained.was_complete and tuned.was_complete)


def _fine_tuning_config(resolved: Resolved, trained: Finished, first_weights: str) -> Resolved:
    """The configuration of the second phase. What the user gave was given for the first one."""
    inherited = {
        name: one if one.source == "default" else Setting(one.value, f"{one.source} of the run")
        for name, one in resolved.settings.items()
    }
    summary = trained.summary
    values = fine_tuning_values(resolved.config, summary.updates, summary.epochs) | {
        "init_path": first_weights,
        "checkpoint_output_path": str(trained.folder / FINE_TUNE),
        "name": None,
        "name_suffix": None,
    }
    return Resolved.of(inherited | from_source("fine-tuning", values))


def _average_of(trained: Finished) -> AverageSummary:
    made = trained.summary.averaged
    if made is None:
        run = quote(str(trained.folder))
        raise CheckpointError(
            f"{trained.folder} has no average to fine-tune: it ended without; begin a run with "
            f"`convoy train --init-path {run} --fine-tune-first-trainable-layer …`"
        )
    return made
