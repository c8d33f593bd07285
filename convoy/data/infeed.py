"""Infeed: the elements of a dataset, prefetched in the background, for loops and pipelines.

An element is a tensor, a tuple or a dictionary of tensors. All elements have the same structure,
shapes and dtypes. With replicas, the elements are divided among them.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from convoy.data.loader import prefetch
from convoy.errors import DataError

Element: TypeAlias = Tensor | tuple[Any, ...] | dict[str, Any]

MAX_PREFETCH_DEPTH = 255


class InfeedExhaustedError(DataError, IndexError):
    """A loop asks for more elements than the dataset has."""


@dataclass(frozen=True)
class InfeedShare:
    """The elements that a replica receives: blocks of consecutive ones, the replicas in turn."""

    replica: int = 0
    replicas: int = 1
    block: int = 1

    def index(self, position: int) -> int:
        """The index in the dataset of the element at a position of this replica."""
        number, offset = divmod(position, self.block)
        return (number * self.replicas + self.replica) * self.block + offset

    def includes(self, index: int) -> bool:
        return index // self.block % self.replicas == self.replica

    @classmethod
    def of_process(cls) -> "InfeedShare":
        """One replica per process of torch.distributed, if it is initialized."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()


class Infeed:
    """Feeds the elements of a dataset to `repeat`, `while_loop` or a pipeline.

    Args:
        dataset: An iterable of elements, a `torch.utils.data.Dataset` or `DataLoader`, or arrays
            with the same first dimension (one array, a tuple or a dictionary of them).
        prefetch_depth: Number of elements that are prepared ahead, 1 to 255. The background
            thread waits while this many elements are ready.
        device: Device to move the elements to; a pipeline moves them to its first stage.
        replica: Index of this replica, which receives every `replicas`-th element. By default the
            processes of torch.distributed are the replicas, or a pipeline decides.
        replicas: Number of replicas.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        prefetch_depth: int = 1,
        device: torch.device | str = "cpu",
        replica: int | None = None,
        replicas: int | None = None,
    ) -> None:
        check_count("prefetch_depth", prefetch_depth, maximum=MAX_PREFETCH_DEPTH)
        self._share: InfeedShare | None = None
        if replica is not None or replicas is not None:
            self._share = _checked_share(replica, replicas)
        self.is_share_given = self._share is not None
        self._dataset = dataset
        self._depth = prefetch_depth
        self.device = _checked_device(device)
        self._is_started = False
        self._position = 0  # elements that this replica has received
        self._start = 0  # elements that all replicas received before the loaded state
        self._first: Element | None = None
        self._peeked: Element | None = None  # read, but not yet received
        self._elements: Generator[Element | None] | None = None

    def next(self) -> Element:
        """The next element, on the device. Called by loops and pipelines, not by the user.

        Raises InfeedExhaustedError at the end of the dataset.
        """
        element = self.peek()
        self._position += 1
        self._peeked = None
        return element

    def peek(self) -> Element:
        """The element that `next` returns, without receiving it."""
        if self._peeked is None:
            element = self._read()
            if element is None:
                raise InfeedExhaustedError(
                    f"the dataset ended after {self._position} elements; repeat it, or run fewer "
                    "iterations"
                )
            moved: Element = to_device(element, self.device)
            self._peeked = moved
        return self._peeked

    def skip(self) -> None:
        """Count an element that another process of this replica receives."""
        self.close()
        self._position += 1

    def assign(self, share: InfeedShare) -> None:
        """Choose the elements of this replica, before the first one is received."""
        if self._elements is not None and share != self._share:
            raise ValueError("this infeed has been used with other replicas; create another one")
        self._share = share

    def state_dict(self) -> dict[str, int]:
        """The position: the number of elements received so far by all replicas together."""
        replicas = 1 if self._share is None else self._share.replicas
        return {"position": self._start + self._position * replicas}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue at a saved position; the dataset must return the same elements again.

        The number of replicas may have changed.
        """
        position = state.get("position") if isinstance(state, Mapping) else None
        if isinstance(position, bool) or not isinstance(position, int) or position < 0:
            raise ValueError(f"an infeed needs the position of state_dict(), got {state!r:.80}")
        self.close()
        self._start, self._position = position, 0

    def close(self) -> None:
        """Stop the background thread."""
        if self._elements is not None:
            self._elements.close()
        self._elements = self._peeked = None

    def _read(self) -> Element | None:
        """The next element; None after the last one."""
        if self._elements is None:
            self._share = self._share or InfeedShare.of_process()
            self._elements = prefetch(self._jobs(self._share), workers=1, depth=self._depth)
        return next(self._elements, None)

    def _jobs(self, share: InfeedShare) -> Iterator[Callable[[], Element | None]]:
        """Functions that read the elements of this replica, one after the other, in a thread."""
        length = _length(self._dataset)
        if length is not None:
            for position in count(self._position):
                index = self._start + share.index(position)
                if index >= length:
                    return
                yield partial(self._read_index, index)
        if not isinstance(self._dataset, Iterable):
            name = type(self._dataset).__name__
            raise TypeError(f"an infeed needs a dataset, an iterable or arrays, got {name}")
        selected = self._select(share)
        while True:
            yield partial(self._read_next, selected)

    def _select(self, share: InfeedShare) -> Iterator[tuple[int, Any]]:
        """The elements of this replica from its position on, of a dataset that is iterated."""
        if isinstance(self._dataset, Iterator) and self._is_started:
            raise ValueError(
                "an iterator cannot be read again from the start; give the infeed a dataset or an "
                "object that creates a new iterator each time"
            )
        self._is_started = True
        first = share.index(self._position)
        # An iterator may use the memory of an element again for the next one.
        is_stored = isinstance(self._dataset, list | torch.utils.data.DataLoader)
        for index, item in enumerate(self._dataset):
            number = index - self._start
            if number >= first and share.includes(number):
                yield index, item if is_stored else _copied(item)

    def _read_index(self, index: int) -> Element:
        return self._check(index, _get(self._dataset, index))

    def _read_next(self, selected: Iterator[tuple[int, Any]]) -> Element | None:
        for index, item in selected:
            return self._check(index, item)
        return None

    def _check(self, index: int, item: Any) -> Element:
        element = as_element(item)
        self._first = element if self._first is None else self._first
        check_same_structure(element, self._first, f"element {index}")
        return element


