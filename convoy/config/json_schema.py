"""The option table as a JSON Schema, with which an editor completes and checks a configuration.

Draft 7: the newest that every release of the YAML language server reads.
"""

from typing import Any

from convoy.config.described import choices, meaning
from convoy.config.fields import Option
from convoy.config.schema import option_table

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
