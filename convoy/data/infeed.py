"""Infeed: the elements of a dataset, prefetched in the background, for loops and pipelines.

An element is a tensor, a tuple or a dictionary of tensors. All elements have the same structure,
shapes and dtypes. With replicas, each replica receives every n-th element.
"""

from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import islice
from queue import Full, Queue
from threading import Event, Thread
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from convoy.errors import DataError

Element: TypeAlias = Tensor | tuple[Any, ...] | dict[str, Any]

MAX_PREFETCH_DEPTH = 255
_POLL_SECONDS = 0.1  # between checks whether the consumer is gone


class InfeedExhaustedError(DataError, IndexError):
    """A loop asks for more elements than the dataset has."""


class _End:
    """Marks the end of the elements, or the error that ended them."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error


class Infeed:
    """Feeds the elements of a dataset to `repeat`, `while_loop` or a pipeline.

    Args:
        dataset: An iterable of elements, a `torch.utils.data.Dataset` or `DataLoader`, or arrays
            with the same first dimension (one array, a tuple or a dictionary of them).
        prefetch_depth: Number of elements that are prepared ahead, 1 to 255. The background
            thread blocks while this many elements are queued.
        device: Where the elements are needed.
        replica: Index of this replica.
        replicas: Number of replicas, which receive different elements.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        prefetch_depth: int = 1,
        device: torch.device | str = "cpu",
        replica: int = 0,
        replicas: int = 1,
    ) -> None:
        if not 1 <= prefetch_depth <= MAX_PREFETCH_DEPTH:
            raise ValueError(
                f"prefetch_depth must be between 1 and {MAX_PREFETCH_DEPTH}, got {prefetch_depth}"
            )
        if not 0 <= replica < replicas:
            raise ValueError(f"replica must be between 0 and {replicas - 1}, got {replica}")
        self._dataset = dataset
        self._depth = prefetch_depth
        self._device = torch.device(device)
        self._replica, self._replicas = replica, replicas
        self._position = 0  # elements that this replica has received
        self._first: Element | None = None
        self._queue: Queue[Element | _End] = Queue(prefetch_depth)
        self._stopped = Event()
        self._thread: Thread | None = None

    def next(self) -> Element:
        """The next element, on the device. Called by loops and pipelines, not by the user.

        Raises InfeedExhaustedError at the end of the dataset.
        """
        if self._thread is None:
            self._start()
        element = self._queue.get()
        if isinstance(element, _End):
            self._queue.put(element)  # for the next call
            if element.error is not None:
                raise element.error
            raise InfeedExhaustedError(
                f"the dataset ended after {self._position} elements; repeat it, or run fewer "
                "iterations"
            )
        self._position += 1
        on_device: Element = _to_device(element, self._device)
        return on_device

    def state_dict(self) -> dict[str, int]:
        """The position: the number of elements received so far."""
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue after this many elements; the dataset must give the same ones again."""
        self.close()
        self._position = state["position"]

    def close(self) -> None:
        """Stop the background thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._queue, self._stopped = Queue(self._depth), Event()

    def _start(self) -> None:
        arguments = (self._elements(), self._queue, self._stopped)
        self._thread = Thread(target=_prefetch, args=arguments, name="infeed", daemon=True)
        self._thread.start()

    def _elements(self) -> Iterator[Element]:
        """The elements of this replica from its position on, checked against the first one."""
        start = self._position * self._replicas + self._replica
        for index, item in enumerate(islice(_iterate(self._dataset), start, None, self._replicas)):
            element = as_element(item)
            self._first = element if self._first is None else self._first
            check_same_form(element, self._first, f"element {self._position + index}")
            yield element


def _prefetch(elements: Iterator[Element], queue: "Queue[Element | _End]", stopped: Event) -> None:
    """Fill the queue; runs in a thread."""
    try:
        for element in elements:
            if not _put(queue, element, stopped):
                return
        _put(queue, _End(), stopped)
    except BaseException as error:  # raised again where the element is needed
        _put(queue, _End(error), stopped)


def _put(queue: "Queue[Element | _End]", value: "Element | _End", stopped: Event) -> bool:
    while not stopped.is_set():
        try:
            queue.put(value, timeout=_POLL_SECONDS)
            return True
        except Full:
            continue
    return False


def _iterate(dataset: Any) -> Iterator[Any]:
    """Iterate over what users call a dataset."""
    if isinstance(dataset, np.ndarray | Tensor):
        return iter(dataset)
    if isinstance(dataset, tuple | dict) and dataset:
        return _iterate_arrays(dataset)
    if isinstance(dataset, torch.utils.data.Dataset) and isinstance(dataset, Sized):
        return (dataset[index] for index in range(len(dataset)))
    if isinstance(dataset, Iterable):
        return iter(dataset)
    raise TypeError(
        f"an infeed needs a dataset, an iterable or arrays, got {type(dataset).__name__}"
    )


def _iterate_arrays(arrays: tuple[Any, ...] | dict[str, Any]) -> Iterator[Any]:
    values = list(arrays.values()) if isinstance(arrays, dict) else list(arrays)
    lengths = {len(value) for value in values}
    if len(lengths) != 1:
        raise ValueError(f"the arrays have different first dimensions: {sorted(lengths)}")
    for index in range(lengths.pop()):
        if isinstance(arrays, dict):
            yield {name: value[index] for name, value in arrays.items()}
        else:
            yield tuple(value[index] for value in arrays)


def as_element(item: Any) -> Element:
    """Convert arrays and numbers to tensors; a list becomes a tuple."""
    match item:
        case Tensor():
            return item
        case dict():
            return {str(name): as_element(value) for name, value in item.items()}
        case tuple() | list():
            return tuple(as_element(value) for value in item)
        case _:
            try:
                return torch.as_tensor(item)
            except (TypeError, ValueError, RuntimeError) as error:
                text = f"an element must be a tensor, an array or a number, got {item!r:.80}"
                raise TypeError(text) from error


def check_same_form(element: Any, first: Any, what: str) -> None:
    """Raise ValueError unless structure, shapes and dtypes are those of the first element."""
    if describe_form(element) != describe_form(first):
        raise ValueError(
            f"{what} is {describe_form(element)}, but the first one is {describe_form(first)}; "
            "all must have the same structure, shapes and dtypes (drop an incomplete last batch)"
        )


def describe_form(element: Any) -> str:
    """Structure, shapes and dtypes as text."""
    match element:
        case Tensor():
            return f"{tuple(element.shape)} {str(element.dtype).removeprefix('torch.')}"
        case dict():
            inner = ", ".join(f"{name}: {describe_form(value)}" for name, value in element.items())
            return f"{{{inner}}}"
        case tuple() | list():
            return f"[{', '.join(map(describe_form, element))}]"
        case _:
            return type(element).__name__


def _to_device(element: Any, device: torch.device) -> Any:
    match element:
        case Tensor():
            return element.to(device, non_blocking=True)
        case dict():
            return {name: _to_device(value, device) for name, value in element.items()}
        case _:
            return tuple(_to_device(value, device) for value in element)
