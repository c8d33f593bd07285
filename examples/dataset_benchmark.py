"""Measure how fast a dataset delivers its elements.

python examples/dataset_benchmark.py
"""

import json

import torch

import convoy


def main(epochs: int = 3, elements: int = 100) -> dict[str, list[dict[str, float]]]:
    images, labels = torch.zeros(epochs * elements, 3, 32, 32), torch.zeros(epochs * elements)
    dataset = torch.utils.data.TensorDataset(images, labels)
    result = convoy.dataset_benchmark(dataset, epochs, elements)
    print(json.dumps(result, indent=1))
    return result


if __name__ == "__main__":
    main()
