"""The PopART program (`resnet_main.py`) and its synthetic benchmark."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from convoy.config.flags import Combiner, Dialect, Flag, Translation, lower_case, one_of
from convoy.config.option import ValueType, WrongType
from convoy.config.settings import Setting

NAME = "popart"
DEPTHS = ("8", "14", "18", "20", "32", "34", "44", "50", "56", "101", "110", "152")
_MODELS = {**{depth: f"resnet{depth}" for depth in DEPTHS}, "x50": "resnext50"}
_MODES = ("train", "eval", "infer")
DATASETS = {"IMAGENET": "imagenet", "CIFAR-10": "cifar10"}
BATCH, EXPONENT, BATCHES_PER_STEP = 32, -6, 250
BENCHMARK_STEPS, BENCHMARK_BATCHES = 5, 1000

_MADE = ("generated", "synthetic")
_NOT_READ = "the program took it and never read it"
_RAW = "it speaks to a compiler that is not here"


_INT, _FLOATS = ValueType(int).read, ValueType(float, many=True).read

FLAGS = (
    Flag("--size", "model", read=one_of(_MODELS, str.lower, f"one of {', '.join(DEPTHS)} or x50")),
    Flag("--shortcut-type", "shortcut_type"),
    Flag("--norm-type", "norm_type", read=lower_case),
    Flag("--norm-groups", "norm_num_groups"),
    Flag("--dataset", "data", read=one_of(DATASETS, str.upper)),
    Flag("--data-dir", "data_dir"),
    Flag("--use-generated-data", "made", means="generated"),
    Flag("--num-workers", "dataloader_worker"),
    Flag("--batch-size", "batch_size", read=_INT),
    Flag("--replication-factor", "replicas"),
    Flag("--gradient-accumulation-factor", "gradient_accumulation"),
    Flag("--num-ipus", "devices", read=_INT),
    Flag("--shards", "shards"),
    Flag("--auto-sharding", means=True, why="stages are balanced when no splits are given"),
    Flag("--pipeline", "pipeline", means=True),
    Flag("--recompute", "enable_recompute", means=True),
    Flag("--epochs", "epoch"),
    Flag("--batches-per-step", "device_iterations"),
    Flag("--steps", "steps", read=_INT),
    Flag("--mode", "mode", read=one_of(_MODES, str.lower, "train, eval or infer")),
    Flag("--base-learning-rate", "exponent", read=_INT),
    Flag("--learning-rate-schedule", "lr_share_decay", read=_FLOATS),
    Flag("--learning-rate-decay", "lr_multipliers", read=_FLOATS),
    Flag("--weight-decay", "weight_decay"),
    Flag("--precision", "precision", read=one_of({"16": "16.16", "32": "32.32"}, named="16 or 32")),
    Flag("--half-partials", "half_partial", means=True),
    Flag("--prng", "enable_stochastic_rounding", means=True),
    Flag("--no-prng", "enable_stochastic_rounding", means=False),
    Flag("--fp-exceptions", "enable_fp_exceptions", means=True),
    Flag("--ckpt", why="checkpoints lie in the run's folder"),
    Flag("--no-validation", "validation_mode", means="none"),
    Flag("--valid-per-epoch", why=_NOT_READ),
    Flag("--get-reports", means=True, why=_NOT_READ),
    Flag("--report", "profile", means=True),
    Flag("--log-dir", "log_dir"),
    Flag("--log_dir_string", "name_suffix"),
    Flag("--steps-per-log", "steps_per_log", read=_INT),
    Flag("--simulation", "device", means="cpu"),
    Flag("--syncless-collectives", why=_RAW),
    Flag("--max-bytes-per-tile", "gcl_max_broadcast_size"),
    Flag("--convolution-options", why=_RAW),
    Flag("--use-zero-values", means=True, why="made images are random; their values cost nothing"),
    Flag("--save-graph", means=True, why=_RAW),
    Flag("--tensor-tile-mapping", means=True, why=_RAW),
    Flag("--report-hw-cycle-count", means=True, why=_RAW),
)


def _made(flags: Translation) -> None:
    """Made data stands for no data set."""
    made, named = flags.take("made"), flags.given.get("data")
    if made is None:
        return
    if named is not None:
        flags.drop(named.source, "--use-generated-data makes its own")
    flags.put("data", made.value, made)


def _stages(flags: Translation) -> None:
    """`--num-ipus` are all devices: those of one replica are its stages."""
    devices = flags.take("devices")
    if devices is None:
        return
    replicas = _replicas(flags)
    stages, rest = divmod(devices.value, replicas)
    if rest:
        raise WrongType(
            f"--num-ipus {devices.value} is no multiple of --replication-factor {replicas}"
        )
    shards = flags.given.get("shards")
    if shards is not None and shards.value != stages:
        raise WrongType(
            f"--num-ipus {devices.value} gives each of {replicas} replicas {stages}, but --shards "
            f"asks for {shards.value}"
        )
    flags.put("shards", stages, devices, shards)


def _replicas(flags: Translation) -> int:
    """None at all is refused by its limit."""
    replicas: int = flags.value("replicas", 1)
    return max(1, replicas)


def _micro_batch(usual: int) -> Combiner:
    """`--batch-size` is one pass of all replicas together. The rate is 2^N times that."""

    def combine(flags: Translation) -> None:
        size, exponent = flags.take("batch_size"), flags.take("exponent")
        total, replicas = size.value if size else usual, _replicas(flags)
        if total % replicas:
            raise WrongType(
                f"--batch-size {total} is no multiple of --replication-factor {replicas}"
            )
        like = (size, flags.given.get("replicas"))
        flags.put("micro_batch_size", total // replicas, *(like if any(like) else (_unsaid(),)))
        power = exponent.value if exponent else EXPONENT
        if not -200 <= power <= 100:
            raise WrongType(f"--base-learning-rate is a power of 2 from -200 to 100, got {power}")
        by = (exponent, size)
        flags.put("lr", 2.0**power * total, *(by if any(by) else (_unsaid(),)))

    return combine


def _unsaid() -> Setting:
    return Setting(None, f"dialect {NAME}")


def _order(flags: Translation) -> None:
    """Without `--pipeline` the stages of a copy wait for each other."""
    pipelined = flags.take("pipeline")
    shards = flags.given.get("shards")
    if shards is None or shards.value == 1:
        if pipelined is not None:
            flags.drop(pipelined.source, "there is one stage")
    elif pipelined is None:
        flags.put("pipeline_schedule", "sequential", shards)
    else:
        flags.note(pipelined, "its stages work at the same time")


def _length(usual: int) -> Combiner:
    """A step is a return to the host: so many batches."""

    def combine(flags: Translation) -> None:
        batches = flags.value("device_iterations", usual)
        steps, logs = flags.take("steps"), flags.take("steps_per_log")
        if steps is not None:
            flags.put("updates", steps.value * batches, steps)
        if logs is not None:
            flags.put("log_freq", logs.value * batches, logs)

    return combine


def _purpose(flags: Translation) -> None:
    mode = flags.take("mode")
    if mode is not None and mode.value != "train":
        flags.drop(mode.source, "`convoy validate --random-weights` does that")
    elif mode is not None:
        flags.note(mode, "what is done anyway")


SAYS: Mapping[str, str] = {
    "--size": "`--model`: 50 is resnet50, x50 is resnext50",
    "--dataset": "`--data`: IMAGENET or CIFAR-10",
    "--use-generated-data": "`--data generated`",
    "--batch-size": "`--micro-batch-size` × replicas: one pass of all replicas together",
    "--num-ipus": "`--shards` × replicas: all devices together",
    "--pipeline": "stages that work at the same time; without it `--pipeline-schedule sequential`",
    "--steps": "`--updates`: steps × `--batches-per-step`",
    "--mode": "train is `convoy train`; infer and eval are `convoy validate --random-weights`",
    "--base-learning-rate": "`--lr`: 2^N × `--batch-size`, accumulation left out",
    "--learning-rate-schedule": "`--lr-share-decay`",
    "--learning-rate-decay": "`--lr-multipliers`",
    "--precision": "`--precision`: 16 is 16.16, 32 is 32.32",
    "--no-validation": "`--validation-mode none`",
    "--steps-per-log": "`--log-freq`: steps × `--batches-per-step`",
    "--simulation": "`--device cpu`",
}


def _combiners(batch: int, batches_per_step: int) -> tuple[Combiner, ...]:
    return (_made, _stages, _micro_batch(batch), _order, _length(batches_per_step), _purpose)


@cache
def popart() -> Dialect:
    """ResNet alone, version 1, with images of four channels."""
    combiners = _combiners(BATCH, BATCHES_PER_STEP)
    return Dialect(NAME, FLAGS, defaults=_defaults, combiners=combiners, says=SAYS)


@cache
def popart_benchmark() -> Dialect:
    """The same words, for speed alone: a few steps over made images."""
    return replace(
        popart(), defaults=_benchmark_defaults, combiners=_combiners(1, BENCHMARK_BATCHES)
    )


def _defaults(chosen: Mapping[str, Any]) -> Mapping[str, Any]:
    small = chosen.get("data", "cifar10") == "cifar10"
    norm = chosen.get("norm_type") or "group"
    half = chosen.get("precision", "16.16") != "32.32"
    log = {"log_freq": chosen.get("device_iterations") or BATCHES_PER_STEP}
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
        "device_iterations": BATCHES_PER_STEP,
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
        **log,
    }


def _benchmark_defaults(chosen: Mapping[str, Any]) -> Mapping[str, Any]:
    norm = chosen.get("norm_type") or "batch"
    batches = chosen.get("device_iterations") or BENCHMARK_BATCHES
    made = {**chosen, "data": chosen.get("data", "synthetic"), "norm_type": norm}
    values = {name: value for name, value in _defaults(made).items() if name != "epoch"}
    images = {"image_size": 224, "num_classes": 10} if made["data"] in _MADE else {}
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
