"""The plan of the house as tables: which room may enter which, and use which packages."""

import sys

from house_imports import Import, foreign, own, room_of

WORDS = {"errors", "registry"}
PURE = {"config", "plan", *WORDS}
LIVE = {*PURE, "chance", "moment"}
ROOMS = {"models", "data", "numerics", "optim", "parallel", "engine", "checkpoint", "report"}
GATES = {"weights"}  # to other programs

# A room may always import from itself.
MAY_IMPORT = {
    "errors": set[str](),
    "registry": {"errors"},
    "events": set[str](),
    "chance": set[str](),
    "moment": set[str](),
    "faults": {"errors", "events"},
    "config": WORDS,
    "plan": PURE,
    "bench": PURE,
    "models": LIVE,
    "data": LIVE,
    "numerics": LIVE,
    "launch": LIVE,
    "optim": {*LIVE, "numerics"},
    "parallel": {*LIVE, "numerics"},
    "engine": {*LIVE, "data", "numerics", "optim", "parallel", "events"},
    "checkpoint": LIVE,
    "weights": {*LIVE, "checkpoint"},
    "report": {*LIVE, "events"},
    "assemble": {*LIVE, *ROOMS, *GATES, "launch", "events", "faults"},
    "cli": {*PURE, "assemble", "bench", "launch", "report"},
    "__main__": {"cli"},
}

# Single doors into rooms that are closed otherwise; `lazy` ones open inside a function only.
DOORS = {
    ("cli", "convoy"),  # its version
    ("cli", "convoy.engine.stopping"),  # what a signal asks for
}
LAZY_DOORS = {
    ("cli", "convoy.data.fetch"),  # downloading needs no assembly
    ("cli", "convoy.data.convert.conversion"),  # neither does converting
    ("cli", "convoy.data.convert.wish"),
    ("cli", "convoy.data.hearing"),
    ("cli", "convoy.data.verify.verification"),  # nor reading everything
}

# Packages from elsewhere that a room may use; rooms that are not named may use any.
MAY_USE = {
    "errors": set[str](),
    "registry": set[str](),
    "events": set[str](),
    "faults": set[str](),
    "chance": {"numpy"},
    "moment": set[str](),
    "config": {"yaml"},
    "plan": set[str](),
    "bench": set[str](),
    "report": {"rich", "matplotlib", "PIL"},
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
