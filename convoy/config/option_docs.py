"""What there is to say about an option beside its help: choices, support, and the JSON Schema of
the whole table.
"""

from typing import Any

from convoy.config.catalog import MODELS
from convoy.config.option import Option, Support, spelled
from convoy.config.schema import option_table

# A column has little room; a reader of programs gets the whole words.
WHERE = {Support.HERE: "here", Support.CUDA: "CUDA", Support.NOWHERE: "nowhere"}


def choices(row: Option) -> tuple[str, ...]:
    """The closed list of words that an option takes; empty if it takes others."""
    return tuple(MODELS) if row.name == "model" else row.declared.limit.choices


def not_available(row: Option) -> list[Any] | bool | None:
    """The choices that this version cannot carry out; True: all values but the `ready` ones."""
    words = (True, False) if row.kind.base is bool else choices(row)
    if row.kind.many or not words:
        return row.pending or None
    return [one for one in words if not row.is_ready(one)] or None


def availability_as_text(row: Option) -> str:
    """A sentence on what is missing, empty if nothing is."""
    missing = not_available(row)
    if missing is None:
        return ""
    if isinstance(missing, list):
        return f"Not available in this version: {', '.join(map(spelled, missing))}."
    usable = [_worded(one) for one in row.declared.ready or ()]
    return f"In this version only: {', '.join(usable)}."


def support_as_text(row: Option) -> str:
    """A sentence on where it works and what it does there, empty if it works here."""
    why = row.declared.why.rstrip(".")
    if row.declared.support is Support.CUDA:
        return f"On CUDA only: {why}."
    return f"No counterpart: {why}." if row.declared.support is Support.NOWHERE else ""


def meaning(row: Option) -> str:
    """Its help, and what restricts it."""
    parts = [row.declared.help, support_as_text(row), availability_as_text(row)]
    return " ".join(part for part in parts if part)


def summary() -> str:
    """How many options there are of each kind."""
    rows = option_table().values()
    here, cuda, nowhere = (
        sum(row.declared.support is reach for row in rows)
        for reach in (Support.HERE, Support.CUDA, Support.NOWHERE)
    )
    gaps = sum(not_available(row) is not None for row in rows)
    return (
        f"{len(rows)} options: {here} work here, {cuda} on CUDA only, {nowhere} without a "
        f"counterpart; {gaps} with values that are not available in this version"
    )


def _worded(value: Any) -> str:
    return "unset" if value in (None, ()) else spelled(value)


Schema = dict[str, Any]

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}
_BOUNDS = {"at_least": "minimum", "above": "exclusiveMinimum", "at_most": "maximum"}
_ONE = {"$ref": "#/definitions/configuration"}


def json_schema() -> Schema:
    """Of a file with one configuration, or with several by name: then every value is a mapping."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Configuration of convoy",
        "description": "One mapping of options, or several of them by name.",
        "if": {"type": "object", "minProperties": 1, "additionalProperties": {"type": "object"}},
        "then": {"additionalProperties": _ONE},
        "else": _ONE,
        "definitions": {"configuration": _configuration()},
    }


def _configuration() -> Schema:
    """An empty file sets nothing. Editors resolve merge keys, other checkers see them."""
    merged = {"description": "Mappings to start from.", "anyOf": [_ONE, _list_of(_ONE)]}
    options = {name: _property(row) for name, row in option_table().items()}
    return {
        "type": ["object", "null"],
        "properties": {**options, "<<": merged},
        "additionalProperties": False,
    }


def _property(row: Option) -> Schema:
    told = {"description": meaning(row), "default": row.default}
    if row.kind.many:
        item = _item(row, optional=False)
        return told | {"anyOf": [item, _list_of(item), {"type": "null"}]}
    return told | _item(row, row.kind.optional)


def _item(row: Option, optional: bool) -> Schema:
    """One value, or one item of a list."""
    unset: list[Any] = [None] if optional else []
    if words := choices(row):
        return {"enum": [*words, *unset]}
    kind = _TYPES[row.kind.base]
    limit = vars(row.declared.limit)
    bounds = {word: limit[name] for name, word in _BOUNDS.items() if limit[name] is not None}
    length = {"minLength": 1} if row.kind.base is str else {}
    return {"type": [kind, "null"] if optional else kind} | length | bounds


def _list_of(item: Schema) -> Schema:
    return {"type": "array", "items": item}
