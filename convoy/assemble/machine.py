"""The machine as a run needs it: a device, a number of threads, and arithmetic that repeats."""

import platform

import torch

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
