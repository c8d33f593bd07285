"""One process of a run: its stage and replica, its device, its process groups."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from convoy.checkpoint.format import JSON
from convoy.config.schema import RunConfig
from convoy.config.sections.device import DeviceConfig
from convoy.data.loader import NeededInputs
from convoy.engine.metrics import Share
from convoy.engine.update import UpdateShare
from convoy.errors import ConfigError
from convoy.launch.world import World
from convoy.parallel.control import ControlGroup, DistributedControlGroup, SyncPoint
from convoy.parallel.process_groups import Groups, Rendezvous, join
from convoy.plan.plan import RunPlan
from convoy.plan.stages import StagePlan
from convoy.plan.topology import Coordinates
from convoy.run.compile import compiler_for


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
    found = {}
    shares = config.memory.available_memory_proportion
    if shares:
        share = shares[stage] if len(shares) > 1 else shares[0]
        found["CUDNN_CONV_WSCAP_DBG"] = str(max(1, int(share * memory / MEBIBYTE)))
    algorithm = ALGORITHMS.get(config.replica.gcl_method, "Ring")
    if algorithm is not None:
        found["NCCL_ALGO"] = algorithm
    return found


@dataclass(frozen=True)
class ProcessContext:
    """Where a process stands in the run, and what follows from that alone."""

    plan: RunPlan
    coordinates: Coordinates
    groups: Groups
    control: ControlGroup
    device: torch.device

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        """What this process runs: one stage, or one for each time around the line."""
        return self.plan.stages_of(self.coordinates.stage)

    @property
    def needs(self) -> NeededInputs:
        """The first stage takes images, the last one compares with labels."""
        last = self.plan.topology.stages - 1
        return NeededInputs(
            images=self.coordinates.stage == 0, labels=self.coordinates.stage == last
        )

    @property
    def update_share(self) -> UpdateShare:
        topology, batch = self.plan.topology, self.plan.batch
        ends = topology.replica_ranks(topology.stages - 1)
        ranks = map(topology.coordinates, range(topology.processes))
        places = [f"replica {one.replica}, stage {one.stage}" for one in ranks]
        return UpdateShare(
            batch.micro_batches_of(self.coordinates.replica), self.control, ends, places
        )

    @property
    def share(self) -> Share:
        return Share(self.coordinates.replica, self.plan.topology.replicas, self.control)

    def machine(self) -> dict[str, JSON]:
        """What the bits are promised for, as a checkpoint remembers it."""
        return {
            "torch": torch.__version__,
            "device": self.device.type,
            "processor": torch.backends.cpu.get_cpu_capability() + " " + platform.machine(),
            "threads": self.plan.config.device.threads,
        }


@contextmanager
def join_run(world: World, plan: RunPlan) -> Iterator[ProcessContext]:
    """Join the process groups of a run, on the device of this process.

    After an error nobody is waited for: the others may be gone, and this process ends anyway.
    """
    # Among the chosen devices of this host each replica has its own, as many as it maps to.
    replica, stage = divmod(world.local_rank, plan.topology.stages)
    number = replica * (max(plan.devices) + 1) + plan.devices[stage]
    device = choose_device(plan.config.device, number)
    make_repeatable(plan.config.device.threads)
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        prepare_cuda(plan.config, plan.topology.coordinates(world.rank).stage, memory)
    wish = plan.config.compiler
    with compiler_for(wish, device) if wish.compile else nullcontext():
        rendezvous = Rendezvous(world.rendezvous, world.on_one_host, device.type)
        groups = join(world, plan.topology, rendezvous, plan.batch.bn_span)
        coordinates, whole = plan.topology.coordinates(world.rank), groups.world.handle
        control = ControlGroup() if whole is None else DistributedControlGroup(whole)
        yield ProcessContext(plan, coordinates, groups, control, device)
        groups.leave()


_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def start_counting(device: torch.device) -> None:
    """Peaks from before do not count, those of a parent process least of all."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        _RESET.write_text("5")


def stage_peaks(context: ProcessContext, update: int, stash_sets: int) -> list[tuple[int, int]]:
    """For each stage the most of any replica; all processes must ask.

    Bytes: resident memory of its process, or allocated memory of its accelerator. Stash sets:
    micro-batches between their forward and their backward.
    """
    own = torch.tensor([_peak_bytes(context.device), stash_sets])
    found = torch.stack(context.control.gather(SyncPoint.CLOSE, update, own))
    topology = context.plan.topology
    by_stage = found.view(topology.replicas, topology.stages, 2).amax(0)
    return [(num_bytes, sets) for num_bytes, sets in by_stage.tolist()]


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:  # another system, which does not tell
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
