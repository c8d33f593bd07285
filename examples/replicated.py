"""Data-parallel training in a hand-written loop: gradients are averaged over the replicas.

python examples/replicated.py                           one replica
convoy launch --replicas 2 examples/replicated.py       two, each with half of the micro-batches
torchrun --nproc-per-node 2 examples/replicated.py      the same

An update always has eight micro-batches, so the losses are the same up to rounding.
"""

import os

import torch
from torch import Tensor, nn

import convoy

MICRO_BATCHES = 8


def main(updates: int = 10) -> Tensor:
    torch.manual_seed(0)
    replicas = int(os.environ.get("WORLD_SIZE", 1))
    inputs = torch.randn(updates * MICRO_BATCHES, 16, 8)
    targets = inputs.sum(2, keepdim=True)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = convoy.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        gradient_accumulation=MICRO_BATCHES // replicas,
        shard_optimizer=True,  # each replica stores the momentum of some of the parameters
    )
    infeed, outfeed = convoy.Infeed((inputs, targets)), convoy.Outfeed()

    def step(inputs: Tensor, targets: Tensor) -> None:
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()  # every MICRO_BATCHES // replicas steps, the weights are updated
        outfeed.enqueue(loss)

    convoy.repeat(updates * MICRO_BATCHES // replicas, step, infeed=infeed)
    losses = outfeed.dequeue().reshape(updates, -1).mean(1)  # of the results of all replicas
    if os.environ.get("RANK", "0") == "0":
        numbers = " ".join(f"{loss:.4f}" for loss in losses)
        print(f"{replicas} replicas, losses {numbers}")
    return losses


if __name__ == "__main__":
    main()
