"""What an optimizer keeps for each weight, and what its decay follows from."""

from convoy.config.sections.optimizer import OptimizerConfig
from convoy.errors import ConfigError

# Numbers for each weight beside the velocity, which is kept where there is momentum.
_OF_ITS_OWN = {"sgd": 0, "sgd_combined": 0, "adamw": 2, "rmsprop": 1, "rmsprop_tf": 1, "lars": 0}


def slots_of(wish: OptimizerConfig) -> int:
    """How many numbers of state a weight has."""
    velocity = wish.momentum > 0 and wish.optimizer != "adamw"
    return _OF_ITS_OWN[wish.optimizer] + velocity


def share_of_squares_kept(wish: OptimizerConfig, samples_per_update: int) -> float:
    """By rmsprop, of its mean squares, at each update."""
    exponent = wish.rmsprop_base_decay_exp
    if exponent is None or not wish.optimizer.startswith("rmsprop"):
        return wish.rmsprop_decay
    kept = 1 - float(2.0**exponent) * samples_per_update
    if kept < 0:
        raise ConfigError(
            f"--rmsprop-base-decay-exp {exponent:g} gives a decay of 1 − 2^{exponent:g} × "
            f"{samples_per_update:,} samples per update = {kept:g}, below 0; lower it, or give "
            "--rmsprop-decay"
        )
    return kept
