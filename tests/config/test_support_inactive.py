"""Options given in vain: who is told, of what, and that what is told is true."""

from dataclasses import replace
from typing import Any

import pytest
from effect_cases import FOLDED, IN_VAIN, NUMBERS_WITH_EFFECT, OF_USE, STEP, WITH_EFFECT

from convoy.config.catalog import AUGMENTED, DATA, ENCODED
from convoy.config.option import Support
from convoy.config.resolve import RequestedOptions, resolve
from convoy.config.schema import build_config, option_table
from convoy.config.settings import Setting, from_source
from convoy.config.support import (
    InactiveOption,
    inactive_options,
    typed,
)
from convoy.data.augment import BY_DATA, NONE
from convoy.models.network import plan_network
from convoy.plan.learning_rate import LearningRatePlan
from convoy.plan.plan import plan_run


def told(source: str = "command line", **values: Any) -> list[str]:
    """What a run hears that is asked for these values."""
    resolved = resolve(RequestedOptions(from_source(source, values), environment={}))
    return [one.reason for one in inactive_options(resolved.config, resolved.settings)]


@pytest.mark.parametrize(("values", "flag", "why"), IN_VAIN)
def test_what_is_given_in_vain_is_told_in_one_line(
    values: dict[str, Any], flag: str, why: str
) -> None:
    (line,) = told(**values)

    assert line.startswith(f"{flag} has no effect {why}")
    assert "\n" not in line


@pytest.mark.parametrize(
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
        # The images of its validation come from the host.
        {"data": "synthetic", "dataloader_worker": 2, "prefetch_depth": 4},
        {"mixup_alpha": 0.2, "hostside_image_mixing": True, "eight_bit_io": True},
        {"cutmix_lambda_low": 0.5, "cutmix_lambda_high": 0.5, "cutmix_version": 1},
        {"cutmix_lambda_high": 0.5, "cutmix_version": 2, "cutmix_disable_prob": 0.5},
        {"mixup_alpha": 0.0, "data": "synthetic"},
        # A box is cut from bytes as well.
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
        {**FOLDED, "shards": 1},
        {**FOLDED, "shards": 1, "device_mapping": (1, 1)},
        {**FOLDED, "device_mapping": (1, 1), "device": "cpu"},
        {**FOLDED, "enable_recompute": False},
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
        *OF_USE,
        *WITH_EFFECT,
        *NUMBERS_WITH_EFFECT,
    ],
)
def test_what_has_an_effect_is_not_told(values: dict[str, Any]) -> None:
    assert told(**values) == []


def test_every_option_of_the_table_is_tried_here() -> None:
    """One that may have no effect, on this device or beside other options, has a case."""
    may_be_idle = {
        row.flag
        for row in option_table().values()
        if row.declared.idle or row.declared.support is not Support.HERE
    }

    assert {flag for _, flag, _ in IN_VAIN} == may_be_idle


def test_without_checkpoints_nothing_of_an_average_has_an_effect() -> None:
    values = {"weight_avg_strategy": "mean", "weight_avg_n": 2, "norm_statistics": "keep"}

    assert [line.split()[0] for line in told(**values, ckpts_per_epoch=0)] == [
        *("--weight-avg-strategy", "--weight-avg-n", "--norm-statistics"),
    ]


def test_every_option_is_named_once() -> None:
    values = {"reduction": "fast", "augment": True, "enable_optimizer_rts": True, "momentum": 0.0}

    assert [line.split()[0] for line in told(**values)] == [
        *("--augment", "--enable-optimizer-rts", "--reduction"),
    ]


