"""Accumulate gradients in a different dtype than the weights, with an optimizer that casts them.

python examples/accumulator_dtype.py

The weights are bfloat16. A sum over many micro-batches in bfloat16 loses small gradients, so they
are summed in float32, and the optimizer receives them as float32. Adam needs gradients of the dtype
of the weights, so a subclass casts them.
"""

from typing import Any

import torch
from torch import nn

import convoy

MICRO_BATCHES = 32


class CastingAdam(torch.optim.Adam):
    """Adam that casts the gradients to the dtype of the weights."""

    received: torch.dtype | None = None

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for weight in group["params"]:
                self.received = weight.grad.dtype
                weight.grad = weight.grad.to(weight.dtype)
        return super().step(closure)


def main(updates: int = 10) -> tuple[torch.dtype | None, list[float]]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).bfloat16()
    optimizer = CastingAdam(network.parameters(), lr=0.01)
    outfeed = convoy.Outfeed()
    pipeline = convoy.pipeline(
        [network[:2], network[2]],
        convoy.Infeed(torch.randn(updates * MICRO_BATCHES, 8, 16).bfloat16()),
        outfeed,
        gradient_accumulation=MICRO_BATCHES,
        repeat_count=updates,
        optimizer=optimizer,
        loss_fn=lambda outputs: (outputs - 1).square().mean(),
        accumulator_dtype=torch.float32,
        outfeed_loss=True,
        accumulate_outfeed=True,
        accumulate_outfeed_dtype=torch.float32,
    )
    pipeline()
    losses = [float(total) / MICRO_BATCHES for total in outfeed.dequeue()]
    print(f"weights {network[0].weight.dtype}, gradients {optimizer.received}")
    print(f"loss {losses[0]:.3f} → {losses[-1]:.3f}")
    return optimizer.received, losses


if __name__ == "__main__":
    main()