def check_count(name: str, value: Any, minimum: int = 1, maximum: int | None = None) -> None:
    """Raise TypeError unless an argument is an integer, ValueError unless it is in its range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if maximum is not None and not minimum <= value <= maximum:
        raise ValueError(f"{name} must be between {minimum} and {maximum}, got {value}")
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")


def _checked_device(device: torch.device | str) -> torch.device:
    try:
        checked = torch.device(device)
        torch.empty(0, device=checked)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # as torch has it
        raise ValueError(f"device {device!r} is not available: {error}") from error
    return checked


def _checked_share(replica: int | None, replicas: int | None) -> InfeedShare:
    if replica is None or replicas is None:
        raise ValueError("replica and replicas must be given together")
    check_count("replicas", replicas)
    check_count("replica", replica, minimum=0)
    if not 0 <= replica < replicas:
        raise ValueError(f"replica must be between 0 and {replicas - 1}, got {replica}")
    return InfeedShare(replica, replicas)


def _length(dataset: Any) -> int | None:
    """The number of elements of a dataset that can be indexed; None for other datasets."""
    match dataset:
        case dict():
            return _first_dimension(dataset.values())
        case tuple():
            return _first_dimension(dataset)
        case np.ndarray() | Tensor():
            return _first_dimension([dataset])
        case torch.utils.data.IterableDataset():  # it may have a length, but no items
            return None
        case torch.utils.data.Dataset() if isinstance(dataset, Sized):
            return len(dataset)
    return None


def _get(dataset: Any, index: int) -> Any:
    match dataset:
        case dict():
            return {name: value[index] for name, value in dataset.items()}
        case tuple():
            return tuple(value[index] for value in dataset)
    return dataset[index]


def _first_dimension(arrays: Iterable[Any]) -> int:
    values = list(arrays)
    if not values or not all(map(_has_length, values)):
        raise TypeError("a tuple or dictionary of an infeed must contain arrays with a length")
    lengths = {len(value) for value in values}
    if len(lengths) != 1:
        raise ValueError(f"the arrays have different first dimensions: {sorted(lengths)}")
    return lengths.pop()


def _has_length(value: Any) -> bool:
    return isinstance(value, Sized) and not (isinstance(value, Tensor) and not value.dim())


def _copied(item: Any) -> Any:
    """Copy tensors and arrays, in tuples, lists and dictionaries too."""
    match item:
        case Tensor():
            return item.clone()
        case np.ndarray():
            return item.copy()
        case dict():
            return {name: _copied(value) for name, value in item.items()}
        case tuple() | list():
            return tuple(map(_copied, item))
    return item


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
                return torch.as_tensor(_with_strides_of_torch(item))
            except (TypeError, ValueError, RuntimeError) as error:
                text = f"an element must be a tensor, an array or a number, got {item!r:.80}"
                raise TypeError(text) from error


def _with_strides_of_torch(item: Any) -> Any:
    """Copy an array with negative strides, such as a flipped image: torch has none."""
    if isinstance(item, np.ndarray) and any(stride < 0 for stride in item.strides):
        return item.copy()
    return item


def check_same_structure(element: Any, first: Any, what: str) -> None:
    """Raise ValueError unless structure, shapes and dtypes are those of the first element."""
    if not has_same_structure(element, first):
        structure, expected = describe_structure(element), describe_structure(first)
        raise ValueError(
            f"{what} is {structure}, but the first one is {expected}; "
            "all must have the same structure, shapes and dtypes (drop an incomplete last batch)"
        )


def has_same_structure(element: Any, other: Any) -> bool:
    """Whether structure, shapes and dtypes are equal. Called in every iteration of a loop."""
    match element:
        case Tensor():
            is_tensor = isinstance(other, Tensor)
            return is_tensor and element.shape == other.shape and element.dtype == other.dtype
        case dict():
            is_like = isinstance(other, dict) and [*element] == [*other]
            return is_like and all(
                has_same_structure(element[name], other[name]) for name in element
            )
        case tuple() | list():
            is_like = isinstance(other, tuple | list) and len(element) == len(other)
            return is_like and all(map(has_same_structure, element, other))
        case _:
            return type(element) is type(other)


def describe_structure(element: Any) -> str:
    """Structure, shapes and dtypes as text."""
    match element:
        case Tensor():
            return f"{tuple(element.shape)} {str(element.dtype).removeprefix('torch.')}"
        case dict():
            inner = ", ".join(
                f"{name}: {describe_structure(value)}" for name, value in element.items()
            )
            return f"{{{inner}}}"
        case tuple() | list():
            return f"[{', '.join(map(describe_structure, element))}]"
        case _:
            return type(element).__name__


def to_device(element: Any, device: torch.device) -> Any:
    match element:
        case Tensor():
            return element.to(device, non_blocking=True)
        case dict():
            return {name: to_device(value, device) for name, value in element.items()}
        case _:
            return tuple(to_device(value, device) for value in element)
