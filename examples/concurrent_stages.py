"""Concurrent stages: two branches of a network run at the same time, on different devices.

python examples/concurrent_stages.py
convoy launch --shards 4 examples/concurrent_stages.py        a process for each branch and stage

The branches get the same arguments, and the next stage gets the outputs of both. The weights are
bitwise identical to those of a single stage that runs one branch after the other.
"""

import hashlib
import os

import torch
from torch import Tensor, nn

import convoy

MICRO_BATCHES = 6


def train(concurrent: bool, updates: int) -> str:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    stem = nn.Conv2d(3, 8, 1)
    narrow, wide = nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(8, 4, 5, padding=2)
    head = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 1))

    def one_after_the_other(features: Tensor) -> tuple[Tensor, Tensor]:
        return narrow(features), wide(features)

    def join(left: Tensor, right: Tensor) -> Tensor:
        return head(torch.cat([left, right], 1))

    weights = [*nn.ModuleList([stem, narrow, wide, head]).parameters()]
    pipeline = convoy.pipeline(
        [stem, [narrow, wide] if concurrent else one_after_the_other, join],
        convoy.Infeed(torch.randn(updates * MICRO_BATCHES, 4, 3, 8, 8)),
        gradient_accumulation=MICRO_BATCHES,
        repeat_count=updates,
        optimizer=torch.optim.SGD(weights, lr=0.1),
        loss_fn=lambda outputs: (outputs - 1).square().mean(),
    )
    pipeline()
    pipeline.sync_modules()
    digest = hashlib.sha256(b"".join(w.detach().numpy().tobytes() for w in weights)).hexdigest()
    if os.environ.get("RANK", "0") == "0":
        print(pipeline.draw(), f"weights {digest[:16]}\n", sep="\n")
    return digest


def main(updates: int = 5) -> list[str]:
    digests = [train(True, updates)]
    if "WORLD_SIZE" not in os.environ:
        digests.append(train(False, updates))
    return digests


if __name__ == "__main__":
    main()
