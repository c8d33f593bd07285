"""Options of mixup and cutmix that can do nothing in a configuration, and why."""

from convoy.config.effects_keeping import Idle
from convoy.config.schema import RunConfig


def the_data_is_one_micro_batch(run: RunConfig) -> str | None:
    resident = run.data.data == "synthetic" and run.mixing.mixes
    return "with --data synthetic: its one micro-batch stays as it is" if resident else None


def the_version_takes_the_lower_bound(run: RunConfig) -> str | None:
    """Without a lower bound the upper one still says that there is cutmix."""
    wish = run.mixing
    above = 0 < wish.cutmix_lambda_low < wish.cutmix_lambda_high
    if wish.cutmix_version is None or not above:
        return None
    return f"with --cutmix-version {wish.cutmix_version}: it takes the lower bound"


def nothing_is_cut(run: RunConfig) -> str | None:
    return None if run.mixing.cuts else "without --cutmix-lambda-high"


def nothing_is_mixed(run: RunConfig) -> str | None:
    return None if run.mixing.mixes else "without --mixup-alpha or --cutmix-lambda-high"


# In the order of the option table. The first reason that holds is told. The lower bound of cutmix
# never stands alone: what is told of the upper one holds for both.
IDLE_MIXING: dict[str, tuple[Idle, ...]] = {
    "mixup_alpha": (the_data_is_one_micro_batch,),
    "cutmix_lambda_high": (the_data_is_one_micro_batch, the_version_takes_the_lower_bound),
    "cutmix_version": (the_data_is_one_micro_batch, nothing_is_cut),
    "cutmix_disable_prob": (the_data_is_one_micro_batch, nothing_is_cut),
    "hostside_image_mixing": (the_data_is_one_micro_batch, nothing_is_mixed),
}
