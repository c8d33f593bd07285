"""Memory saved by recomputation, offload and sharding, measured on ResNet-50.

    python benchmarks/memory.py [--image 128] [--batch 4] [--folder .]

Activations: the tensors that autograd stores between forward and backward, without recomputation
and with the boundaries of recomputed segments only. Optimizer state: its resident pages in a worker
process, counted by the system, after an update and after a checkpoint.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from assembled import build_parts, make_plan, single_process
from interleaved import parse_options
from memory_replica import MemoryUse
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from convoy.launch.supervisor import run_workers
from convoy.planning.plan import RunPlan

Options = dict[str, Any]
BLOCKS: Options = {"enable_recompute": True, "recompute_checkpoints": (r"layer\d/\d+",)}
# Arguments: replicas, offload, sharded.
Measure = Callable[[int, bool, bool], list[MemoryUse]]


class Stored:
    """Counts the bytes stored for backward: each storage once, weights not at all."""

    def __init__(self, network: torch.nn.Module) -> None:
        self._counted = {weight.untyped_storage().data_ptr() for weight in network.parameters()}
        self.bytes = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._counted:
            self._counted.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor


def stored_bytes(plan: RunPlan) -> int:
    """Bytes that the forward pass of one micro-batch stores for its backward pass."""
    size = plan.network.image_size
    with single_process(plan) as context:
        (network,) = build_parts(context).network.stage_modules
    network.train()
    stored = Stored(network)
    images = torch.randn(plan.batch.micro_batch_size, size, size, 3).permute(0, 3, 1, 2)
    with saved_tensors_hooks(stored, lambda tensor: tensor):
        # The output keeps the stored tensors alive, so that no memory is reused and counted once.
        output = network(images)
    del output
    return stored.bytes


def options_for(model: str, image: int, batch: int) -> Options:
    size = {"image_size": image, "micro_batch_size": batch}
    return {"model": model, "data": "synthetic", "threads": 1, "samples": 1000, **size}


def compare_activations(model: str, image: int, batch: int) -> None:
    """Without and with recomputation, measured and planned."""
    plans = [make_plan(options_for(model, image, batch) | extra) for extra in ({}, BLOCKS)]
    measured = [stored_bytes(plan) for plan in plans]
    planned = [plan.memory[0].stash for plan in plans]
    peaks = [plan.memory[0].activations for plan in plans]
    print(f"activations of one micro-batch of {batch}, {image} px; all / boundaries of blocks only")
    print(f"  stored for backward, measured   {_saving(*measured)}")
    print(f"  stored for backward, planned    {_saving(*planned)}")
    print(f"  peak, from `convoy plan`        {_saving(*peaks)}")


def _saving(before: int, after: int) -> str:
    return f"{before / 1e6:7.1f} → {after / 1e6:6.1f} MB: {1 - after / before:.1%} saved"


def measure_replicas(
    folder: Path, model: str, replicas: int, offload: bool, sharded: bool
) -> list[MemoryUse]:
    """Run updates and saves in worker processes; return the memory use of each replica."""
    options = options_for(model, 64, 2) | {
        "replicas": replicas,
        "offload_optimizer": offload,
        "enable_optimizer_rts": sharded,
    }
    topology = make_plan(options).topology
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        payload = {"options": options, "folder": scratch}
        outcome = run_workers(topology, "memory_replica:work", payload, threads=1)
        error = outcome.error()
        if error is not None:
            raise error
        files = [Path(scratch) / f"{rank}.json" for rank in range(replicas)]
        return [MemoryUse(**json.loads(file.read_text())) for file in files]


def compare_offload(measure: Measure) -> None:
    """State in memory against state in a file: between updates, and after a save."""
    (in_memory,), (offloaded,) = measure(1, False, False), measure(1, True, False)
    print("optimizer state of one replica between updates; in memory / --offload-optimizer")
    print(
        f"  state                           "
        f"{in_memory.state / 1e6:7.1f} / {offloaded.state / 1e6:6.1f} MB"
    )
    print(f"  of it resident                  {_saving(in_memory.resident, offloaded.resident)}")
    print(f"  resident memory of the process  {_decrease(in_memory.process, offloaded.process)}")
    print(
        f"  in memory or page cache         "
        f"{in_memory.cached / 1e6:7.1f} / {offloaded.cached / 1e6:6.1f} MB"
    )
    print("after a checkpoint was saved, with --offload-optimizer")
    print(
        f"  state resident after the copy   {offloaded.copied / 1e6:7.1f} MB, after eviction "
        f"{offloaded.evicted / 1e6:.1f} MB"
    )
    print(f"  process, copy kept for reuse    {offloaded.copy_kept / 1e6:+7.1f} MB")
    print(f"  process, copy freed             {offloaded.copy_freed / 1e6:+7.1f} MB")


def _decrease(before: int, after: int) -> str:
    return f"{before / 1e6:7.1f} → {after / 1e6:6.1f} MB: {(before - after) / 1e6:.1f} MB less"


def compare_shards(measure: Measure, counts: list[int]) -> None:
    """The replica with the most state, against a run with a single replica."""
    print("optimizer state per replica with --enable-optimizer-rts; resident / with offload too")
    unsharded = measure(1, False, False)[0].state
    for replicas in counts:
        in_memory, offloaded = measure(replicas, False, True), measure(replicas, True, True)
        largest = max(use.state for use in in_memory)
        resident, resident_offloaded = (
            max(use.resident for use in uses) for uses in (in_memory, offloaded)
        )
        print(
            f"  {replicas} replicas: {largest / 1e6:6.1f} MB, "
            f"{unsharded / largest:.3f} times less; "
            f"resident {resident / 1e6:.1f} / {resident_offloaded / 1e6:.1f} MB"
        )
        assert sum(use.state for use in in_memory) == unsharded, "the shards do not add up"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument(
        "--folder", type=Path, default=Path(), help="folder of the memory-mapped file"
    )
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4])
    options = parse_options(parser, {"image": 32, "batch": 1, "model": "resnet8", "replicas": [2]})
    compare_activations(options.model, options.image, options.batch)
    measure = partial(measure_replicas, options.folder, options.model)
    compare_offload(measure)
    compare_shards(measure, options.replicas)


if __name__ == "__main__":
    main()
