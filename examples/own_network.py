"""Train your own network over two pipeline stages and two replicas; stop it, and resume it.

python examples/own_network.py

A stage can start at any layer of a torch.nn.Sequential. Batch norm and dropout are replaced by
convoy's layers, so the weights are bitwise identical to those of a run on one device.
"""

from torch import Tensor, nn

import convoy


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Dropout(0.1),
        )

    def forward(self, images: Tensor) -> Tensor:
        return images + self.body(images)


def make_network(num_classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        Block(16),
        Block(16),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, num_classes),
    )


def main(output: str = "runs/own-network", **options: object) -> None:
    layout = {"shards": 2, "replicas": 2, "gradient_accumulation": 4}
    settings = {"epochs": 1, "image_size": 16, "samples": 2048, "micro_batch_size": 8, **options}
    stopped = convoy.train(model=make_network, output=output, stop_after=10, **layout, **settings)
    print(f"stopped after {stopped.summary.updates} updates: {stopped.checkpoints[-1]}")

    run = convoy.resume(stopped, model=make_network)
    print(f"{run.summary.layout}: top-1 {run.summary.top1:.1%}, {run.summary.weights_sha256}")


if __name__ == "__main__":
    main()
