"""Options without an effect are reported, and changing them changes nothing."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from support.inactive_option_cases import (
    ACTIVE_CASES,
    ACTIVE_OPTIMIZER_CASES,
    ACTIVE_PRECISION_CASES,
    INACTIVE_CASES,
    SINGLE_DEVICE,
    STEP,
)
from support.sweeps import sweep

from convoy.config.option import Support
from convoy.config.resolve import InactiveOption, explicit_settings, inactive_options, resolve
from convoy.config.schema import (
    RequestedOptions,
    Setting,
    build_config,
    option_table,
    settings_from,
)
from convoy.config.sections.data import AUGMENTED_DATA, ENCODED_DATA
from convoy.data.augment import AUGMENTATIONS
from convoy.models.network import plan_network
from convoy.planning.learning_rate import LearningRatePlan
from convoy.planning.plan import plan_run


def inactive_reasons(source: str = "command line", **values: Any) -> list[str]:
    """The reasons that a run with these values reports."""
    resolved = resolve(RequestedOptions(settings_from(source, values), environment={}))
    return [option.reason for option in inactive_options(resolved.config, resolved.settings)]


@sweep(("values", "flag", "reason"), INACTIVE_CASES)
def test_an_option_without_an_effect_is_reported_in_one_line(
    values: dict[str, Any], flag: str, reason: str
) -> None:
    (line,) = inactive_reasons(**values)

    assert line.startswith(f"{flag} has no effect {reason}")
    assert "\n" not in line


@sweep(
    "values",
    [
        {},
        {"norm_num_groups": 8, "norm_type": "group", "norm_eps": 1e-3},
        {"batchnorm_momentum": 0.2, "norm_eps": 1e-3},
        {"model": "resnet50", "zero_init_last_norm": True, "resnet_version": "v1"},
        {"data": "cifar10", "data_dir": "DATA", "augment": True},
        {"dataloader_worker": 2, "prefetch_depth": 2, "normalization_location": "device"},
        {"dataloader_worker": 1, "prefetch_depth": 9},
        {"data": "generated", "validation_mode": "none", "dataloader_worker": 2},
        # The validation images come from the host.
        {"data": "synthetic", "dataloader_worker": 2, "prefetch_depth": 4},
        {"mixup_alpha": 0.2, "hostside_image_mixing": True, "eight_bit_io": True},
        {"cutmix_lambda_low": 0.5, "cutmix_lambda_high": 0.5, "cutmix_version": 1},
        {"cutmix_lambda_high": 0.5, "cutmix_version": 2, "cutmix_disable_prob": 0.5},
        {"mixup_alpha": 0.0, "data": "synthetic"},
        # CutMix also works on bytes.
        {
            "cutmix_lambda_high": 0.5,
            "hostside_image_mixing": True,
            "eight_bit_io": True,
            "validation_mode": "none",
        },
        {"lr_decay": 0.1, "lr_schedule": "exponential", "lr_scheduler_freq": 1.0},
        {"lr_decay": 0.1, "lr_scheduler_freq": 0.3, **STEP},
        {"lr_scheduler_freq": 0.0, **STEP},
        {"lr_scheduler_freq": 1.0, "warmup_epoch": 1.0},
        {
            "lr_schedule": "polynomial",
            "poly_lr_decay_power": 3.0,
            "poly_lr_end_ratio": 0.1,
            "lr_scheduler_freq": 1.0,
        },
        {
            "half_res_training": True,
            "fine_tune_epoch": 1,
            "fine_tune_lr": 0.5,
            "fine_tune_micro_batch_size": 2,
            "fine_tune_gradient_accumulation": 2,
            "fine_tune_first_trainable_layer": "fc",
            "weight_avg_strategy": "mean",
        },
        {"fine_tune_first_trainable_layer": "fc", "epochs_before": 2.0},
        {"label_smoothing": 0.1, "label_smoothing_over": "others"},
        {"shards": 2, "pipeline_schedule": "grouped", "device_mapping": (1, 0)},
        {"pipeline_splits": ("layer2",), "pipeline_schedule": "grouped"},
        {**SINGLE_DEVICE, "shards": 1},
        {**SINGLE_DEVICE, "shards": 1, "device_mapping": (1, 1)},
        {**SINGLE_DEVICE, "device_mapping": (1, 1), "device": "cpu"},
        {**SINGLE_DEVICE, "enable_recompute": False},
        {"offload_optimizer": True},
        {
            "replicas": 2,
            "reduction": "fast",
            "overlap_reduction": True,
            "max_cross_replica_buffer_size": 4096,
            "enable_optimizer_rts": True,
        },
        {"select_devices": (1,)},
        {"select_devices": (1,), "device": "cuda"},
        {"keep_last": 3, "on_save_error": "continue", "ckpt_epochs_offset": 2},
        {"keep_last": 3, "on_save_error": "continue", "ckpts_per_epoch": 0, "epochs_per_ckpt": 2},
        {"weight_avg_strategy": "mean", "weight_avg_n": 3, "keep_last": 3},
        {"weight_avg_strategy": "exponential", "weight_avg_exp_decay": 0.5, "weight_avg_n": 3},
        {"weight_avg_strategy": "mean", "norm_statistics": "keep", "epochs_per_ckpt": 2},
        {"weight_avg_strategy": "none", "ckpts_per_epoch": 0},
        {"ema_decay": 0.9, "ckpts_per_epoch": 0},
        {"ema_decay": 0.9, "validation_mode": "none"},
        {"ema_decay": 0.0, "validation_mode": "none"},
        {"validation_frequency": 2, "validation_mode": "during", "valid_batch_size": 9},
        {"random_weights": False, "latency": False},
        {"log_dir": "here", "name_suffix": "b", "name": "a"},
        {"checkpoint_output_path": "there"},
        {"hosts": 1, "instances": 1, "replicas": 1, "bn_span": 1, "shards": 1},
        *ACTIVE_CASES,
        *ACTIVE_OPTIMIZER_CASES,
        *ACTIVE_PRECISION_CASES,
    ],
)
def test_an_option_with_an_effect_is_not_reported(values: dict[str, Any]) -> None:
    assert inactive_reasons(**values) == []


def test_every_option_that_can_be_inactive_has_a_case() -> None:
    may_be_inactive = {
        row.shown_flag
        for row in option_table().values()
        if row.inactive_when or row.support is not Support.EVERYWHERE
    }

    assert {flag for _, flag, _ in INACTIVE_CASES} == may_be_inactive


def test_without_checkpoints_no_averaging_option_has_an_effect() -> None:
    values = {"weight_avg_strategy": "mean", "weight_avg_n": 2, "norm_statistics": "keep"}

    assert [line.split()[0] for line in inactive_reasons(**values, ckpts_per_epoch=0)] == [
        *("--weight-avg-strategy", "--weight-avg-n", "--norm-statistics"),
    ]


def test_every_option_is_reported_once() -> None:
    values = {"reduction": "fast", "augment": True, "enable_optimizer_rts": True, "momentum": 0.0}

    assert [line.split()[0] for line in inactive_reasons(**values)] == [
        *("--augment", "--enable-optimizer-rts", "--reduction"),
    ]


def test_a_mapping_does_not_merge_a_single_stage() -> None:
    values = {"pipeline_schedule": "sequential", "device_mapping": (0,), "device": "cpu"}

    assert inactive_reasons(**values) == [
        "--pipeline-schedule has no effect with one stage",
        "--device-mapping has no effect with --device cpu",
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"augment": False},
        {"zero_init_last_norm": False},
        {"enable_optimizer_rts": False},
        {"offload_optimizer": False, "momentum": 0.0},
        {"device_mapping": (), "lr_epoch_decay": (), "data_dir": None},
    ],
)
def test_turning_an_option_off_is_not_reported(values: dict[str, Any]) -> None:
    assert inactive_reasons(**values) == []


def test_a_typed_value_is_reported_even_if_it_is_the_default() -> None:
    assert inactive_reasons(lr_decay=0.5) == ["--lr-decay has no effect with --lr-schedule cosine"]


def test_a_value_from_a_file_is_reported_in_the_same_way() -> None:
    assert inactive_reasons("mine.yaml, line 3", lr_decay=0.3) == inactive_reasons(lr_decay=0.3)
    assert inactive_reasons("config mine, line 3", lr_decay=0.3) == inactive_reasons(lr_decay=0.3)


@pytest.mark.parametrize(
    "source", ["default", "model resnet14", "data shapes", "convoy prove", "environment DATA_DIR"]
)
def test_a_value_that_the_user_did_not_set_is_not_reported(source: str) -> None:
    assert inactive_reasons(source, lr_decay=0.3, data_dir="DATA") == []


def test_a_file_with_all_defaults_reports_nothing() -> None:
    # These include the defaults of the model.
    defaults = resolve(RequestedOptions(environment={})).settings
    values = {name: setting.value for name, setting in defaults.items()}

    assert values["norm_num_groups"] != option_table()["norm_num_groups"].default
    assert inactive_reasons("runs/a/config.yaml, line 9", **values) == []


def test_a_resumed_run_reports_only_its_command_line() -> None:
    settings = {
        "lr_decay": Setting(0.3, "runs/a/config.yaml, line 9"),
        "prefetch_depth": Setting(9, "command line"),
        "reduction": Setting("exact", "default"),
    }
    config = build_config({"lr_decay": 0.3, "prefetch_depth": 9, "dataloader_worker": 0})

    assert explicit_settings(settings) == {"prefetch_depth": Setting(9, "command line")}
    assert [inactive.option for inactive in inactive_options(config, settings)] == [
        *("prefetch_depth", "lr_decay"),
    ]
    (inactive,) = inactive_options(config, explicit_settings(settings))
    assert inactive.option == "prefetch_depth"


def test_the_reason_contains_flag_and_condition() -> None:
    inactive = InactiveOption("lr_epoch_decay", "--lr-epoch-decay", "with --lr-schedule cosine")

    assert inactive.reason == "--lr-epoch-decay has no effect with --lr-schedule cosine"


def test_augmented_datasets_are_those_that_the_loader_augments() -> None:
    assert set(AUGMENTED_DATA) == AUGMENTATIONS.keys() | {ENCODED_DATA}


# A plan contains these for every norm type, but only one type uses them.
_NORM_SPECIFIC = {"norm_num_groups", "batchnorm_momentum", "enable_fast_groupnorm"}
_NETWORK = {
    row.flag
    for row in option_table().values()
    if row.section in ("network", "family") and row.name not in _NORM_SPECIFIC
}
NETWORK_CASES = [(values, flag) for values, flag, _ in INACTIVE_CASES if flag in _NETWORK]


@sweep(("values", "flag"), NETWORK_CASES)
def test_an_inactive_option_does_not_change_the_network(values: dict[str, Any], flag: str) -> None:
    name = flag[2:].replace("-", "_")
    row, value = option_table()[name], values[name]
    other = not value if row.value_type.base is bool else row.default
    plans = [plan_network(build_config(variant)) for variant in (values, values | {name: other})]

    assert value != other
    assert plans[0] == plans[1]


EPOCHS = [(), (1.0,), (0.5, 2.0), (0.3,), (1.5, 2.25), (2.0, 4.0)]


@sweep(
    ("epochs", "frequency", "updates_per_epoch"),
    product(EPOCHS, [0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 10.0], [3, 10]),
)
def test_an_inactive_scheduler_frequency_does_not_change_the_learning_rate(
    epochs: tuple[float, ...], frequency: float, updates_per_epoch: int
) -> None:
    values = {"lr_schedule": "step", "lr_epoch_decay": epochs, "lr_scheduler_freq": frequency}
    config = build_config(values).learning_rate
    every_update = replace(config, lr_scheduler_freq=0.0)
    rates = [
        [LearningRatePlan(variant, updates_per_epoch, 60).rate(update) for update in range(60)]
        for variant in (config, every_update)
    ]

    assert rates[0] == rates[1] or inactive_reasons(**values) == []


RATE_CASES = [values for values, flag, _ in INACTIVE_CASES if flag.startswith(("--lr-", "--poly-"))]


@sweep("values", RATE_CASES)
def test_an_inactive_option_does_not_change_the_learning_rate(values: dict[str, Any]) -> None:
    config = build_config(values)
    (inactive,) = inactive_options(config, settings_from("command line", values))
    default = values | {inactive.option: option_table()[inactive.option].default}
    rates = [
        [LearningRatePlan(variant, 10, 50).rate(update) for update in range(50)]
        for variant in (config.learning_rate, build_config(default).learning_rate)
    ]

    assert rates[0] == rates[1]


@pytest.mark.parametrize("schedule", ["grouped", "interleaved", "sequential"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_one_stage_is_the_same_with_every_schedule(schedule: str, accumulation: int) -> None:
    values = {"gradient_accumulation": accumulation, "pipeline_schedule": schedule}
    plan = plan_run(build_config(values))
    default = plan_run(build_config({"gradient_accumulation": accumulation}))

    assert plan.memory == default.memory
    assert plan.schedule.actions(0, 1, accumulation) == default.schedule.actions(0, 1, accumulation)


@pytest.mark.parametrize(
    "values",
    [
        SINGLE_DEVICE,
        {**SINGLE_DEVICE, "shards": 1},
        {**SINGLE_DEVICE, "device_mapping": (1, 1)},
        {**SINGLE_DEVICE, "device_mapping": (0, 1)},
        {**SINGLE_DEVICE, "device_mapping": (1, 1), "pipeline_schedule": "grouped"},
    ],
)
def test_splits_are_inactive_if_the_plan_merges_the_stages(values: dict[str, Any]) -> None:
    values = {**values, "gradient_accumulation": 4, "enable_recompute": False}
    lines = [line for line in inactive_reasons(**values) if line.startswith("--pipeline-splits")]

    assert bool(lines) == bool(plan_run(build_config(values)).folded_stages)
