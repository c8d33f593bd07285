"""The plan of the house as tables: which room may enter which, and use which packages."""

import sys

from house_imports import Import, foreign, own, room_of

WORDS = {"errors", "files", "registry", "text"}
PURE = {"config", "models", "plan", *WORDS}
LIVE = {*PURE, "batch", "machine", "rng"}
PARTS = {"data", "layers", "numerics", "optim", "parallel"}

# A package may always import from itself.
MAY_IMPORT = {
    "errors": set[str](),
    "text": set[str](),
    "files": {"errors"},
    "registry": {"errors"},
    "events": set[str](),
    "rng": set[str](),
    "batch": set[str](),
    "machine": WORDS,
    "config": WORDS,
    "dialects": {"config", *WORDS},
    "models": {"config", *WORDS},
    "plan": {"config", "models", *WORDS},
    "numerics": LIVE,
    "launch": LIVE,
    "layers": {*LIVE, "numerics"},
    "data": LIVE,
    "optim": {*LIVE, "numerics"},
    "parallel": {*LIVE, "numerics"},
    "engine": {*LIVE, *PARTS, "events"},
    "checkpoint": LIVE,
    "report": {*LIVE, "events"},
    "weights": {*LIVE, *PARTS, "checkpoint"},
    "run": {*LIVE, *PARTS, "engine", "report", "checkpoint", "weights", "launch", "events"},
    "bench": {*LIVE, *PARTS, "engine", "report", "launch", "run", "events"},
    "cli": {*PURE, "machine", "dialects", "run", "bench", "launch", "report"},
    "__main__": {"cli"},
}

# imports into packages that are closed otherwise; `lazy` ones inside a function only.
DOORS = {
    ("cli", "convoy"),  # its version
}
LAZY_DOORS = {
    ("cli", "convoy.checkpoint.store"),  # how far the weights of two runs are apart
    ("cli", "convoy.data.download"),  # downloading needs no run
    ("cli", "convoy.data.convert.conversion"),  # neither does converting
    ("cli", "convoy.data.convert.plan"),
    ("cli", "convoy.data.progress"),
    ("cli", "convoy.data.sources.open"),  # nor looking into a folder
    ("cli", "convoy.data.verify"),  # nor reading everything
}

# Packages from elsewhere that a package may use; those that are not named may use any.
MAY_USE = {
    "errors": set[str](),
    "text": set[str](),
    "files": set[str](),
    "registry": set[str](),
    "events": set[str](),
    "rng": {"numpy"},
    "machine": set[str](),
    "config": {"yaml"},
    "dialects": set[str](),
    "models": set[str](),
    "plan": set[str](),
    "report": {"rich", "matplotlib"},
    "cli": set[str](),
    "__main__": set[str](),
}


def closed_doors(imports: list[Import]) -> list[str]:
    """Imports from a room that its importer may not enter."""
    return [str(one) for one in own(imports) if not _is_open(one)]


def _is_open(one: Import) -> bool:
    room, other = room_of(one.importer), room_of(one.imported)
    door = (room, one.imported)
    return (
        (room == other and room != "")
        or other in MAY_IMPORT.get(room, set())
        or door in DOORS
        or (one.lazy and door in LAZY_DOORS)
    )


def unwanted_packages(imports: list[Import]) -> list[str]:
    """Packages from elsewhere in rooms that do without."""
    standard = sys.stdlib_module_names
    return [
        str(one)
        for one in foreign(imports)
        if one.imported.partition(".")[0]
        not in standard | MAY_USE.get(room_of(one.importer), {one.imported.partition(".")[0]})
    ]
