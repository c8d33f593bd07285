"""Fine-tuning: the second phase of a run, after half-resolution training.

It is a run in its own folder inside that of the first phase. A resumed run finds its position from
the files there, so it may have been interrupted at any point.
"""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from shlex import quote

from convoy.checkpoint.store import CheckpointStore
from convoy.config.resolve import ResolvedConfig, read_run_settings
from convoy.config.schema import Setting, settings_from
from convoy.errors import CheckpointError, ConfigError
from convoy.events import StopRequest
from convoy.files import FINE_TUNE_FOLDER
from convoy.parallel.control import ControlGroup
from convoy.planning.plan import fine_tuning_overrides, plan_run
from convoy.report.log import json_safe
from convoy.report.summary import AverageSummary, FineTuneSummary, FinishedRun, Summary
from convoy.run.folder import RunFolder, RunRequest, reclaim_run_folder
from convoy.run.phase import train
from convoy.run.process import ProcessContext
from convoy.run.starting_point import INITIAL_WEIGHTS


def first_phase_request(request: RunRequest) -> RunRequest:
    """Return the request for the first phase; the checkpoint may belong to the second."""
    return replace(request, checkpoint=None) if _is_fine_tuning_checkpoint(request) else request


def _is_fine_tuning_checkpoint(request: RunRequest) -> bool:
    if request.folder is None or request.checkpoint is None:
        return False
    return (request.folder / FINE_TUNE_FOLDER).resolve() in request.checkpoint.resolve().parents


def fine_tune(
    request: RunRequest, trained: FinishedRun, context: ProcessContext, stop: StopRequest
) -> FinishedRun:
    """Run the second phase, from the average of a complete first phase, or resume it."""
    trained, is_first = _broadcast_summary(trained, context.control), context.control.is_rank_zero
    if trained.summary.exit_reason != "done":
        return trained
    folder = trained.folder / FINE_TUNE_FOLDER
    # Only rank 0 must know whether it has started: the others receive the starting point.
    if is_first and CheckpointStore(RunFolder(folder).checkpoints).updates():
        phase = _resume_request(request, trained, folder)
    else:
        average = trained.folder / _require_average(trained).path
        resolved = _fine_tuning_config(request.resolved, trained, str(average.absolute()))
        phase = RunRequest(resolved, observers=request.observers)
    plan = plan_run(phase.resolved.config, context.plan.loop.samples)
    tuned = train(phase, replace(context, plan=plan), stop, lambda _: reclaim_run_folder(folder))
    return _add_fine_tuning(trained, tuned, is_first)


def _broadcast_summary(trained: FinishedRun, control: ControlGroup) -> FinishedRun:
    """Only rank 0 averages, so it sends the others its summary, with the average to fine-tune."""
    control.wait_for_rank_zero()
    message = json.dumps(json_safe(asdict(trained.summary))).encode()
    summary = Summary.from_record(json.loads(control.broadcast(message)))
    return replace(trained, summary=summary)


def _resume_request(request: RunRequest, trained: FinishedRun, folder: Path) -> RunRequest:
    """Return a request to resume fine-tuning, if it started from the run's current average."""
    newest = CheckpointStore(RunFolder(folder).checkpoints).load_newest().contents
    average = _require_average(trained)
    initial_digest = newest.state.get(INITIAL_WEIGHTS)
    if initial_digest not in (None, average.weights_sha256):
        raise CheckpointError(
            f"{folder} was started from different weights (sha256 {str(initial_digest)[:12]}…) "
            f"than the run's current average (sha256 {average.weights_sha256[:12]}…); move it away "
            "and resume the run again"
        )
    checkpoint = request.checkpoint if _is_fine_tuning_checkpoint(request) else None
    # --stop-after counts the updates of both phases.
    before, stop_after = trained.summary.updates, request.resolved.config.length.stop_after
    if checkpoint is None and stop_after is not None and stop_after <= before + newest.update:
        raise ConfigError(
            f"--stop-after {stop_after} must be greater than the {before + newest.update} updates "
            f"already done: {before} of training and {newest.update} of fine-tuning"
        )
    # As recorded: the folder may have been moved since.
    initial_weights_path = read_run_settings(folder / "config.yaml")["init_path"].value
    resolved = _fine_tuning_config(request.resolved, trained, initial_weights_path)
    return replace(request, resolved=resolved, folder=folder, checkpoint=checkpoint)


def _add_fine_tuning(trained: FinishedRun, tuned: FinishedRun, is_first: bool) -> FinishedRun:
    """Combine the results of both phases, and write them to the first phase's folder."""
    result = asdict(tuned.summary) | {"path": FINE_TUNE_FOLDER}
    values = {item.name: result[item.name] for item in fields(FineTuneSummary)}
    summary = replace(trained.summary, fine_tune=FineTuneSummary(**values))
    if is_first and summary != trained.summary:
        summary.write(RunFolder(trained.folder).summary)
    return FinishedRun(summary, trained.folder, trained.was_complete and tuned.was_complete)


def _fine_tuning_config(
    resolved: ResolvedConfig, trained: FinishedRun, initial_weights_path: str
) -> ResolvedConfig:
    """Return the configuration of the second phase; the user's settings are inherited."""
    inherited = {
        name: setting
        if setting.source == "default"
        else Setting(setting.value, f"{setting.source} of the run")
        for name, setting in resolved.settings.items()
    }
    summary = trained.summary
    values = fine_tuning_overrides(resolved.config, summary.updates, summary.epochs) | {
        "init_path": initial_weights_path,
        "checkpoint_output_path": str(trained.folder / FINE_TUNE_FOLDER),
        "name": None,
        "name_suffix": None,
    }
    return ResolvedConfig(inherited | settings_from("fine-tuning", values))


def _require_average(trained: FinishedRun) -> AverageSummary:
    average = trained.summary.averaged
    if average is None:
        run = quote(str(trained.folder))
        raise CheckpointError(
            f"{trained.folder} has no average to fine-tune; start a new run with "
            f"`convoy train --init-path {run} --fine-tune-first-trainable-layer …`"
        )
    return average
