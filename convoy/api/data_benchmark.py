"""Measure how fast a dataset or an infeed delivers its elements."""

from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from convoy.data.infeed import Infeed, check_count


def dataset_benchmark(
    dataset: Any,
    epochs: int,
    elements_per_epoch: int,
    *,
    print_stats: bool = True,
    copy: bool = True,
) -> dict[str, list[dict[str, float]]]:
    """Consume a dataset as fast as possible, in one thread.

    Args:
        dataset: As for `Infeed`.
        epochs: Number of measurements.
        elements_per_epoch: Elements of each; an element is a batch if the dataset is batched.
        print_stats: Print the speed of each epoch.
        copy: Copy each element into a buffer, as a transfer to a device does.

    Returns:
        A dictionary with the key `epochs`, a list of dictionaries with the keys
        `elements_processed`, `total_bytes_processed`, `time_elapsed`, `elements_per_second` and
        `bandwidth` (in GB/s).
    """
    infeed = Infeed(dataset)
    try:
        return infeed_benchmark(
            infeed, epochs, elements_per_epoch, print_stats=print_stats, copy=copy
        )
    finally:
        infeed.close()


def infeed_benchmark(
    infeed: Infeed,
    epochs: int,
    elements_per_epoch: int,
    *,
    print_stats: bool = True,
    copy: bool = True,
) -> dict[str, list[dict[str, float]]]:
    """Consume an infeed as fast as possible; the arguments are those of `dataset_benchmark`."""
    if not isinstance(infeed, Infeed):
        raise TypeError(f"infeed must be a convoy.Infeed, got {type(infeed).__name__}")
    for name, value in (("epochs", epochs), ("elements_per_epoch", elements_per_epoch)):
        check_count(name, value)
    rows = []
    for epoch in range(1, epochs + 1):
        row = _measure(infeed, elements_per_epoch, copy)
        rows.append(row)
        if print_stats:
            speed, bandwidth = row["elements_per_second"], row["bandwidth"]
            print(f"epoch {epoch}: {speed:,.1f} elements/s, {bandwidth:.3f} GB/s")
    return {"epochs": rows}


def _measure(infeed: Infeed, elements: int, copy: bool) -> dict[str, float]:
    buffers: list[Tensor] = []
    num_bytes = 0
    start = perf_counter()
    for _ in range(elements):
        tensors = _tensors(infeed.next())
        num_bytes += sum(tensor.nbytes for tensor in tensors)
        if copy:
            buffers = buffers or [torch.empty_like(tensor) for tensor in tensors]
            for buffer, tensor in zip(buffers, tensors, strict=True):
                buffer.copy_(tensor)
    seconds = perf_counter() - start
    return {
        "elements_processed": float(elements),
        "total_bytes_processed": float(num_bytes),
        "time_elapsed": seconds,
        "elements_per_second": elements / seconds,
        "bandwidth": num_bytes / (1e9 * seconds),
    }


def _tensors(element: Any) -> list[Tensor]:
    """The tensors of an element, in order."""
    if isinstance(element, Tensor):
        return [element]
    values = element.values() if isinstance(element, dict) else element
    return [tensor for value in values for tensor in _tensors(value)]
