"""What recomputation, offload and sharding save in memory, seen on ResNet-50.

    python benchmarks/memory.py [--image 128] [--batch 4] [--folder .]

Activations: what autograd holds between forward and backward, and what is kept at the borders of
recomputed segments. Optimizer state: its pages that are resident in a process of its own after an
update, told by the system page by page; then after a checkpoint was saved.
"""

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from assembled import alone, parts_of, plan_of
from interleaved import options_of
from memory_replica import Seen
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from convoy.launch.supervisor import run_workers
from convoy.planning.plan import RunPlan

Asked = dict[str, Any]
BLOCKS: Asked = {"enable_recompute": True, "recompute_checkpoints": (r"layer\d/\d+",)}


class Stored:
    """Counts what is stored for the backward pass; each piece of memory once, weights never."""

    def __init__(self, network: torch.nn.Module) -> None:
        self._seen = {one.untyped_storage().data_ptr() for one in network.parameters()}
        self.bytes = 0

    def __call__(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor


def stored_bytes(plan: RunPlan) -> int:
    """After the forward pass of one micro-batch: what its backward pass will need."""
    size = plan.network.image_size
    with alone(plan) as context:
        (network,) = parts_of(context).network.stage_modules
    network.train()
    stored = Stored(network)
    images = torch.randn(plan.batch.micro_batch_size, size, size, 3).permute(0, 3, 1, 2)
    with saved_tensors_hooks(stored, lambda tensor: tensor):
        # The result holds what was stored, so no piece of memory is used twice meanwhile.
        result = network(images)
    del result
    return stored.bytes


def asked_for(model: str, image: int, batch: int) -> Asked:
    size = {"image_size": image, "micro_batch_size": batch}
    return {"model": model, "data": "synthetic", "threads": 1, "samples": 1000, **size}


def compare_activations(model: str, image: int, batch: int) -> None:
    """Without and with recomputation, seen and planned."""
    plans = [plan_of(asked_for(model, image, batch) | more) for more in ({}, BLOCKS)]
    seen = [stored_bytes(plan) for plan in plans]
    planned = [plan.memory[0].stash for plan in plans]
    peaks = [plan.memory[0].activations for plan in plans]
    print(f"activations of one micro-batch of {batch}, {image} px; all kept / blocks' borders kept")
    print(f"  stored for backward, seen       {_spared(*seen)}")
    print(f"  stored for backward, planned    {_spared(*planned)}")
    print(f"  peak, from `convoy plan`        {_spared(*peaks)}")


def _spared(before: int, after: int) -> str:
    return f"{before / 1e6:7.1f} → {after / 1e6:6.1f} MB: {1 - after / before:.1%} saved"


def see_replicas(
    folder: Path, model: str, replicas: int, offload: bool, sharded: bool
) -> list[Seen]:
    """Updates of real replicas, and saves between them; what each one held."""
    asked = asked_for(model, 64, 2) | {
        "replicas": replicas,
        "offload_optimizer": offload,
        "enable_optimizer_rts": sharded,
    }
    topology = plan_of(asked).topology
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        payload = {"asked": asked, "folder": scratch}
        outcome = run_workers(topology, "memory_replica:work", payload, threads=1)
        error = outcome.error()
        if error is not None:
            raise error
        files = [Path(scratch) / f"{rank}.json" for rank in range(replicas)]
        return [Seen(**json.loads(file.read_text())) for file in files]


def compare_homes(see: "partial[list[Seen]]") -> None:
    """State in memory against state in a file: between updates, and after a save."""
    (here,), (away,) = see(1, False, False), see(1, True, False)
    print("optimizer state of one replica between updates; in memory / --offload-optimizer")
    print(f"  state                           {here.state / 1e6:7.1f} / {away.state / 1e6:6.1f} MB")
    print(f"  of it resident                  {_spared(here.resident, away.resident)}")
    print(f"  resident memory of the process  {_less(here.process, away.process)}")
    print(
        f"  in the system's cache           {here.cached / 1e6:7.1f} / {away.cached / 1e6:6.1f} MB"
    )
    print("the same after a checkpoint was saved, with --offload-optimizer")
    print(
        f"  state resident after the copy   {away.read_in / 1e6:7.1f} MB, after a rest "
        f"{away.rested / 1e6:.1f} MB"
    )
    print(f"  the copy kept for the next save {away.copy_kept / 1e6:+7.1f} MB of the process")
    print(f"  the copy given back             {away.copy_given_back / 1e6:+7.1f} MB")


def _less(before: int, after: int) -> str:
    return f"{before / 1e6:7.1f} → {after / 1e6:6.1f} MB: {(before - after) / 1e6:.1f} MB less"


def compare_shards(see: "partial[list[Seen]]", counts: list[int]) -> None:
    """The replica with most state, against one replica alone."""
    print("optimizer state per replica with --enable-optimizer-rts; resident / with offload too")
    alone = see(1, False, False)[0].state
    for replicas in counts:
        here, away = see(replicas, False, True), see(replicas, True, True)
        most = max(one.state for one in here)
        resident, left = (max(one.resident for one in seen) for seen in (here, away))
        print(
            f"  {replicas} replicas: {most / 1e6:6.1f} MB, {alone / most:.3f} times less; resident "
            f"{resident / 1e6:.1f} / {left / 1e6:.1f} MB"
        )
        assert sum(one.state for one in here) == alone, "shards make up the whole"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path(), help="where the mapped file lies")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4])
    own = options_of(parser, {"image": 32, "batch": 1, "model": "resnet8", "replicas": [2]})
    compare_activations(own.model, own.image, own.batch)
    see = partial(see_replicas, own.folder, own.model)
    compare_homes(see)
    compare_shards(see, own.replicas)


if __name__ == "__main__":
    main()
