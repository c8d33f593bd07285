"""The PyTorch program: the canonical spellings, and its defaults."""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from convoy.config.flags import TARGET, Dialect, Flag, Translation, canonical
from convoy.config.option import ValueType

NAME = "pytorch"
DEFAULT_ITERATIONS = 100  # loader steps in an epoch of generated data

# Canonical spellings that come from the TensorFlow program, so they indicate its dialect.
TENSORFLOW_ONLY_FLAGS = frozenset(
    {
        *("--data-dir", "--image-size", "--epochs", "--log-dir", "--logs-path", "--name-suffix"),
        *("--ckpts-per-epoch", "--epochs-per-ckpt", "--ckpt-epochs-offset", "--max-ckpts-to-keep"),
        *("--shards", "--pipeline-schedule", "--pipeline-num-parallel", "--prefetch-depth"),
        *("--group-dim", "--expand-ratio", "--BN-span", "--select-ipu", "--select-ipus"),
        *("--stable-norm", "--valid-batch-size", "--executable-cache-path", "--repeat"),
        *("--max-cross-replica-buffer-size", "--latency"),
    }
)
DEFAULTS: Mapping[str, Any] = {
    "model": "resnet18",
    "data": "cifar10",
    "micro_batch_size": 1,
    "epoch": 10.0,
    "lr": 0.01,
    "lr_schedule": "step",
    "warmup_epoch": 0.0,
    "momentum": 0.0,
    "weight_decay": 1e-4,
    "precision": "16.16",
    "norm_num_groups": 32,
    "exchange_memory_target": "cycles",
    "pipeline_schedule": "1f1b",  # its library accepted any number of micro-batches
    "logs_per_epoch": 1,
    "validation_frequency": 4,
}
_BENCHMARK_DEFAULTS: Mapping[str, Any] = {
    "model": "resnet50",
    "data": "imagenet",
    "micro_batch_size": 1024,
    "epoch": 2.0,
    "dataloader_worker": 32,
}


@cache
def pytorch() -> Dialect:
    """`train.py`, `restore.py`, `validate.py` and `weight_avg.py`."""
    return Dialect(
        NAME,
        (*canonical().flags, *_EXTRA_FLAGS),
        defaults=_defaults,
        combiners=(*canonical().combiners, _combine_checkpoint_path, _combine_generated_samples),
        help_texts={**canonical().help_texts, **HELP_TEXTS},
    )


@cache
def pytorch_benchmark() -> Dialect:
    """`host_benchmark.py`, whose iterations are passes over the data."""
    combiners = (_iterations_to_epochs, *pytorch().combiners)
    return replace(pytorch(), defaults=_benchmark_defaults, combiners=combiners)


def _benchmark_defaults(chosen: Mapping[str, Any]) -> Mapping[str, Any]:
    boxes = chosen.get("data", "imagenet") == "imagenet"
    defaults = _defaults({"model": "resnet50", **chosen})
    return {**defaults, **_BENCHMARK_DEFAULTS, "use_bbox_info": boxes}


def _iterations_to_epochs(flags: Translation) -> None:
    passes = flags.pop("iterations")
    if passes is not None:
        flags.set_option("epoch", float(passes.value), passes)


def _defaults(chosen: Mapping[str, Any]) -> Mapping[str, Any]:
    """Only ResNet-50 starts its last norms at zero; ResNeXt-101 has wider groups than convoy's."""
    model = chosen.get("model")
    groups = {"group_dim": 8} if model == "resnext101" else {}
    return {**DEFAULTS, **groups, "zero_init_last_norm": model == "resnet50"}


def _combine_checkpoint_path(flags: Translation) -> None:
    """Use one folder for input and output, as releases up to 3.0 did."""
    path = flags.pop("checkpoint_path")
    if path is not None:
        flags.set_default("checkpoint_output_path", path.value, path)
        flags.settings.setdefault(TARGET, path)


def _combine_generated_samples(flags: Translation) -> None:
    """Set the samples of generated data: loader steps × samples per step of all replicas."""
    iterations = flags.pop("iterations")
    data = flags.get("data", DEFAULTS["data"])
    if data not in ("generated", "synthetic"):
        if iterations is not None:
            flags.add_dropped(
                f"--iterations {iterations.value}",
                f"it sets the length of generated data, and the data is {data}",
            )
        return
    if iterations is None and flags.get("samples") is not None:
        return
    factors = ("micro_batch_size", "gradient_accumulation", "replicas", "device_iterations")
    samples_per_step = math.prod(flags.get(name, 1) for name in factors)
    steps = iterations.value if iterations else DEFAULT_ITERATIONS
    source = iterations or flags.settings.get("data") or flags.base["data"]
    flags.set_default("samples", steps * samples_per_step, source)


_INPUT_HELP = "the run or checkpoint that `convoy resume`, `validate` or `average` takes"
HELP_TEXTS: Mapping[str, str] = {
    "--iterations": "`--samples` of generated data: loader steps × samples per step",
    "--checkpoint-input-path": _INPUT_HELP,
    "--checkpoint-input-dir": _INPUT_HELP,
    "--checkpoint-path": "`--checkpoint-output-path`, and the folder to read from",
    "--disable-async-loading": "`--num-workers 0`",
}
_EXTRA_FLAGS = (
    Flag("--iterations", "iterations", parser=ValueType(int).parse),
    Flag("--checkpoint-input-path", TARGET),
    Flag("--checkpoint-input-dir", TARGET),
    Flag("--checkpoint-output-dir", "checkpoint_output_path"),
    Flag("--checkpoint-path", "checkpoint_path"),
    Flag("--disable-async-loading", "dataloader_worker", const=0),
)
