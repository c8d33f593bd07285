"""The line of stages that is asked for: how many, and whether they share a device.

Known without any layer: a split makes a stage whatever it means.
"""

from convoy.config.sections.machine import PipelineConfig


def asked_stages(wish: PipelineConfig) -> int:
    """As many as the splits make; without any, as many as are asked for."""
    return len(wish.pipeline_splits) + 1 if wish.pipeline_splits else wish.shards or 1


def planned_stages(wish: PipelineConfig) -> int:
    """The same, where stages that share a device count as one."""
    return 1 if folds_into_one(wish) else asked_stages(wish)


def folds_into_one(wish: PipelineConfig) -> bool:
    """Whether all stages are to take turns on one device: they would only wait for each other."""
    stages, mapping = asked_stages(wish), wish.device_mapping
    share = wish.shards == 1 or (len(mapping) == stages and len(set(mapping)) == 1)
    return wish.pipeline_schedule == "sequential" and stages > 1 and share
