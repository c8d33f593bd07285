"""Plan a run without training it."""

from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

from convoy.api.keywords import NamedOptions
from convoy.api.requests import PathLike, options_from_keywords
from convoy.config.resolve import ResolvedConfig, inactive_options, resolve, unavailable_values
from convoy.planning.plan import plan_run
from convoy.planning.render import (
    inactive_as_text,
    phases_as_text,
    plan_as_json,
    sources_as_text,
    unavailable_as_text,
)
from convoy.run.start import inspect_data


class Plan:
    """The plan of a run: batches, stages, memory and learning rates, computed from its options.

    `print(plan)` shows it as `convoy plan` does.
    """

    def __init__(self, resolved: ResolvedConfig) -> None:
        """Plan with the data files if they exist; a plan does not need them."""
        folder, samples = resolved.config.data.data_dir, None
        if folder is not None and Path(folder).is_dir():
            resolved, samples = inspect_data(resolved)
        self._resolved = resolved
        self._plan = plan_run(resolved.config, samples)

    @cached_property
    def values(self) -> dict[str, Any]:
        """The plan as JSON values, as `convoy plan --json` prints it."""
        return plan_as_json(self._plan, self._resolved.settings)

    @property
    def global_batch_size(self) -> int:
        """Samples per update over all replicas."""
        return self._plan.batch.samples_per_update

    @property
    def updates(self) -> int:
        """Updates of the whole run."""
        return self._plan.loop.updates

    @property
    def stage_starts(self) -> list[str]:
        """Name of the first layer of each stage but the first."""
        return list(self._plan.stage_starts)

    @property
    def memory_bytes(self) -> list[int]:
        """Planned memory of each stage."""
        return [stage.total for stage in self._plan.memory]

    def learning_rate(self, update: int) -> float:
        """The learning rate of an update, counted from 0."""
        return self._plan.loop.learning_rate.rate(update)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self, width: int = 100, explain: bool = False) -> list[str]:
        """The text of the plan; with `explain`, also the source of each value."""
        resolved = self._resolved
        lines = [
            *phases_as_text(self._plan, width),
            *inactive_as_text(inactive_options(resolved.config, resolved.settings)),
            *unavailable_as_text(unavailable_values(resolved.settings)),
        ]
        return [*lines, "", *sources_as_text(resolved.settings)] if explain else lines


def plan(
    *,
    config: str | None = None,
    config_path: PathLike | None = None,
    **options: Unpack[NamedOptions],
) -> Plan:
    """Plan a run; the arguments are those of `train`. This does not import torch."""
    requested = options_from_keywords({**options, "config": config, "config_path": config_path})
    return Plan(resolve(requested.to_request()))
