"""How much memory each stage really took, at most."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from convoy.parallel.control import SyncPoint
from convoy.run.process import ProcessContext

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class StagePeak:
    """The largest amounts of any replica of one stage."""

    bytes: int  # resident memory of its process, or allocated memory of its accelerator
    stash_sets: int  # micro-batches between their forward and their backward


def start_counting(device: torch.device) -> None:
    """Peaks from before do not count, those of a parent process least of all."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        _RESET.write_text("5")


def stage_peaks(context: ProcessContext, update: int, stash_sets: int) -> tuple[StagePeak, ...]:
    """The peaks of every stage; all processes must ask."""
    own = torch.tensor([_peak_bytes(context.device), stash_sets])
    found = torch.stack(context.control.gather(SyncPoint.CLOSE, update, own))
    topology = context.plan.topology
    by_stage = found.view(topology.replicas, topology.stages, 2).amax(0).tolist()
    return tuple(StagePeak(*row) for row in by_stage)


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:  # another system, which does not tell
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