def test_one_stage_is_not_folded_by_its_mapping() -> None:
    values = {"pipeline_schedule": "sequential", "device_mapping": (0,), "device": "cpu"}

    assert told(**values) == [
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
def test_to_do_without_what_is_not_there_is_granted(values: dict[str, Any]) -> None:
    assert told(**values) == []


def test_a_typed_value_is_told_even_if_it_is_the_usual_one() -> None:
    assert told(lr_decay=0.5) == ["--lr-decay has no effect with --lr-schedule cosine"]


def test_a_value_of_a_file_is_told_with_the_same_words() -> None:
    assert told("mine.yaml, line 3", lr_decay=0.3) == told(lr_decay=0.3)
    assert told("config mine, line 3", lr_decay=0.3) == told(lr_decay=0.3)


@pytest.mark.parametrize(
    "source", ["default", "model resnet14", "data shapes", "convoy prove", "environment DATA_DIR"]
)
def test_what_nobody_gave_here_is_not_told(source: str) -> None:
    assert told(source, lr_decay=0.3, data_dir="DATA") == []


def test_a_file_with_every_usual_value_tells_nothing() -> None:
    usual = resolve(RequestedOptions(environment={})).settings  # what the model brings, too
    values = {name: one.value for name, one in usual.items()}

    assert values["norm_num_groups"] != option_table()["norm_num_groups"].default
    assert told("runs/a/config.yaml, line 9", **values) == []


def test_only_what_was_typed_is_left_for_a_run_that_goes_on() -> None:
    settings = {
        "lr_decay": Setting(0.3, "runs/a/config.yaml, line 9"),
        "prefetch_depth": Setting(9, "command line"),
        "reduction": Setting("exact", "default"),
    }
    config = build_config({"lr_decay": 0.3, "prefetch_depth": 9, "dataloader_worker": 0})

    assert typed(settings) == {"prefetch_depth": Setting(9, "command line")}
    assert [one.option for one in inactive_options(config, settings)] == [
        *("prefetch_depth", "lr_decay"),
    ]
    assert [one.option for one in inactive_options(config, typed(settings))] == ["prefetch_depth"]


def test_the_sentence_holds_the_flag_and_the_reason() -> None:
    one = InactiveOption("lr_epoch_decay", "with --lr-schedule cosine")

    assert one.flag == "--lr-epoch-decay"
    assert one.reason == "--lr-epoch-decay has no effect with --lr-schedule cosine"


def test_data_sets_with_crops_and_flips_are_those_that_the_loader_changes() -> None:
    changed = {name for name in DATA if name in BY_DATA and BY_DATA[name] != NONE}

    assert set(AUGMENTED) == changed | {ENCODED}


# A plan says these of a norm of either kind; only one kind looks at them.
_OF_ONE_KIND = {"norm_num_groups", "batchnorm_momentum", "enable_fast_groupnorm"}
_NETWORK = {
    row.flag
    for row in option_table().values()
    if row.section in ("network", "family") and row.name not in _OF_ONE_KIND
}
OF_NETWORKS = [(values, flag) for values, flag, _ in IN_VAIN if flag in _NETWORK]


@pytest.mark.parametrize(("values", "flag"), OF_NETWORKS)
def test_a_network_is_the_same_whatever_the_option_says(values: dict[str, Any], flag: str) -> None:
    option = flag[2:].replace("-", "_")
    row, spoken = option_table()[option], values[option]
    other = not spoken if row.kind.base is bool else row.default
    plans = [plan_network(build_config(one)) for one in (values, values | {option: other})]

    assert spoken != other
    assert plans[0] == plans[1]


EPOCHS = [(), (1.0,), (0.5, 2.0), (0.3,), (1.5, 2.25), (2.0, 4.0)]


@pytest.mark.parametrize("epochs", EPOCHS)
@pytest.mark.parametrize("often", [0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 10.0])
@pytest.mark.parametrize("updates_per_epoch", [3, 10])
def test_the_rate_is_the_same_when_its_frequency_is_said_to_do_nothing(
    epochs: tuple[float, ...], often: float, updates_per_epoch: int
) -> None:
    values = {"lr_schedule": "step", "lr_epoch_decay": epochs, "lr_scheduler_freq": often}
    config = build_config(values).learning_rate
    at_every_update = replace(config, lr_scheduler_freq=0.0)
    rates = [
        [LearningRatePlan(one, updates_per_epoch, 60).rate(update) for update in range(60)]
        for one in (config, at_every_update)
    ]

    assert rates[0] == rates[1] or told(**values) == []


OF_RATES = [values for values, flag, _ in IN_VAIN if flag.startswith(("--lr-", "--poly-"))]


@pytest.mark.parametrize("values", OF_RATES)
def test_the_rate_is_the_same_without_what_is_given_in_vain(values: dict[str, Any]) -> None:
    config = build_config(values)
    (one,) = inactive_options(config, from_source("command line", values))
    usual = values | {one.option: option_table()[one.option].default}
    rates = [
        [LearningRatePlan(wish, 10, 50).rate(update) for update in range(50)]
        for wish in (config.learning_rate, build_config(usual).learning_rate)
    ]

    assert rates[0] == rates[1]


@pytest.mark.parametrize("schedule", ["grouped", "interleaved", "sequential"])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_one_stage_works_alike_under_every_schedule(schedule: str, accumulation: int) -> None:
    values = {"gradient_accumulation": accumulation, "pipeline_schedule": schedule}
    plan = plan_run(build_config(values))
    usual = plan_run(build_config({"gradient_accumulation": accumulation}))

    assert plan.memory == usual.memory
    assert plan.schedule.actions(0, 1, accumulation) == usual.schedule.actions(0, 1, accumulation)


@pytest.mark.parametrize(
    "values",
    [
        FOLDED,
        {**FOLDED, "shards": 1},
        {**FOLDED, "device_mapping": (1, 1)},
        {**FOLDED, "device_mapping": (0, 1)},
        {**FOLDED, "device_mapping": (1, 1), "pipeline_schedule": "grouped"},
    ],
)
def test_stages_are_counted_as_the_plan_folds_them(values: dict[str, Any]) -> None:
    wish = {**values, "gradient_accumulation": 4, "enable_recompute": False}
    said = [line for line in told(**wish) if line.startswith("--pipeline-splits")]

    assert bool(said) == bool(plan_run(build_config(wish)).folded_stages)
