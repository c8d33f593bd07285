"""Half-resolution training and fine-tuning: the options and errors of the second phase."""

from typing import Any

import pytest

from convoy.config.resolve import check_rules
from convoy.config.schema import build_config, flatten_config
from convoy.errors import ConfigError
from convoy.models.network import reduced_size
from convoy.planning.plan import RunPlan, plan_phases, plan_run
from convoy.planning.render import phases_as_text, plan_as_json

OPTIONS: dict[str, Any] = {
    "model": "resnet8",
    "epoch": 3.0,
    "half_res_training": True,
    "fine_tune_epoch": 2,
    "fine_tune_lr": 0.125,
    "fine_tune_micro_batch_size": 4,
    "fine_tune_gradient_accumulation": 5,
    "fine_tune_first_trainable_layer": "layer3",
    "weight_avg_strategy": "mean",
}


def first(samples: int | None = None, **values: Any) -> RunPlan:
    return plan_run(build_config(OPTIONS | values), samples)


def second(samples: int | None = None, **values: Any) -> RunPlan:
    _, actual = plan_phases(first(samples, **values))
    return actual


def test_a_run_without_half_res_training_has_one_phase() -> None:
    plan = first(half_res_training=False)

    assert plan_phases(plan) == (plan,)


@pytest.mark.parametrize(
    ("full_size", "reduced"), [(224, 160), (380, 252), (32, 22), (240, 170), (260, 184), (16, 10)]
)
def test_reduced_sizes_match_the_reference_or_are_five_sevenths(
    full_size: int, reduced: int
) -> None:
    assert reduced_size(full_size) == reduced


def test_training_uses_reduced_images_and_validation_full_ones() -> None:
    before, after = first(), second()

    assert (before.network.image_size, before.validation_network.image_size) == (22, 32)
    assert (after.network.image_size, after.validation_network.image_size) == (32, 32)
    assert before.network.layers == before.validation_network.layers
    assert before.network.macs < after.network.macs == before.validation_network.macs


def test_layers_are_frozen_only_in_the_second_phase() -> None:
    assert first().num_frozen == 0
    assert second().network.layers[second().num_frozen].name == "layer3/0/conv1"


def test_the_second_phase_is_plain_sgd_with_the_fine_tune_options() -> None:
    values = {
        "lr": None,
        "base_learning_rate_exponent": -5.0,
        "lr_schedule": "step",
        "lr_epoch_decay": (1.0, 2.0),
        "warmup_epoch": 1.0,
        "momentum": 0.875,
        "mixup_alpha": 0.2,
        "cutmix_lambda_low": 0.5,
        "cutmix_lambda_high": 0.5,
        "ckpt_epochs_offset": 2,
        "epoch": None,
        "updates": 625,
    }
    plan = second(**values)
    loop, rates, config = plan.loop, plan.loop.learning_rate, plan.config

    assert (loop.updates, loop.samples_per_update, loop.epochs, loop.averages_checkpoints) == (
        800,
        20,
        2,
        False,
    )
    assert (rates.rate(0), rates.rate(400), rates.rate(799) < 1e-5) == (0.125, 0.0625, True)
    assert (config.optimizer.optimizer, config.optimizer.momentum) == ("sgd", 0.0)
    assert (config.mixing.mixup_alpha, config.mixing.cutmix_lambda_high) == (0.0, 0.0)
    assert not config.data.augment
    assert loop.checkpoints.is_due(400) and loop.checkpoints.is_due(800)
    assert check_rules(config) == []


def test_other_options_are_the_same_in_both_phases() -> None:
    options = {"label_smoothing": 0.1, "weight_decay": 0.01, "seed": 4, "stable_norm": True}
    before, after = (flatten_config(item.config) for item in (first(**options), second(**options)))
    changed = {name for name in before if before[name] != after[name]}

    assert changed == {
        *("augment", "half_res_training", "lr", "micro_batch_size", "gradient_accumulation"),
        *("epoch", "epochs_before", "momentum", "weight_avg_strategy"),
    }


def test_the_ema_is_off_in_the_second_phase() -> None:
    options = {"ema_decay": 0.9}

    assert first(**options).config.average.ema_decay == 0.9
    assert second(**options).config.average.ema_decay == 0


def test_epochs_are_counted_over_both_phases() -> None:
    plan = second(epochs_before=1.5)

    assert (plan.loop.epochs_before, plan.loop.first_epoch) == (4.5, 5)
    assert plan.loop.epoch_after(plan.loop.updates) == 6.5


@pytest.mark.parametrize(
    ("stop_after", "remaining"), [(None, None), (749, None), (750, None), (751, 1)]
)
def test_a_stop_is_counted_over_both_phases(stop_after: int | None, remaining: int | None) -> None:
    assert second(stop_after=stop_after).loop.stop_after == remaining


def test_the_number_of_samples_is_the_same_in_both_phases() -> None:
    assert second(samples=200).loop.updates == 20


def test_an_error_of_the_second_phase_names_the_fine_tune_options() -> None:
    with pytest.raises(ConfigError) as refused:
        second(fine_tune_micro_batch_size=9000)

    message = str(refused.value)
    assert message.startswith("fine-tuning: one update needs 45000 samples (micro-batch size 9000")
    assert "× 1 replica)" in message and "has 8000;" in message
    assert "--fine-tune-micro-batch-size, --fine-tune-gradient-accumulation or" in message


def test_an_unknown_first_trainable_layer_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"^fine-tuning: .*'layer9' is not a layer of this model"):
        second(fine_tune_first_trainable_layer="layer9")


def test_too_small_images_are_refused_with_the_minimum_size() -> None:
    options = {"model": "resnet18", "data": "generated", "norm_num_groups": 32}
    with pytest.raises(ConfigError) as refused:
        first(**options, image_size=20)

    assert str(refused.value).startswith("--image-size 20 is too small: --half-res-training ")
    assert "14" in str(refused.value)
    assert str(refused.value).endswith("; it must be at least 26")
    assert first(**options, image_size=26).network.image_size == 18


def test_the_plan_shows_both_phases() -> None:
    lines = phases_as_text(first(), 100)
    boundary = lines.index("then fine-tuning, starting from the averaged weights")

    assert lines[0].endswith("per 22 × 22 image, validation on 32 × 32")
    assert lines[boundary + 1].endswith("per 32 × 32 image")
    assert lines[boundary + 4] == (
        "length         2 epochs × 400 updates = 800 updates, 16,000 images, after 3 epochs"
    )
    assert not any(line.startswith("frozen") for line in lines[:boundary])
    assert any(line.startswith("frozen         18 layers") for line in lines[boundary:])


def test_the_json_has_a_list_of_phases() -> None:
    single = plan_as_json(first(half_res_training=False), {})["phases"]
    training, tuning = plan_as_json(first(), {})["phases"]

    assert [phase["name"] for phase in single] == ["training"]
    assert (training["name"], tuning["name"]) == ("training", "fine-tuning")
    assert [phase["network"]["image_size"] for phase in (training, tuning)] == [22, 32]
    assert tuning["batch"]["samples_per_update"] == 20
    assert (tuning["updates"]["total"], tuning["updates"]["epochs_before"]) == (800, 3.0)
    assert tuning["learning_rate"]["base"] == 0.125
    assert (training["frozen"]["layers"], tuning["frozen"]["first_trained"]) == (
        0,
        "layer3/0/conv1",
    )
    assert len(tuning["memory"]) == 1
