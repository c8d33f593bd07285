"""The public API as text: every name, signature, attribute and field.

PYTHONPATH=tests python -m support.public_api    writes it to tests/golden/public_api.txt
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

import convoy
from convoy import errors, events
from convoy.api.keywords import RunOptions
from convoy.data.infeed import InfeedExhaustedError
from convoy.data.preprocessing import ImageTransform
from convoy.report.summary import Summary
from convoy.run.import_export import ExportResult
from convoy.run.prediction import ImageClassifier

GOLDEN = Path(__file__).parents[1] / "golden" / "public_api.txt"
UPDATE = "PYTHONPATH=tests python -m support.public_api"

# What users get from the functions, besides the classes that `convoy` exports.
RETURNED = (Summary, ExportResult, ImageClassifier, ImageTransform, InfeedExhaustedError)
# Classes that users create themselves; functions return the others.
_CONSTRUCTED = (convoy.DistributedOptimizer, convoy.Infeed, convoy.Outfeed, convoy.Run)
# Methods that operators and built-in functions call.
_SPECIAL = ("__call__", "__enter__", "__fspath__", "__iter__", "__len__", "forward")


def describe() -> str:
    """The whole API; one line for each parameter, so that a difference is easy to read."""
    lines: list[str] = []
    for name in convoy.__all__:
        if name != "__version__":
            lines += _describe(f"convoy.{name}", getattr(convoy, name))
    for value in RETURNED:
        lines += _describe(f"{value.__module__}.{value.__name__}", value)
    for event in get_args(events.Event):
        lines += _describe(f"convoy.events.{event.__name__}", event)
    for name, error in vars(errors).items():
        if inspect.isclass(error) and issubclass(error, errors.ConvoyError):
            lines.append(f"\nerror convoy.errors.{name}: code {error.code.value}")
    lines.append("\nkeyword options of convoy.train and other functions")
    options = inspect.get_annotations(RunOptions)
    lines += [f"    {name}: {_type(annotation)}" for name, annotation in sorted(options.items())]
    return "\n".join(lines).strip() + "\n"


def _describe(name: str, value: Any) -> Iterator[str]:
    if not inspect.isclass(value):
        yield f"\nfunction {name}"
        yield from _signature(value)
        return
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    yield f"\nclass {name}({bases})"
    if dataclasses.is_dataclass(value):
        yield from map(_field, dataclasses.fields(value))
    elif value in _CONSTRUCTED:
        yield from _signature(value.__init__)
    for key, member in sorted(_members(value).items()):
        yield from _member(key, member)


def _members(value: type) -> dict[str, Any]:
    """The public members that convoy defines, also in base classes."""
    members: dict[str, Any] = {}
    for owner in reversed(value.__mro__):
        if owner.__module__.startswith("convoy."):
            members |= vars(owner)
    fields = set(getattr(value, "__dataclass_fields__", ()))
    return {
        name: member
        for name, member in members.items()
        if name not in fields and (name in _SPECIAL or not name.startswith("_"))
    }


def _member(name: str, member: Any) -> Iterator[str]:
    match member:
        case property(fget=getter):
            yield f"    property {name} -> {_returned(getter)}"
        case cached_property(func=getter):
            yield f"    property {name} -> {_returned(getter)}"
        case classmethod() | staticmethod():
            yield f"    {type(member).__name__} {name}"
            yield from (f"    {line}" for line in _signature(member.__func__))
        case FunctionType():
            yield f"    method {name}"
            yield from (f"    {line}" for line in _signature(member))
        case _:
            yield f"    attribute {name}"


def _field(field: "dataclasses.Field[Any]") -> str:
    default = "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
    if field.default_factory is not dataclasses.MISSING:
        default = f" = {field.default_factory.__name__}()"
    return f"    field {field.name}: {_type(field.type)}{default}"


def _signature(function: Any) -> Iterator[str]:
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        kind = {
            parameter.VAR_POSITIONAL: "*",
            parameter.VAR_KEYWORD: "**",
            parameter.KEYWORD_ONLY: "keyword ",
        }.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        yield f"    {kind}{parameter.name}: {_type(parameter.annotation)}{default}"
    yield f"    -> {_returned(function)}"


def _returned(function: Any) -> str:
    return _type(inspect.signature(function).return_annotation)


def _type(annotation: Any) -> str:
    """The type without the modules of its names."""
    text = inspect.formatannotation(annotation).strip("'")
    text = re.sub(r"^\*<class '(.*)'>$", r"Unpack[\1]", text)  # of keyword options
    text = re.sub(r"numpy\.ndarray\[tuple\[.*?\], numpy\.dtype\[(.*?)\]\]", r"NDArray[\1]", text)
    return re.sub(r"\b[a-z_]+(\.[a-z_]+)*\.(?=[A-Za-z])", "", text)


if __name__ == "__main__":
    GOLDEN.write_text(describe(), encoding="utf-8")
