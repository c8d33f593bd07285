"""The PopART program (`resnet_main.py`) and its synthetic benchmark."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from convoy.config.flags import Combiner, Dialect, Flag, Translation, choice_parser, lower_case
from convoy.config.option import OptionTypeError, ValueType
from convoy.config.schema import Setting

NAME = "popart"
RESNET_DEPTHS = ("8", "14", "18", "20", "32", "34", "44", "50", "56", "101", "110", "152")
_MODELS = {**{depth: f"resnet{depth}" for depth in RESNET_DEPTHS}, "x50": "resnext50"}
_MODES = ("train", "eval", "infer")
DATASETS = {"IMAGENET": "imagenet", "CIFAR-10": "cifar10"}
DEFAULT_BATCH_SIZE, DEFAULT_LR_EXPONENT, DEFAULT_BATCHES_PER_STEP = 32, -6, 250
BENCHMARK_STEPS, BENCHMARK_BATCHES = 5, 1000

_GENERATED_DATA = ("generated", "synthetic")
_NEVER_READ = "the program accepted it and never used it"
_COMPILER_ONLY = "it configures a compiler that is not used"
_INT, _FLOATS = ValueType(int).parse, ValueType(float, is_list=True).parse
_parse_size = choice_parser(_MODELS, str.lower, f"one of {', '.join(RESNET_DEPTHS)} or x50")
_parse_precision = choice_parser({"16": "16.16", "32": "32.32"}, expected="16 or 32")

FLAGS = (
    Flag("--size", "model", parser=_parse_size),
    Flag("--shortcut-type", "shortcut_type"),
    Flag("--norm-type", "norm_type", parser=lower_case),
    Flag("--norm-groups", "norm_num_groups"),
    Flag("--dataset", "data", parser=choice_parser(DATASETS, str.upper)),
    Flag("--data-dir", "data_dir"),
    Flag("--use-generated-data", "generated", const="generated"),
    Flag("--num-workers", "dataloader_worker"),
    Flag("--batch-size", "batch_size", parser=_INT),
    Flag("--replication-factor", "replicas"),
    Flag("--gradient-accumulation-factor", "gradient_accumulation"),
    Flag("--num-ipus", "devices", parser=_INT),
    Flag("--shards", "shards"),
    Flag("--auto-sharding", const=True, dropped="stages are balanced unless splits are given"),
    Flag("--pipeline", "pipeline", const=True),
    Flag("--recompute", "enable_recompute", const=True),
    Flag("--epochs", "epoch"),
    Flag("--batches-per-step", "device_iterations"),
    Flag("--steps", "steps", parser=_INT),
    Flag("--mode", "mode", parser=choice_parser(_MODES, str.lower, "train, eval or infer")),
    Flag("--base-learning-rate", "exponent", parser=_INT),
    Flag("--learning-rate-schedule", "lr_share_decay", parser=_FLOATS),
    Flag("--learning-rate-decay", "lr_multipliers", parser=_FLOATS),
    Flag("--weight-decay", "weight_decay"),
    Flag("--precision", "precision", parser=_parse_precision),
    Flag("--half-partials", "half_partial", const=True),
    Flag("--prng", "enable_stochastic_rounding", const=True),
    Flag("--no-prng", "enable_stochastic_rounding", const=False),
    Flag("--fp-exceptions", "enable_fp_exceptions", const=True),
    Flag("--ckpt", dropped="checkpoints are written to the run folder"),
    Flag("--no-validation", "validation_mode", const="none"),
    Flag("--valid-per-epoch", dropped=_NEVER_READ),
    Flag("--get-reports", const=True, dropped=_NEVER_READ),
    Flag("--report", "profile", const=True),
    Flag("--log-dir", "log_dir"),
    Flag("--log_dir_string", "name_suffix"),
    Flag("--steps-per-log", "steps_per_log", parser=_INT),
    Flag("--simulation", "device", const="cpu"),
    Flag("--syncless-collectives", dropped=_COMPILER_ONLY),
    Flag("--max-bytes-per-tile", "gcl_max_broadcast_size"),
    Flag("--convolution-options", dropped=_COMPILER_ONLY),
    Flag("--use-zero-values", const=True, dropped="images are random; zeros would not be faster"),
    Flag("--save-graph", const=True, dropped=_COMPILER_ONLY),
    Flag("--tensor-tile-mapping", const=True, dropped=_COMPILER_ONLY),
    Flag("--report-hw-cycle-count", const=True, dropped=_COMPILER_ONLY),
)


def _combine_generated_data(flags: Translation) -> None:
    """Replace the dataset by generated data."""
    generated, dataset = flags.pop("generated"), flags.settings.get("data")
    if generated is None:
        return
    if dataset is not None:
        flags.add_dropped(dataset.source, "--use-generated-data replaces it")
    flags.set_option("data", generated.value, generated)


def _combine_stages(flags: Translation) -> None:
    """Derive the stages: `--num-ipus` counts all devices, and each replica has one per stage."""
    devices = flags.pop("devices")
    if devices is None:
        return
    replicas = _replicas(flags)
    stages, remainder = divmod(devices.value, replicas)
    if remainder:
        raise OptionTypeError(
            f"--num-ipus {devices.value} is not a multiple of --replication-factor {replicas}"
        )
    shards = flags.settings.get("shards")
    if shards is not None and shards.value != stages:
        raise OptionTypeError(
            f"--num-ipus {devices.value} gives each of {replicas} replicas {stages}, but --shards "
            f"is {shards.value}"
        )
    flags.set_option("shards", stages, devices, shards)


def _replicas(flags: Translation) -> int:
    """Return the number of replicas; the limit of that option refuses 0."""
    replicas: int = flags.get("replicas", 1)
    return max(1, replicas)


_DIALECT_SETTING = Setting(None, f"dialect {NAME}")


def _combine_micro_batch_size(default: int, flags: Translation) -> None:
    """Split `--batch-size`, the samples of one pass of all replicas; the rate is 2^N times that."""
    size, exponent = flags.pop("batch_size"), flags.pop("exponent")
    total, replicas = size.value if size else default, _replicas(flags)
    if total % replicas:
        raise OptionTypeError(
            f"--batch-size {total} is not a multiple of --replication-factor {replicas}"
        )
    origins = [setting for setting in (size, flags.settings.get("replicas")) if setting]
    flags.set_option("micro_batch_size", total // replicas, *(origins or [_DIALECT_SETTING]))
    power = exponent.value if exponent else DEFAULT_LR_EXPONENT
    if not -200 <= power <= 100:
        raise OptionTypeError(f"--base-learning-rate is a power of 2 from -200 to 100, got {power}")
    origins = [setting for setting in (exponent, size) if setting]
    flags.set_option("lr", 2.0**power * total, *(origins or [_DIALECT_SETTING]))


def _combine_schedule(flags: Translation) -> None:
    """Select the schedule: without `--pipeline` the stages of a replica run one at a time."""
    pipelined = flags.pop("pipeline")
    shards = flags.settings.get("shards")
    if shards is None or shards.value == 1:
        if pipelined is not None:
            flags.add_dropped(pipelined.source, "there is only one stage")
    elif pipelined is None:
        flags.set_option("pipeline_schedule", "sequential", shards)
    else:
        flags.add_note(pipelined, "stages run concurrently")


def _combine_length(default: int, flags: Translation) -> None:
    """Convert steps to updates: a step is `--batches-per-step` batches."""
    batches = flags.get("device_iterations", default)
    steps, logs = flags.pop("steps"), flags.pop("steps_per_log")
    if steps is not None:
        flags.set_option("updates", steps.value * batches, steps)
    if logs is not None:
        flags.set_option("log_freq", logs.value * batches, logs)


def _combine_mode(flags: Translation) -> None:
    mode = flags.pop("mode")
    if mode is not None and mode.value != "train":
        flags.add_dropped(mode.source, "`convoy validate --random-weights` does that")
    elif mode is not None:
        flags.add_note(mode, "training, the default")


HELP_TEXTS: Mapping[str, str] = {
    "--size": "`--model`: 50 is resnet50, x50 is resnext50",
    "--dataset": "`--data`: IMAGENET or CIFAR-10",
    "--use-generated-data": "`--data generated`",
    "--batch-size": "`--micro-batch-size` × replicas: the samples per forward pass of all replicas",
    "--num-ipus": "`--shards` × replicas: the total number of devices",
    "--pipeline": "stages run concurrently; without it `--pipeline-schedule sequential`",
    "--steps": "`--updates`: steps × `--batches-per-step`",
    "--mode": "train is `convoy train`; infer and eval are `convoy validate --random-weights`",
    "--base-learning-rate": "`--lr`: 2^N × `--batch-size`, without accumulation",
    "--learning-rate-schedule": "`--lr-share-decay`",
    "--learning-rate-decay": "`--lr-multipliers`",
    "--precision": "`--precision`: 16 is 16.16, 32 is 32.32",
    "--no-validation": "`--validation-mode none`",
    "--steps-per-log": "`--log-freq`: steps × `--batches-per-step`",
    "--simulation": "`--device cpu`",
}


def _combiners(batch: int, batches_per_step: int) -> tuple[Combiner, ...]:
    return (
        _combine_generated_data,
        _combine_stages,
        partial(_combine_micro_batch_size, batch),
        _combine_schedule,
        partial(_combine_length, batches_per_step),
        _combine_mode,
    )


@cache
def popart() -> Dialect:
    """The training program: ResNet version 1 only, with images padded to four channels."""
    combiners = _combiners(DEFAULT_BATCH_SIZE, DEFAULT_BATCHES_PER_STEP)
    return Dialect(NAME, FLAGS, defaults=_defaults, combiners=combiners, help_texts=HELP_TEXTS)


@cache
def popart_benchmark() -> Dialect:
    """The synthetic benchmark: the same flags, a few steps on synthetic images."""
    return replace(
        popart(), defaults=_benchmark_defaults, combiners=_combiners(1, BENCHMARK_BATCHES)
    )


def _defaults(chosen: Mapping[str, Any]) -> Mapping[str, Any]:
    small = chosen.get("data", "cifar10") == "cifar10"
    norm = chosen.get("norm_type") or "group"
    half = chosen.get("precision", "16.16") != "32.32"
    return {
        "model": "resnet20",
        "data": "cifar10",
        "resnet_version": "v1",
        "stem": "small" if small else "large",
        "shortcut_type": "B",
        "input_image_padding": True,
        "norm_type": norm,
        "norm_num_groups": 16,
        "enable_fast_groupnorm": norm == "group",
        "zero_init_last_norm": False,
        "weight_init": "popart",
        "device_iterations": DEFAULT_BATCHES_PER_STEP,
        "epoch": 30.0,
        "lr_schedule": "step",
        "lr_share_decay": (0.5, 0.75),
        "lr_multipliers": (1.0, 0.1, 0.01),
        "warmup_epoch": 0.0,
        "momentum": 0.0,
        "weight_decay": 0.0,
        "weight_decay_spares": "nothing",
        "precision": "16.16",
        "enable_stochastic_rounding": half,
        "enable_recompute": False,
        "validation_mode": "during",
        "validation_frequency": 1,
        "log_dir": "logs",
        "log_freq": chosen.get("device_iterations") or DEFAULT_BATCHES_PER_STEP,
    }


def _benchmark_defaults(chosen: Mapping[str, Any]) -> Mapping[str, Any]:
    norm = chosen.get("norm_type") or "batch"
    batches = chosen.get("device_iterations") or BENCHMARK_BATCHES
    choices = {**chosen, "data": chosen.get("data", "synthetic"), "norm_type": norm}
    values = {name: value for name, value in _defaults(choices).items() if name != "epoch"}
    images = {"image_size": 224, "num_classes": 10} if choices["data"] in _GENERATED_DATA else {}
    return {
        **values,
        **images,
        "model": "resnet18",
        "data": "synthetic",
        "shortcut_type": "auto",
        "norm_num_groups": 32,
        "device_iterations": BENCHMARK_BATCHES,
        "updates": BENCHMARK_STEPS * batches,
        "log_freq": batches,
        "validation_mode": "none",
    }
