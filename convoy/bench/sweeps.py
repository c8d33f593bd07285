"""The `parameters` of a benchmark → sweeps: values by name, of which all combinations are meant.

Written as `name: 1,4,16` lines, as a list of such mappings that follow one another, or as a table:
a row of names, then rows of values, each of them one variant.
"""

from math import prod

from convoy.bench.definition import Sweep, combinations
from convoy.config.user_text import shown
from convoy.config.values import WrongType, as_words
from convoy.config.yaml_file import Entry

MOST_VARIANTS = 1000  # a slip of the keyboard makes more


def read_sweeps(entry: Entry) -> tuple[Sweep, ...]:
    """The sweeps of one benchmark; WrongType says what is wrong with them."""
    sweeps = tuple(_sweeps(entry))
    number = sum(prod(map(len, sweep.values())) for sweep in sweeps)
    if number > MOST_VARIANTS:
        raise WrongType(f"make {number:,} variants; at most {MOST_VARIANTS:,} are read")
    found = combinations(sweeps)
    for position, values in enumerate(found):
        if values in found[:position]:
            raise WrongType(f"give the same variant twice: {_listed(values)}")
    return sweeps


def scalar_text(entry: Entry) -> str:
    """A single value as a command line spells it."""
    if entry.value is None:
        raise WrongType("needs a value")
    if isinstance(entry.value, list | dict):
        raise WrongType("expects one value, got several")
    return as_words(entry.value)[0]


def _sweeps(entry: Entry) -> list[Sweep]:
    match entry.value:
        case None:
            return []
        case dict() as values:
            return [_sweep(values)]
        case list() as items if items and all(isinstance(one.value, dict) for one in items):
            return [_sweep(one.value) for one in items if isinstance(one.value, dict)]
        case list() as items if items and all(isinstance(one.value, list) for one in items):
            return _table([one.value for one in items if isinstance(one.value, list)])
    raise WrongType("expect `name: values` lines, or rows: the names first, then the values")


def _sweep(values: dict[str, Entry]) -> Sweep:
    return {name: _values(name, entry) for name, entry in values.items()}


def _values(name: str, entry: Entry) -> tuple[str, ...]:
    """`1,4,16` and `[1, 4, 16]` are the same list."""
    if isinstance(entry.value, list):
        parts = [scalar_text(one) for one in entry.value]
    else:
        parts = [part.strip() for part in scalar_text(entry).split(",")]
    if not parts or "" in parts:
        raise WrongType(f"give {shown(name)} an empty value")
    return tuple(parts)


def _table(rows: list[list[Entry]]) -> list[Sweep]:
    names, *lines = [[scalar_text(one) for one in row] for row in rows]
    if not lines:
        raise WrongType("have a row of names and no row of values")
    for line in lines:
        if len(line) != len(names):
            raise WrongType(f"have a row of {len(line)} values for {len(names)} names")
    return [{name: (value,) for name, value in zip(names, line, strict=True)} for line in lines]


def _listed(values: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
