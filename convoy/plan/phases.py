"""The phases of a run: training, then fine-tuning if asked for; each has a plan of its own."""

from typing import Any

from convoy.config.schema import RunConfig, build_config, flat_values
from convoy.errors import ConfigError
from convoy.plan.plan import RunPlan, plan_run

NAMES = ("training", "fine-tuning")

# What is different in fine-tuning, whatever was asked for: whole images as they are seen in
# validation, plain gradient descent, a cosine from its first update to its last.
_FIXED: dict[str, Any] = {
    "half_res_training": False,
    "augment": False,
    "use_bbox_info": False,
    "mixup_alpha": 0.0,
    "cutmix_lambda_low": 0.0,
    "cutmix_lambda_high": 0.0,
    "updates": None,
    "base_learning_rate_exponent": None,
    "lr_schedule": "cosine",
    "lr_drops": None,
    "lr_scheduler_freq": 0.0,
    "warmup_epoch": 0.0,
    "optimizer": "sgd",
    "momentum": 0.0,
    "initial_loss_scaling": None,  # the ladder was climbed in training
    "pretrained": None,
    "ckpt_epochs_offset": None,
    "weight_avg_strategy": "none",
    "ema_decay": 0.0,
}
# As the user knows them: an error of the second phase must name what can be changed.
_SPELLED = {
    "--micro-batch-size": "--fine-tune-micro-batch-size",
    "--gradient-accumulation": "--fine-tune-gradient-accumulation",
}


def plan_phases(plan: RunPlan) -> tuple[RunPlan, ...]:
    """The phases of a run, of which the first is the plan itself; most runs have no other."""
    if not plan.config.fine_tune.half_res_training:
        return (plan,)
    values = fine_tuning_values(plan.config, plan.loop.updates, plan.loop.epochs)
    config = build_config(flat_values(plan.config) | values)
    try:
        return plan, plan_run(config, plan.loop.samples)
    except ConfigError as error:
        raise ConfigError(f"fine-tuning: {_respelled(str(error))}") from error


def fine_tuning_values(config: RunConfig, updates: int, epochs: float) -> dict[str, Any]:
    """The options whose values are others after a first phase of so many updates and epochs."""
    wish, stop_after = config.fine_tune, config.length.stop_after or 0
    return _FIXED | {
        "micro_batch_size": wish.fine_tune_micro_batch_size,
        "gradient_accumulation": wish.fine_tune_gradient_accumulation,
        "epoch": float(wish.fine_tune_epoch),
        "epochs_before": config.length.epochs_before + epochs,
        # Counted over both phases; a stop at the end of the first has been asked for by then.
        "stop_after": stop_after - updates if stop_after > updates else None,
        "lr": wish.fine_tune_lr,
    }


def _respelled(text: str) -> str:
    for option, own in _SPELLED.items():
        text = text.replace(option, own)
    return text
