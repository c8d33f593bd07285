"""From the first phase of a run to the second: what it begins with, and in which configuration.

The second phase is a run in a folder of its own inside that of the first. Where a run that goes on
stands is seen from what lies there, so it may have been stopped or lost at any point.
"""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote

from convoy.assemble.initial import FIRST_WEIGHTS
from convoy.assemble.results import fine_tune_summary
from convoy.checkpoint.contents import Contents
from convoy.checkpoint.store import Store
from convoy.config.layers import Setting, from_source
from convoy.config.resolve import Resolved
from convoy.config.resume import settings_of_run
from convoy.config.schema import RunConfig
from convoy.errors import CheckpointError, ConfigError
from convoy.parallel.council import Council
from convoy.plan.phases import fine_tuning_values
from convoy.plan.places import FINE_TUNE
from convoy.report.lines import plain
from convoy.report.run_folder import RunFolder
from convoy.report.summary import AverageSummary, Finished, Summary


@dataclass(frozen=True)
class Wish:
    """How a run shall go on: its configuration, from where, and whether changes are meant."""

    resolved: Resolved
    checkpoint: Path | None = None
    override: bool = False

    def by_phase(self, run: Path) -> tuple["Wish", "Wish"]:
        """The same for each phase: a checkpoint belongs to one of them."""
        other = replace(self, checkpoint=None)
        tuned = (run / FINE_TUNE).resolve()
        if self.checkpoint is not None and tuned in self.checkpoint.resolve().parents:
            return other, self
        return self, other


def as_the_first_tells(trained: Finished, council: Council) -> Finished:
    """The first process averages alone: only it knows whether there is anything to go on with."""
    council.wait_for_the_first()
    word = json.dumps(plain(asdict(trained.summary))).encode()
    summary = Summary.from_record(json.loads(council.hear(word)))
    return replace(trained, summary=summary)


def has_begun(home: Path) -> bool:
    """Whether fine-tuning has come to a checkpoint; without one it begins again."""
    return bool(_store(home).updates())


def fine_tuning(trained: Finished, wish: Wish) -> Wish:
    """How the second phase shall begin."""
    average = trained.folder / _average_of(trained).path
    return replace(wish, resolved=_resolved(wish.resolved, trained, str(average.absolute())))


def fine_tuning_again(trained: Finished, wish: Wish) -> Wish:
    """How it shall go on, where it belongs to this training."""
    home = trained.folder / FINE_TUNE
    newest = _store(home).newest().contents
    _refuse_others(home, newest, _average_of(trained))
    if wish.checkpoint is None:
        _refuse_stop_behind(wish.resolved.config, trained.summary.updates, newest.update)
    # As it was written: the folder may have been moved since.
    first_weights = settings_of_run(home / "config.yaml")["init_path"].value
    return replace(wish, resolved=_resolved(wish.resolved, trained, first_weights))


def with_fine_tuning(trained: Finished, tuned: Finished, is_first: bool) -> Finished:
    """What both phases came to, told in the folder of the first."""
    summary = replace(trained.summary, fine_tune=fine_tune_summary(tuned.summary))
    if is_first and summary != trained.summary:
        summary.write(RunFolder(trained.folder).summary)
    return Finished(summary, trained.folder, trained.was_complete and tuned.was_complete)


def _store(home: Path) -> Store:
    return Store(RunFolder(home).checkpoints)


def _resolved(resolved: Resolved, trained: Finished, first_weights: str) -> Resolved:
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


def _refuse_others(home: Path, newest: Contents, average: AverageSummary) -> None:
    """Fine-tuning that was begun with other weights is not that of this training."""
    began_with = newest.state.get(FIRST_WEIGHTS)
    if began_with not in (None, average.weights_sha256):
        raise CheckpointError(
            f"{home} was begun with other weights (sha256 {str(began_with)[:12]}…) than the "
            f"average that the run has now (sha256 {average.weights_sha256[:12]}…); move it away "
            "and resume the run again"
        )


def _refuse_stop_behind(config: RunConfig, before: int, done: int) -> None:
    """In the numbers of the user, who counts the updates of both phases."""
    stop_after = config.length.stop_after
    if stop_after is not None and stop_after <= before + done:
        raise ConfigError(
            f"--stop-after {stop_after} lies behind: {before} updates of training and {done} of "
            "fine-tuning are done"
        )
