"""Loops that run a step many times without returning to the caller."""

import inspect
import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
import torch

from convoy.data.infeed import (
    Element,
    Infeed,
    as_element,
    check_count,
    describe_structure,
    has_same_structure,
)
from convoy.engine.outfeed import current_iteration, map_tensors

_loop_numbers = count()


def repeat(
    iterations: int,
    body: Callable[..., Any],
    inputs: Sequence[Any] = (),
    infeed: Infeed | None = None,
    *,
    compile: bool = False,
) -> Any:
    """Run `body` a number of times, and return the final carried values.

    Args:
        iterations: Number of iterations.
        body: Called with the carried values, followed by an element of the infeed: a tuple as
            positional arguments, a dictionary as keyword arguments. It returns the new carried
            values, as many as `inputs` and of the same types; without `inputs`, nothing.
        inputs: The initial carried values.
        infeed: Provides one element per iteration.
        compile: Compile `body` with `torch.compile`; on CUDA it is captured as a graph.

    Returns:
        The carried values, as one value or a tuple; None if there are none.
    """
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 0:
        raise ValueError(f"iterations must be an integer of at least 0, got {iterations!r}")
    step = _Step(body, inputs, infeed, compile)
    for _ in range(iterations):
        step.run()
    return step.result


def while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    inputs: Sequence[Any] = (),
    infeed: Infeed | None = None,
    *,
    maximum_iterations: int | None = None,
    compile: bool = False,
) -> Any:
    """Run `body` while a condition on the carried values is true.

    Args:
        condition: Called with the carried values only, not with an element of the infeed. It
            returns a bool or a tensor with one value, which is read before each iteration.
        body: As for `repeat`.
        inputs: As for `repeat`.
        infeed: As for `repeat`.
        maximum_iterations: Stop after this many iterations even if the condition is true.
        compile: As for `repeat`.
    """
    if maximum_iterations is not None:
        check_count("maximum_iterations", maximum_iterations, minimum=0)
    _check_callable("condition", condition)
    step = _Step(body, inputs, infeed, compile)
    _check_arguments(condition, "condition", len(step.carried), None)
    limit = range(maximum_iterations) if maximum_iterations is not None else count()
    for _ in limit:
        if not _is_true(condition(*step.carried)):
            break
        step.run()
    return step.result


def _check_callable(name: str, function: Any) -> None:
    if not callable(function):
        raise TypeError(f"{name} must be a function, got {type(function).__name__}")


def _is_true(value: Any) -> bool:
    """The value of a condition."""
    is_number = isinstance(value, bool | int | float | np.bool_ | np.number)
    if is_number or (isinstance(value, torch.Tensor | np.ndarray) and math.prod(value.shape) == 1):
        return bool(value)
    description = type(value).__name__
    if isinstance(value, torch.Tensor | np.ndarray):
        description = f"the shape {tuple(value.shape)}"
    raise TypeError(f"condition must return a bool or a tensor with one value, got {description}")


class _Step:
    """One iteration after the other."""

    def __init__(
        self, body: Callable[..., Any], inputs: Sequence[Any], infeed: Infeed | None, compile: bool
    ) -> None:
        if infeed is not None and not isinstance(infeed, Infeed):
            raise TypeError(f"infeed must be a convoy.Infeed, got {type(infeed).__name__}")
        _check_callable("body", body)
        values = inputs if isinstance(inputs, list | tuple) else (inputs,)
        self.carried = tuple(as_element(value) for value in values)
        self._infeed = infeed
        self._body = body
        self._replays_graph = compile and self._is_on_cuda()
        self._call: Callable[..., Any] = body
        if compile:
            # On CUDA this mode captures a graph and replays it (untested: no such device).
            mode = "reduce-overhead" if self._replays_graph else None
            self._call = torch.compile(body, mode=mode)
        self._loop, self._iteration = next(_loop_numbers), 0
        self._is_checked = False

    def _is_on_cuda(self) -> bool:
        tensors = [value for value in self.carried if isinstance(value, torch.Tensor)]
        devices = [tensor.device for tensor in tensors]
        if self._infeed is not None:
            devices.append(self._infeed.device)
        return any(device.type == "cuda" for device in devices)

    @property
    def result(self) -> Any:
        if not self.carried:
            return None
        return self.carried[0] if len(self.carried) == 1 else self.carried

    def run(self) -> None:
        element = None if self._infeed is None else self._infeed.next()
        if not self._is_checked:
            _check_arguments(self._body, "body", len(self.carried), element)
            self._is_checked = True
        args, kwargs = _split(element)
        token = current_iteration.set((self._loop, self._iteration))
        try:
            if self._replays_graph:
                torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
            returned = self._call(*self.carried, *args, **kwargs)
        finally:
            current_iteration.reset(token)
        self._iteration += 1
        self.carried = self._check_returned(returned)
        if self._replays_graph:  # the next replay overwrites the outputs of this one
            self.carried = tuple(map_tensors(torch.clone, value) for value in self.carried)

    def _check_returned(self, returned: Any) -> tuple[Any, ...]:
        """Check that the body returns the carried values, and nothing else."""
        values = () if returned is None else returned
        values = tuple(values) if isinstance(values, list | tuple) else (values,)
        if len(values) != len(self.carried):
            raise ValueError(
                f"body returned {len(values)} values, but the loop carries {len(self.carried)}"
            )
        converted = tuple(as_element(value) for value in values)
        for index, (new, old) in enumerate(zip(converted, self.carried, strict=True)):
            if not has_same_structure(new, old):
                raise TypeError(
                    f"body returned {describe_structure(new)} as carried value {index}, which was "
                    f"{describe_structure(old)} before"
                )
        return converted


def _split(element: Element | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An element as positional and keyword arguments."""
    match element:
        case None:
            return (), {}
        case dict():
            return (), element
        case tuple():
            return element, {}
        case _:
            return (element,), {}


def _check_arguments(
    function: Callable[..., Any], name: str, carried: int, element: Element | None
) -> None:
    """Raise TypeError, or ValueError for an unused infeed, unless the function can be called."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    args, kwargs = _split(element)
    try:
        signature.bind(*[None] * carried, *args, **kwargs)
    except TypeError as error:
        passed = f"{carried} carried values"
        if element is not None:
            passed += f" and an element {describe_structure(element)}"
            if _accepts(signature, carried):
                text = (
                    f"{name} has no argument for an element of the infeed; add one, or remove "
                    "the infeed"
                )
                raise ValueError(text) from error
        needed = ", ".join(signature.parameters) or "nothing"
        raise TypeError(f"{name} takes ({needed}), but got {passed}: {error}") from error


def _accepts(signature: inspect.Signature, positional: int) -> bool:
    try:
        signature.bind(*[None] * positional)
    except TypeError:
        return False
    return True
