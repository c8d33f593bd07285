"""The PyTorch program: the canonical spellings, and what it takes for granted."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from convoy.config.flags import TARGET, Dialect, Flag, Translation, canonical
from convoy.config.option import ValueType

NAME = "pytorch"
ITERATIONS = 100  # loader steps in an epoch of data that is made up

# Canonical spellings that come from the TensorFlow program: who types them speaks its dialect.
NOT_THEIRS = frozenset(
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
    "pipeline_schedule": "1f1b",  # its library took any number of micro-batches
    "logs_per_epoch": 1,
    "validation_frequency": 4,
}
_BENCHMARK: Mapping[str, Any] = {
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
        (*canonical().flags, *_EXTRA),
        defaults=_defaults,
        combiners=(*canonical().combiners, _folders, _length_of_made_data),
        says={**canonical().says, **SAYS},
    )


@cache
def pytorch_benchmark() -> Dialect:
    """`host_benchmark.py`, whose iterations are passes over the data."""
    combiners = (_passes, *pytorch().combiners)
    return replace(pytorch(), defaults=_benchmark_defaults, combiners=combiners)


def _benchmark_defaults(chosen: Mapping[str, Any]) -> Mapping[str, Any]:
    boxes = chosen.get("data", "imagenet") == "imagenet"
    own = {**_BENCHMARK, "use_bbox_info": boxes}
    return {**_defaults({"model": "resnet50", **chosen}), **own}


def _passes(flags: Translation) -> None:
    passes = flags.take("iterations")
    if passes is not None:
        flags.put("epoch", float(passes.value), passes)


def _defaults(chosen: Mapping[str, Any]) -> Mapping[str, Any]:
    """There norms started at zero in one network alone, and one had wider groups than ours."""
    model = chosen.get("model")
    wide = {"group_dim": 8} if model == "resnext101" else {}
    return {**DEFAULTS, **wide, "zero_init_last_norm": model == "resnet50"}


def _folders(flags: Translation) -> None:
    """One folder for both ways, as up to release 3.0."""
    both = flags.take("checkpoint_path")
    if both is not None:
        flags.fill("checkpoint_output_path", both.value, both)
        flags.given.setdefault(TARGET, both)


def _length_of_made_data(flags: Translation) -> None:
    """An epoch of made data is so many loader steps: iterations × a whole step of all replicas."""
    iterations = flags.take("iterations")
    data = flags.value("data", DEFAULTS["data"])
    if data not in ("generated", "synthetic"):
        if iterations is not None:
            flags.drop(
                f"--iterations {iterations.value}",
                f"it is the length of made data; {data} has its own",
            )
        return
    like = iterations or flags.given.get("data") or flags.under["data"]
    if iterations is None and flags.value("samples") is not None:
        return
    flags.fill("samples", (iterations.value if iterations else ITERATIONS) * _step(flags), like)


def _step(flags: Translation) -> int:
    """Samples of one loader step."""
    factors = ("micro_batch_size", "gradient_accumulation", "replicas", "device_iterations")
    samples = 1
    for name in factors:
        samples *= flags.value(name, 1)
    return samples


SAYS: Mapping[str, str] = {
    "--iterations": "`--samples` of made data: loader steps × all samples of one",
    "--checkpoint-input-path": (
        "the run or checkpoint behind `convoy resume`, `validate` or `average`"
    ),
    "--checkpoint-input-dir": (
        "the run or checkpoint behind `convoy resume`, `validate` or `average`"
    ),
    "--checkpoint-path": "`--checkpoint-output-path`, and the folder that is read",
    "--disable-async-loading": "`--dataloader-worker 0`",
}
_EXTRA = (
    Flag("--iterations", "iterations", read=ValueType(int).read),
    Flag("--checkpoint-input-path", TARGET),
    Flag("--checkpoint-input-dir", TARGET),
    Flag("--checkpoint-output-dir", "checkpoint_output_path"),
    Flag("--checkpoint-path", "checkpoint_path"),
    Flag("--disable-async-loading", "dataloader_worker", means=0),
)
