"""JSON that can be trusted: no repeated keys, no NaN, no numbers or nesting without bound.

Comes in: bytes of unknown origin, or plain values. Goes out: plain values, or bytes that this
very reader accepts. Every problem is a ValueError with one line of text.
"""

import json
import math
from collections import Counter
from typing import TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"

BYTES_LIMIT = 2**20
_DEPTH_LIMIT = 32
_DIGITS_LIMIT = 20  # a 64-bit seed has at most 20 digits


def parse(data: bytes, bytes_limit: int = BYTES_LIMIT) -> JSON:
    """The value in these bytes."""
    if len(data) > bytes_limit:
        raise ValueError(f"{len(data):,} bytes of JSON, at most {bytes_limit:,} are read")
    try:
        value: JSON = json.loads(
            data.decode(),
            object_pairs_hook=_unique,
            parse_int=_bounded_int,
            parse_float=_finite_float,
            parse_constant=_refuse_constant,
        )
    except RecursionError:
        raise ValueError(f"JSON nested more than {_DEPTH_LIMIT} deep") from None
    except ValueError as error:
        raise ValueError(f"not the JSON expected here: {error}") from error
    _check_tree(value)
    return value


def encode(value: JSON) -> bytes:
    """Readable bytes with sorted keys; always the same for the same value."""
    try:
        data = json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"
    except (TypeError, RecursionError) as error:
        raise ValueError(f"cannot be written as JSON: {error}") from error
    parse(data)  # what could not be read again must not be written
    return data


def _unique(pairs: list[tuple[str, JSON]]) -> dict[str, JSON]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {repeated[:80]!r} appears twice")
    return found


def _bounded_int(text: str) -> int:
    # int() is quadratic in the digits, and a number this long is damage or malice.
    if len(text.lstrip("-")) > _DIGITS_LIMIT:
        raise ValueError(f"a whole number of {len(text)} digits, at most {_DIGITS_LIMIT} are read")
    return int(text)


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:40]} is not finite")
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _check_tree(root: JSON) -> None:
    """Bound the depth, and refuse strings that no file or terminal could take."""
    level: list[JSON] = [root]
    for _ in range(_DEPTH_LIMIT):
        for value in level:
            if isinstance(value, str):
                value.encode()  # half of a surrogate pair is a UnicodeEncodeError, a ValueError
        level = [child for value in level for child in _children(value)]
        if not level:
            return
    raise ValueError(f"JSON nested more than {_DEPTH_LIMIT} deep")


def _children(value: JSON) -> list[JSON]:
    match value:
        case list():
            return value
        case dict():
            return [*value, *value.values()]
        case _:
            return []
