"""The planned optimizer state: slots of the update rules, and their bytes."""

from dataclasses import replace

import pytest

from convoy.config.schema import build_config
from convoy.config.sections.training import OptimizerConfig, no_optimizer_state
from convoy.errors import ConfigError
from convoy.optim.update_rules import make_update_rule
from convoy.planning.parameters import num_state_slots, rmsprop_smoothing
from convoy.planning.plan import plan_run

OPTIMIZERS = ("sgd", "sgd_combined", "adamw", "rmsprop", "rmsprop_tf", "lars")


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_planned_state_slots_match_the_update_rule(optimizer: str, momentum: float) -> None:
    config = build_config({"optimizer": optimizer, "momentum": momentum})
    slots = len(make_update_rule(config.optimizer, 64).slots)

    assert num_state_slots(config.optimizer) == slots
    assert (no_optimizer_state(config) is not None) == (slots == 0)


def test_the_memory_of_a_stage_follows_the_slots_and_their_bytes() -> None:
    options = {"model": "resnet8", "optimizer": "rmsprop", "optimizer_state_dtype": "float16"}
    (stage,) = plan_run(build_config(options)).memory

    assert stage.optimizer_state == 2 * 2 * 75_290


def test_the_rmsprop_decay_depends_on_the_samples_of_an_update() -> None:
    config = OptimizerConfig(optimizer="rmsprop_tf", rmsprop_base_decay_exp=-14.0)

    assert rmsprop_smoothing(config, 4096) == 0.75
    assert rmsprop_smoothing(config, 16384) == 0.0
    assert rmsprop_smoothing(replace(config, optimizer="sgd"), 1 << 20) == 0.99


def test_a_negative_rmsprop_decay_is_refused_by_the_plan() -> None:
    options = {"optimizer": "rmsprop", "rmsprop_base_decay_exp": -5.0}
    batch = {"micro_batch_size": 16, "gradient_accumulation": 2, "replicas": 2}

    with pytest.raises(ConfigError, match="64 samples per update = -1, below 0; lower it"):
        plan_run(build_config(options | batch))
