"""What an optimizer keeps, as planned: the slots of the live rules, and their bytes."""

from dataclasses import replace

import pytest

from convoy.config.schema import build_config
from convoy.config.sections.optimizer import OptimizerConfig, no_optimizer_state
from convoy.errors import ConfigError
from convoy.optim.update_rules import make_update_rule
from convoy.plan.parameters import share_of_squares_kept, slots_of
from convoy.plan.plan import plan_run

OPTIMIZERS = ("sgd", "sgd_combined", "adamw", "rmsprop", "rmsprop_tf", "lars")


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_as_many_slots_are_planned_as_the_live_rule_has(optimizer: str, momentum: float) -> None:
    run = build_config({"optimizer": optimizer, "momentum": momentum})
    slots = len(make_update_rule(run.optimizer, 64).slots)

    assert slots_of(run.optimizer) == slots
    assert (no_optimizer_state(run) is not None) == (slots == 0)


def test_the_memory_of_a_stage_follows_the_slots_and_their_bytes() -> None:
    asked = {"model": "resnet8", "optimizer": "rmsprop", "optimizer_state_dtype": "float16"}
    (stage,) = plan_run(build_config(asked)).memory

    assert stage.optimizer_state == 2 * 2 * 75_290


def test_the_decay_of_squares_follows_all_samples_of_an_update() -> None:
    wish = OptimizerConfig(optimizer="rmsprop_tf", rmsprop_base_decay_exp=-14.0)

    assert share_of_squares_kept(wish, 4096) == 0.75
    assert share_of_squares_kept(wish, 16384) == 0.0
    assert share_of_squares_kept(replace(wish, optimizer="sgd"), 1 << 20) == 0.99


def test_a_decay_below_zero_is_heard_before_there_are_layers() -> None:
    asked = {"optimizer": "rmsprop", "rmsprop_base_decay_exp": -5.0}
    batch = {"micro_batch_size": 16, "gradient_accumulation": 2, "replicas": 2}

    with pytest.raises(ConfigError, match="64 samples per update = -1, below 0; lower it"):
        plan_run(build_config(asked | batch))
