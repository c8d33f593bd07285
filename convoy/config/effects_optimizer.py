"""Options of the optimizer that can do nothing in a configuration, and why."""

from convoy.config.effects_keeping import Idle
from convoy.config.schema import RunConfig

_OF_MOMENTUM_ALONE = ("sgd", "sgd_combined", "lars")  # the velocity is all that these keep


def the_optimizer_is_none_of(*optimizers: str) -> Idle:
    def idle(run: RunConfig) -> str | None:
        rule = run.optimizer.optimizer
        return None if rule in optimizers else f"with --optimizer {rule}"

    return idle


def the_optimizer_has_means_instead(run: RunConfig) -> str | None:
    return "with --optimizer adamw" if run.optimizer.optimizer == "adamw" else None


def nothing_decays(run: RunConfig) -> str | None:
    return "with --weight-decay 0" if run.optimizer.weight_decay == 0 else None


def lars_decays_what_it_scales(run: RunConfig) -> str | None:
    wish = run.optimizer
    if wish.optimizer != "lars" or wish.lars_weight_decay is not None:
        return None
    return "with --optimizer lars without --lars-weight-decay: --lars-skip-list says it"


def there_is_no_velocity(run: RunConfig) -> str | None:
    return "with --momentum 0: there is no velocity" if run.optimizer.momentum == 0 else None


def the_optimizer_has_no_state(run: RunConfig) -> str | None:
    wish = run.optimizer
    empty = wish.optimizer in _OF_MOMENTUM_ALONE and wish.momentum == 0
    return "with --momentum 0: there is no state" if empty else None


def nothing_lies_beside_the_weights(run: RunConfig) -> str | None:
    """Neither state, nor the true weights of such as are used in fewer bits."""
    wish = run.precision
    forced = wish.offload_fp32_weight_copy or wish.force_weight_to_fp32
    copied = wish.precision == "16.32" or (wish.precision == "16.16" and forced)
    return None if copied else the_optimizer_has_no_state(run)


def there_is_one_micro_batch(run: RunConfig) -> str | None:
    """One gradient is its own mean and sum, unless a second phase has more."""
    wish, later = run.batch, run.fine_tune
    more = later.half_res_training and later.fine_tune_gradient_accumulation > 1
    is_one = wish.gradient_accumulation * wish.replicas == 1 and not more
    return "with one micro-batch in an update" if is_one else None


_RMSPROP = the_optimizer_is_none_of("rmsprop", "rmsprop_tf")
_LARS = the_optimizer_is_none_of("lars")

# In the order of the option table. The first reason that holds is told.
IDLE_OPTIMIZER: dict[str, tuple[Idle, ...]] = {
    "momentum": (the_optimizer_has_means_instead,),
    "weight_decay_spares": (nothing_decays, lars_decays_what_it_scales),
    "rmsprop_decay": (_RMSPROP,),
    "rmsprop_base_decay_exp": (_RMSPROP,),
    "optimizer_eps": (the_optimizer_is_none_of("adamw", "rmsprop", "rmsprop_tf"),),
    "lars_epsilon": (_LARS,),
    "lars_eeta": (_LARS,),
    "lars_weight_decay": (_LARS,),
    "lars_skip_list": (_LARS,),
    "loss_velocity_scaling_ratio": (
        the_optimizer_is_none_of("sgd_combined"),
        there_is_no_velocity,
    ),
    "optimizer_state_dtype": (the_optimizer_has_no_state,),
    "gradient_mean_reduce_re": (there_is_one_micro_batch,),
}
