"""Import rules: which package may import which, and which libraries it may use."""

import sys

from support.import_graph import Import, external_imports, internal_imports, package_of

BASE_MODULES = {"errors", "files", "registry", "text"}
TORCH_FREE = {"config", "models", "planning", *BASE_MODULES}
LIVE = {*TORCH_FREE, "batch", "machine", "rng"}
PARTS = {"data", "layers", "numerics", "optim", "parallel"}

# A package may always import from itself.
MAY_IMPORT = {
    "": {"api", "data", "engine", "errors"},  # the public names
    "errors": set[str](),
    "text": set[str](),
    "files": {"errors"},
    "registry": {"errors"},
    "events": set[str](),
    "rng": set[str](),
    "batch": set[str](),
    "machine": BASE_MODULES,
    "config": BASE_MODULES,
    "dialects": {"config", *BASE_MODULES},
    "models": {"config", *BASE_MODULES},
    "planning": {"config", "models", *BASE_MODULES},
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
    "api": {*TORCH_FREE, "batch", "data", "dialects", "engine", "run", "report", "events"},
    "cli": {*TORCH_FREE, "machine", "api", "dialects", "run", "bench", "launch", "report"},
    "__main__": {"cli"},
}

# Exceptions to the table; `lazy` ones only inside a function.
EXTRA_IMPORTS = {
    ("cli", "convoy"),  # its version
}
EXTRA_LAZY_IMPORTS = {
    ("cli", "convoy.checkpoint.store"),  # difference between the weights of two runs
    ("cli", "convoy.data.download"),  # downloading needs no run
    ("cli", "convoy.data.convert.conversion"),  # nor does converting
    ("cli", "convoy.data.convert.plan"),
    ("cli", "convoy.data.progress"),
    ("cli", "convoy.data.sources.open"),  # nor does inspecting a folder
    ("cli", "convoy.data.verify"),  # nor does verifying
}

# Libraries that a package may use; packages not listed may use any.
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
    "planning": set[str](),
    "report": {"rich"},
    "cli": set[str](),
    "__main__": set[str](),
}


def forbidden_imports(imports: list[Import]) -> list[str]:
    """Imports of packages that the importer may not import."""
    return [str(item) for item in internal_imports(imports) if not _is_allowed(item)]


def _is_allowed(item: Import) -> bool:
    importer, imported = package_of(item.importer), package_of(item.imported)
    exception = (importer, item.imported)
    return (
        (importer == imported and importer != "")
        or imported in MAY_IMPORT.get(importer, set())
        or exception in EXTRA_IMPORTS
        or (item.lazy and exception in EXTRA_LAZY_IMPORTS)
    )


def forbidden_packages(imports: list[Import]) -> list[str]:
    """Imports of libraries that the importing package may not use."""
    standard = sys.stdlib_module_names
    return [
        str(item)
        for item in external_imports(imports)
        if item.imported.partition(".")[0]
        not in standard | MAY_USE.get(package_of(item.importer), {item.imported.partition(".")[0]})
    ]
