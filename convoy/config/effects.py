"""Options that can do nothing in a configuration, and why. What was asked for is never ignored
without a word: `convoy plan` shows these, and a run tells each of them once.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from convoy.config.catalog import DATA, MODELS
from convoy.config.effects_data import IDLE_DATA
from convoy.config.effects_keeping import IDLE_KEEPING, Idle
from convoy.config.effects_loss import IDLE_LOSS
from convoy.config.effects_mixing import IDLE_MIXING
from convoy.config.effects_network import IDLE_NETWORK
from convoy.config.effects_numbers import IDLE_NUMBERS
from convoy.config.effects_optimizer import (
    IDLE_OPTIMIZER,
    nothing_lies_beside_the_weights,
    there_is_one_micro_batch,
)
from convoy.config.layers import Setting
from convoy.config.schema import RunConfig, option_table

COMMAND_LINE = "command line"  # the source of what was typed, as `command_line.py` names it
_FILE = re.compile(r", line \d+$")  # how the source of a value in a file ends


@dataclass(frozen=True)
class Effectless:
    """An option that was given in vain."""

    option: str
    why: str

    @property
    def flag(self) -> str:
        return option_table()[self.option].flag

    @property
    def reason(self) -> str:
        """The whole sentence."""
        return f"{self.flag} has no effect {self.why}"


def the_schedule_is_none_of(*schedules: str) -> Idle:
    def idle(run: RunConfig) -> str | None:
        schedule = run.learning_rate.lr_schedule
        return None if schedule in schedules else f"with --lr-schedule {schedule}"

    return idle


def step_never_drops(run: RunConfig) -> str | None:
    rate = run.learning_rate
    if rate.lr_schedule == "step" and not (rate.lr_epoch_decay or rate.lr_share_decay):
        return "with --lr-schedule step without --lr-epoch-decay"
    return None


def step_drops_on_time(run: RunConfig) -> str | None:
    """A drop waits for the next change of the rate, but here each falls on one."""
    rate = run.learning_rate
    often = Fraction(str(rate.lr_scheduler_freq))
    if rate.lr_schedule != "step" or not often or rate.lr_share_decay:
        return None
    waits = any((often * Fraction(str(epoch))).denominator > 1 for epoch in rate.lr_epoch_decay)
    return None if waits else "with --lr-schedule step: every drop falls on a change"


def the_multipliers_say_it(run: RunConfig) -> str | None:
    is_step = run.learning_rate.lr_schedule == "step"
    return "beside --lr-multipliers" if is_step and run.learning_rate.lr_multipliers else None


def nothing_is_smoothed(run: RunConfig) -> str | None:
    return None if run.loss.label_smoothing else "without --label-smoothing"


def there_is_one_stage(run: RunConfig) -> str | None:
    return "with one stage" if _stages(run) == 1 else None


def borders_mean_nothing(run: RunConfig) -> str | None:
    """Stages that share a device run as one; only recomputation knows where they begin."""
    folds = run.pipeline.shards == 1 or _is_folded_by_mapping(run)
    if folds and run.memory.enable_recompute is False:
        return "on one device with --no-enable-recompute"
    return None


def the_mapping_has_no_devices(run: RunConfig) -> str | None:
    """All processes share the one device there is, but a mapping may still fold stages."""
    return None if _is_folded_by_mapping(run) else there_is_one_device(run)


def there_is_one_device(run: RunConfig) -> str | None:
    device = run.device.device
    return f"with --device {device}" if device in ("cpu", "mps") else None


def loaders_are_not_shared(run: RunConfig) -> str | None:
    return "yet: every replica reads its own samples" if run.device.instances > 1 else None


def there_is_one_replica(run: RunConfig) -> str | None:
    return "with one replica" if run.batch.replicas == 1 else None


def nothing_is_compiled(run: RunConfig) -> str | None:
    return None if run.compiler.compile else "without --compile"


def nothing_is_kept_of_it(run: RunConfig) -> str | None:
    return "without --model-cache-path" if run.compiler.model_cache_path is None else None


def there_is_one_phase(run: RunConfig) -> str | None:
    return None if run.fine_tune.half_res_training else "without --half-res-training"


# In the order of the option table. The first reason that holds is told.
IDLE: dict[str, tuple[Idle, ...]] = {
    **IDLE_NETWORK,
    **IDLE_DATA,
    **IDLE_MIXING,
    "lr_decay": (
        the_schedule_is_none_of("step", "exponential"),
        the_multipliers_say_it,
        step_never_drops,
    ),
    "lr_epoch_decay": (the_schedule_is_none_of("step"),),
    "lr_share_decay": (the_schedule_is_none_of("step"),),
    "lr_multipliers": (the_schedule_is_none_of("step"),),
    "lr_drops": (step_never_drops,),
    "lr_scheduler_freq": (step_never_drops, step_drops_on_time),
    "poly_lr_decay_power": (the_schedule_is_none_of("polynomial"),),
    "poly_lr_end_ratio": (the_schedule_is_none_of("polynomial"),),
    "abs_end_learning_rate": (the_schedule_is_none_of("polynomial"),),
    **IDLE_OPTIMIZER,
    "label_smoothing_over": (nothing_is_smoothed,),
    **IDLE_LOSS,
    **IDLE_NUMBERS,
    "fine_tune_epoch": (there_is_one_phase,),
    "fine_tune_lr": (there_is_one_phase,),
    "fine_tune_micro_batch_size": (there_is_one_phase,),
    "fine_tune_gradient_accumulation": (there_is_one_phase,),
    "pipeline_splits": (borders_mean_nothing,),
    "pipeline_schedule": (there_is_one_stage,),
    "device_mapping": (the_mapping_has_no_devices,),
    "offload_optimizer": (nothing_lies_beside_the_weights,),
    "enable_optimizer_rts": (there_is_one_replica, nothing_lies_beside_the_weights),
    "gradient_reduction": (there_is_one_micro_batch,),
    "reduction": (there_is_one_replica,),
    "overlap_reduction": (there_is_one_replica,),
    "max_cross_replica_buffer_size": (there_is_one_replica,),
    "select_devices": (there_is_one_device,),
    "instances": (loaders_are_not_shared,),
    "model_cache_path": (nothing_is_compiled,),
    "force_recompile": (nothing_is_compiled,),
    "tmp_execs": (nothing_is_compiled, nothing_is_kept_of_it),
    **IDLE_KEEPING,
}


def without_effect(run: RunConfig, settings: Mapping[str, Setting]) -> list[Effectless]:
    """Every option that somebody gave for nothing, in the order of the option table."""
    usual = _usual(run)
    return [
        Effectless(name, why)
        for name, row in option_table().items()
        if name in settings and _is_given(settings[name], usual[name])
        if (why := _why(run, IDLE.get(name, ())) or row.out_of_reach(run.device.device)) is not None
    ]


def _why(run: RunConfig, idle: tuple[Idle, ...]) -> str | None:
    return next((why for one in idle if (why := one(run)) is not None), None)


def typed(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Those of the command line alone: of a resumed run, what its first part has not told."""
    return {name: one for name, one in settings.items() if one.source == COMMAND_LINE}


def _is_given(setting: Setting, usual: Any) -> bool:
    """Whether a person asked for it here. To switch a thing off that is not there is granted.

    A file may be one that the program wrote, with every value: what is usual was not chosen there.
    An environment variable holds for many runs, and no dialect's unsaid values are anybody's wish.
    """
    if setting.value in (None, ()) or setting.value is False:
        return False
    if setting.source == COMMAND_LINE:
        return True
    return _FILE.search(setting.source) is not None and setting.value != usual


def _usual(run: RunConfig) -> dict[str, Any]:
    """Each value as it is when nobody gives it."""
    defaults = {row.name: row.default for row in option_table().values()}
    return defaults | MODELS[run.network.model].defaults | DATA[run.data.data].defaults


def _stages(run: RunConfig) -> int:
    """The stages asked for, those that will share a device too."""
    splits = len(run.pipeline.pipeline_splits)
    return splits + 1 if splits else run.pipeline.shards or 1


def _is_folded_by_mapping(run: RunConfig) -> bool:
    """Whether sequential stages run as one because one device is named for all of them."""
    wish = run.pipeline
    is_one = wish.shards != 1 and _stages(run) > 1 and len(set(wish.device_mapping)) == 1
    return wish.pipeline_schedule == "sequential" and is_one
