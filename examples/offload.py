"""Keep the optimizer state outside the device between updates.

python examples/offload.py

For a CPU the state is in memory-mapped files, for an accelerator in host memory. Offloading does
not change its values, so the weights are bitwise identical.
"""

import torch
from torch import Tensor, nn

import convoy


def train(offload: bool, updates: int) -> tuple[list[Tensor], torch.optim.Optimizer]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    stages = [nn.Sequential(nn.Linear(256, 1024), nn.ReLU()), nn.Linear(1024, 256)]
    weights = [weight for stage in stages for weight in stage.parameters()]
    optimizer = torch.optim.Adam(weights, lr=1e-3)
    pipeline = convoy.pipeline(
        stages,
        convoy.Infeed(torch.randn(updates * 4, 8, 256)),
        gradient_accumulation=4,
        repeat_count=updates,
        optimizer=optimizer,
        loss_fn=lambda outputs: outputs.square().mean(),
        offload_optimizer=offload,
    )
    pipeline()
    return weights, optimizer


def main(updates: int = 5) -> bool:
    weights, _ = train(False, updates)
    offloaded, optimizer = train(True, updates)
    state = [value for values in optimizer.state.values() for value in values.values()]
    print(f"{sum(value.nbytes for value in state) / 1e6:.1f} MB of state are outside the device")
    same = all(map(torch.equal, weights, offloaded))
    print("same weights as without offload:", same)
    return same


if __name__ == "__main__":
    main()
