"""Train a pipeline of two stages; the labels pass through the first one.

python examples/pipeline.py                           both stages in one process
convoy launch --shards 2 examples/pipeline.py         a process for each stage
torchrun --nproc-per-node 2 examples/pipeline.py      the same
convoy launch --shards 2 --replicas 2 examples/pipeline.py

The first three print the same digest.
"""

import hashlib
import os

import torch
from torch import Tensor, nn

import convoy

MICRO_BATCHES = 8  # of an update, per replica


def main(updates: int = 20) -> str:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs = torch.randn(2 * updates * MICRO_BATCHES, 16, 8)  # for up to two replicas
    labels = (inputs[..., 0] > inputs[..., 1]).long()
    encoder, classifier = nn.Sequential(nn.Linear(8, 64), nn.ReLU()), nn.Linear(64, 2)

    def encode(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return encoder(inputs), labels

    def classify(features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        scores = classifier(features)
        loss = nn.functional.cross_entropy(scores, labels)
        return {"loss": loss, "accuracy": (scores.argmax(1) == labels).float().mean()}

    outfeed = convoy.Outfeed()
    parameters = [*encoder.parameters(), *classifier.parameters()]
    pipeline = convoy.pipeline(
        [encode, classify],
        convoy.Infeed((inputs, labels)),
        outfeed,
        gradient_accumulation=MICRO_BATCHES,
        repeat_count=updates,
        optimizer=torch.optim.SGD(parameters, lr=0.2, momentum=0.9),
        loss_fn=lambda loss, **_: loss,
        accumulate_outfeed=True,  # the sum over the micro-batches of an update
    )
    pipeline()
    pipeline.sync_modules()  # all processes get all weights
    loss, accuracy = (total[-1].mean() / MICRO_BATCHES for total in outfeed.dequeue().values())
    digest = hashlib.sha256(b"".join(p.detach().numpy() for p in parameters)).hexdigest()
    if os.environ.get("RANK", "0") == "0":
        print(f"{pipeline.draw()}\nloss {loss:.3f}, accuracy {accuracy:.1%}, weights {digest[:16]}")
    return digest


if __name__ == "__main__":
    main()
