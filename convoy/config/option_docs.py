"""Descriptions of options for help and docs, and the JSON Schema of configuration files."""

from collections import Counter
from typing import Any

from convoy.config.option import Option, Support, format_value
from convoy.config.schema import option_table
from convoy.config.sections.data import DATA
from convoy.config.sections.network import MODELS

_MAX_NAMES = 4  # models or datasets listed with the defaults they replace

# Short labels for a table column; JSON output has the full text.
SUPPORT_LABELS = {
    Support.EVERYWHERE: "any",
    Support.CUDA_ONLY: "CUDA",
    Support.UNSUPPORTED: "none (IPU only)",
}


def choices(row: Option) -> tuple[str, ...]:
    """The values an option can take; empty if they are not a closed list."""
    return tuple(MODELS) if row.name == "model" else row.limit.choices


def unavailable_choices(row: Option) -> list[Any] | bool | None:
    """The choices this version does not support; True: all but `available_values`."""
    words = (True, False) if row.value_type.base is bool else choices(row)
    if row.value_type.is_list or not words:
        return row.available_values is not None or None
    return [word for word in words if not row.is_available(word)] or None


def availability_as_text(row: Option) -> str:
    """A sentence on unavailable values; empty if there are none."""
    missing = unavailable_choices(row)
    if isinstance(missing, list):
        return f"Not available in this version: {', '.join(map(format_value, missing))}."
    values = row.available_values or ()
    usable = ["unset" if value in (None, ()) else format_value(value) for value in values]
    return f"Available in this version: {', '.join(usable)}." if missing else ""


def support_as_text(row: Option) -> str:
    """A sentence on where the option works; empty if it works on every device."""
    if row.no_counterpart:
        return f"No effect: {row.no_counterpart.rstrip('.')}."
    return f"On CUDA only: {row.cuda_effect}." if row.cuda_effect else ""


def default_as_text(row: Option) -> str:
    """The default, and the values with which models and datasets replace it.

    `5; shapes: 3; cifar10, cifar100: 20`, or `depends on --model` if many models have their own.
    """
    text = format_value(row.default)
    for flag, registry in (("--model", MODELS), ("--data", DATA)):
        names: dict[Any, list[str]] = {}
        for name in registry:
            value = registry[name].defaults.get(row.name, row.default)
            if value != row.default:
                names.setdefault(value, []).append(name)
        if sum(map(len, names.values())) > _MAX_NAMES:
            return f"depends on {flag}"
        notes = [f"{', '.join(group)}: {format_value(value)}" for value, group in names.items()]
        text = "; ".join([text, *notes])
    return text


def full_help(row: Option) -> str:
    """The help text, followed by what restricts the option."""
    parts = [row.help, support_as_text(row), availability_as_text(row)]
    return " ".join(part for part in parts if part)


def options_summary() -> str:
    """The number of options by support and availability."""
    rows = option_table().values()
    counts = Counter(row.support for row in rows)
    gaps = sum(unavailable_choices(row) is not None for row in rows)
    return (
        f"{len(rows)} options: {counts[Support.EVERYWHERE]} work on any device, "
        f"{counts[Support.CUDA_ONLY]} on CUDA only, {counts[Support.UNSUPPORTED]} have no "
        f"effect (IPU only); {gaps} have values that are not available in this version"
    )


Schema = dict[str, Any]

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
_BOUNDS = {"at_least": "minimum", "above": "exclusiveMinimum", "at_most": "maximum"}
_CONFIG_REF = {"$ref": "#/definitions/configuration"}


def json_schema() -> Schema:
    """The schema of a file with one configuration, or with several named ones.

    In a file with several, every value is a mapping. An empty file sets nothing. Editors resolve
    merge keys (`<<`), other validators see them.
    """
    parents = [_CONFIG_REF, {"type": "array", "items": _CONFIG_REF}]
    merged = {"description": "Mappings to merge into this one.", "anyOf": parents}
    options = {name: _property(row) for name, row in option_table().items()}
    configuration = {
        "type": ["object", "null"],
        "properties": {**options, "<<": merged},
        "additionalProperties": False,
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "convoy configuration",
        "description": "One mapping of options, or several named ones.",
        "if": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "object"}},
        "then": {"additionalProperties": _CONFIG_REF},
        "else": _CONFIG_REF,
        "definitions": {"configuration": configuration},
    }


def _property(row: Option) -> Schema:
    described = {"description": full_help(row), "default": row.default}
    item = _item(row, row.value_type.optional)
    if row.value_type.is_list:
        item = {"anyOf": [item, {"type": "array", "items": item}, {"type": "null"}]}
    return described | item


def _item(row: Option, optional: bool) -> Schema:
    """The schema of a single value, or of an item of a list."""
    unset: list[Any] = [None] if optional else []
    if words := choices(row):
        return {"enum": [*words, *unset]}
    type_name = _TYPES[row.value_type.base]
    limit = vars(row.limit)
    bounds = {word: limit[name] for name, word in _BOUNDS.items() if limit[name] is not None}
    length = {"minLength": 1} if row.value_type.base is str else {}
    return {"type": [type_name, "null"] if optional else type_name} | length | bounds
