"""Read results while the program runs: a thread prints each loss while the loop continues.

python examples/streaming.py
"""

from threading import Thread

import torch
from torch import Tensor

import convoy


def main(iterations: int = 20) -> list[float]:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(iterations, 16, 4)
    infeed = convoy.Infeed((data, data.sum(2, keepdim=True)))
    outfeed = convoy.Outfeed(buffer_depth=4)  # the loop waits if nobody reads
    losses: list[float] = []

    def read() -> None:
        for loss in outfeed.stream():
            losses.append(float(loss))
            print(f"iteration {len(losses)}: loss {losses[-1]:.3f}")

    def step(inputs: Tensor, targets: Tensor) -> None:
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outfeed.enqueue(loss)

    reader = Thread(target=read)
    reader.start()
    convoy.repeat(iterations, step, infeed=infeed)
    outfeed.close()
    reader.join()
    return losses


if __name__ == "__main__":
    main()
