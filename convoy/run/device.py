"""The device of a process: which one, threads, repeatable arithmetic, settings of CUDA."""

import os
import platform

import torch

from convoy.config.schema import RunConfig
from convoy.config.sections.device import DeviceConfig
from convoy.errors import ConfigError


def choose_device(config: DeviceConfig, number: int = 0) -> torch.device:
    """The asked device; `auto` takes an accelerator when there is one."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    kind = config.device
    if kind == "auto":
        kind = next((kind for kind in ("cuda", "mps") if there[kind]), "cpu")
    if not there[kind]:
        found = ", ".join(kind for kind, here in there.items() if here)
        raise ConfigError(f"--device {kind} is not on this machine; it has {found}")
    if kind != "cuda":
        return torch.device(kind)
    device = torch.device(kind, _chosen(config, number, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


def _chosen(config: DeviceConfig, number: int, there: int) -> int:
    """Which accelerator: the chosen ones in turn, all of them when none was chosen."""
    chosen = config.select_devices or tuple(range(there))
    unknown = [one for one in chosen if one >= there]
    if unknown:
        raise ConfigError(
            f"--select-devices {unknown[0]} is not on this machine; it has 0 to {there - 1}"
        )
    return chosen[number % len(chosen)]


def make_repeatable(threads: int) -> None:
    """Fix what would let two equal runs differ."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Deterministic mode would also fill every new tensor with NaN, a pass over memory for nothing.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def describe_machine(device: torch.device, threads: int) -> dict[str, str | int]:
    """What the bits of a run are promised for."""
    return {
        "torch": torch.__version__,
        "device": device.type,
        "processor": torch.backends.cpu.get_cpu_capability() + " " + platform.machine(),
        "threads": threads,
    }


MEBIBYTE = 2**20
ALGORITHMS = {"auto": None, "broadcast": "Tree"}  # any other is a way around a ring


def prepare_cuda(config: RunConfig, stage: int, memory: int) -> None:
    """Before anything runs on the device. `memory` are its bytes."""
    # cuDNN and NCCL look at their variables when they are first used; a user's own stay.
    for name, value in variables(config, stage, memory).items():
        os.environ.setdefault(name, value)
    torch.backends.cudnn.benchmark = config.device.exchange_memory_target == "cycles"
    wish = config.precision.half_partial
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = wish
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = wish


def variables(config: RunConfig, stage: int, memory: int) -> dict[str, str]:
    """What the environment has to say."""
    found = {}
    shares = config.memory.available_memory_proportion
    if shares:
        share = shares[stage] if len(shares) > 1 else shares[0]
        found["CUDNN_CONV_WSCAP_DBG"] = str(max(1, int(share * memory / MEBIBYTE)))
    algorithm = ALGORITHMS.get(config.replica.gcl_method, "Ring")
    if algorithm is not None:
        found["NCCL_ALGO"] = algorithm
    return found
