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
from convoy.config.sections.parallel import DeviceConfig
from convoy.data.loader import NeededInputs
from convoy.engine.update import UpdateShare
from convoy.errors import ConfigError
from convoy.launch.world import World
from convoy.parallel.control import ControlGroup, DistributedControlGroup, SyncPoint
from convoy.parallel.process_groups import ProcessGroups, Rendezvous, init_process_groups
from convoy.planning.plan import RunPlan
from convoy.planning.stages import StagePlan
from convoy.planning.topology import Coordinates
from convoy.run.compile import compile_environment


def choose_device(config: DeviceConfig, index: int = 0) -> torch.device:
    """Return the configured device; `auto` selects an accelerator if there is one."""
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    kind = config.device
    if kind == "auto":
        kind = next((kind for kind in ("cuda", "mps") if available[kind]), "cpu")
    if not available[kind]:
        names = ", ".join(name for name, is_available in available.items() if is_available)
        raise ConfigError(f"--device {kind} is not available; this machine has {names}")
    if kind != "cuda":
        return torch.device(kind)
    count = torch.cuda.device_count()
    chosen = config.select_devices or range(count)
    if max(chosen) >= count:
        raise ConfigError(
            f"--select-devices {max(chosen)} is not available; this machine has 0 to {count - 1}"
        )
    device = torch.device(kind, chosen[index % len(chosen)])
    torch.cuda.set_device(device)
    return device


def make_deterministic(threads: int) -> None:
    """Make torch deterministic."""
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # Deterministic mode also fills every new tensor with NaN, which costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


NCCL_ALGORITHMS = {"auto": None, "broadcast": "Tree"}  # all others are rings


def prepare_cuda(config: RunConfig, stage: int, memory: int) -> None:
    """Configure CUDA before anything runs on the device, which has `memory` bytes."""
    # cuDNN and NCCL read these variables at their first use; the user's values win.
    for name, value in cuda_environment(config, stage, memory).items():
        os.environ.setdefault(name, value)
    torch.backends.cudnn.benchmark = config.device.exchange_memory_target == "cycles"
    reduced = config.precision.half_partial
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = reduced
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = reduced


def cuda_environment(config: RunConfig, stage: int, memory: int) -> dict[str, str]:
    variables = {}
    shares = config.memory.available_memory_proportion
    if shares:
        share = shares[stage] if len(shares) > 1 else shares[0]
        variables["CUDNN_CONV_WSCAP_DBG"] = str(max(1, int(share * memory / 2**20)))  # in MiB
    algorithm = NCCL_ALGORITHMS.get(config.replica.gcl_method, "Ring")
    if algorithm is not None:
        variables["NCCL_ALGO"] = algorithm
    return variables


@dataclass(frozen=True)
class ProcessContext:
    """The coordinates, groups and device of a process in the run."""

    plan: RunPlan
    coordinates: Coordinates
    groups: ProcessGroups
    control: ControlGroup
    device: torch.device

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        """The stages of this process: one, or several with a looped pipeline."""
        return self.plan.stages_of(self.coordinates.stage)

    @property
    def needed_inputs(self) -> NeededInputs:
        """The first stage needs images, the last one labels."""
        stage, last = self.coordinates.stage, self.plan.topology.stages - 1
        return NeededInputs(images=stage == 0, labels=stage == last)

    @property
    def update_share(self) -> UpdateShare:
        topology, batch = self.plan.topology, self.plan.batch
        last_ranks = topology.replica_ranks(topology.stages - 1)
        ranks = map(topology.coordinates, range(topology.processes))
        names = [f"replica {rank.replica}, stage {rank.stage}" for rank in ranks]
        return UpdateShare(
            batch.micro_batches_of(self.coordinates.replica), self.control, last_ranks, names
        )

    def machine_info(self) -> dict[str, JSON]:
        """What bit-exactness depends on; saved in every checkpoint."""
        return {
            "torch": torch.__version__,
            "device": self.device.type,
            "processor": torch.backends.cpu.get_cpu_capability() + " " + platform.machine(),
            "threads": self.plan.config.device.threads,
        }


@contextmanager
def join_run(world: World, plan: RunPlan) -> Iterator[ProcessContext]:
    """Join the process groups of a run, on the device of this process.

    After an error no process waits: the others may be gone, and this process ends anyway.
    """
    # Each replica uses its own devices among the selected devices of this host.
    replica, stage = divmod(world.local_rank, plan.topology.stages)
    index = replica * (max(plan.process_devices) + 1) + plan.process_devices[stage]
    device = choose_device(plan.config.device, index)
    make_deterministic(plan.config.device.threads)
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        prepare_cuda(plan.config, plan.topology.coordinates(world.rank).stage, memory)
    compiler = plan.config.compiler
    with compile_environment(compiler, device) if compiler.compile else nullcontext():
        rendezvous = Rendezvous(world.rendezvous, world.on_one_host, device.type)
        groups = init_process_groups(
            world.rank, world.world_size, plan.topology, rendezvous, plan.batch.bn_span
        )
        coordinates, group = plan.topology.coordinates(world.rank), groups.world.process_group
        control = ControlGroup() if group is None else DistributedControlGroup(group)
        yield ProcessContext(plan, coordinates, groups, control, device)
        groups.destroy()


_PROC_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def reset_peak_memory(device: torch.device) -> None:
    """Reset the peak memory, so that earlier peaks (also of the parent process) do not count."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):
        _CLEAR_REFS.write_text("5")


def gather_stage_peaks(
    context: ProcessContext, update: int, stash_sets: int
) -> list[tuple[int, int]]:
    """Return the maximum over replicas for each stage; all processes must call this.

    Bytes: resident memory of its process, or allocated memory of its accelerator. Stash sets:
    micro-batches between their forward and their backward.
    """
    local = torch.tensor([_peak_bytes(context.device), stash_sets])
    gathered = torch.stack(context.control.all_gather_tensor(SyncPoint.CLOSE, update, local))
    topology = context.plan.topology
    by_stage = gathered.view(topology.replicas, topology.stages, 2).amax(0)
    return [(num_bytes, sets) for num_bytes, sets in by_stage.tolist()]


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        lines = _PROC_STATUS.read_text().splitlines()
    except OSError:  # not Linux
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)
