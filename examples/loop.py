"""A loop with an infeed and an outfeed: sums and differences of two vectors.

python examples/loop.py

While the loop runs, the caller receives only the results that it enqueues in the outfeed.
"""

import numpy as np
from torch import Tensor

import convoy


def main(iterations: int = 10) -> dict[str, Tensor]:
    vectors = np.ones((iterations, 20), np.float32)
    infeed = convoy.Infeed((vectors, vectors), prefetch_depth=2)
    outfeed = convoy.Outfeed()

    def body(counter: Tensor, left: Tensor, right: Tensor) -> Tensor:
        outfeed.enqueue({"sum": left + right, "difference": left - right})
        return counter + 1

    counter = convoy.repeat(iterations, body, [0], infeed)
    results = outfeed.dequeue()
    shapes = {name: tuple(tensor.shape) for name, tensor in results.items()}
    print(f"{int(counter)} iterations, results {shapes}")
    return results


if __name__ == "__main__":
    main()
