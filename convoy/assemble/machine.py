"""The machine as a run needs it: a device, a number of threads, and arithmetic that repeats."""

import os
import platform

import torch

from convoy.config.sections.machine import DeviceConfig
from convoy.errors import ConfigError


def choose_device(config: DeviceConfig) -> torch.device:
    """The asked device; `auto` takes an accelerator when there is one."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    if config.device == "auto":
        return torch.device(next((kind for kind in ("cuda", "mps") if there[kind]), "cpu"))
    if not there[config.device]:
        found = ", ".join(kind for kind, here in there.items() if here)
        raise ConfigError(f"--device {config.device} is not on this machine; it has {found}")
    return torch.device(config.device)


def choose_threads(config: DeviceConfig, processes_here: int) -> int:
    """The asked number; 0 shares the cores this process may use among the processes here."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return config.threads or max(1, (cores or 1) // processes_here)


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
