"""The line of stages that is asked for: how many, where they begin, whether they share a device.

Known without any layer: a split makes a stage whatever it means.
"""

from convoy.config.sections.machine import PipelineConfig


def asked_starts(wish: PipelineConfig) -> tuple[str | None, ...]:
    """The split at which each stage begins: none at the first, none at all if they are balanced."""
    return (None, *wish.pipeline_splits) if wish.pipeline_splits else (None,) * (wish.shards or 1)


def asked_stages(wish: PipelineConfig) -> int:
    """As many as the splits make; without any, as many as are asked for."""
    return len(asked_starts(wish))


def planned_stages(wish: PipelineConfig) -> int:
    """The same, where stages that share a device count as one."""
    return 1 if folds_into_one(wish) else asked_stages(wish)


def folds_into_one(wish: PipelineConfig) -> bool:
    """Whether all stages are to take turns on one device: they would only wait for each other."""
    stages, mapping = asked_stages(wish), wish.device_mapping
    share = wish.shards == 1 or (len(mapping) == stages and len(set(mapping)) == 1)
    return wish.pipeline_schedule == "sequential" and stages > 1 and share
