"""Who imports whom in the house: every import, those inside functions too."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from house_rules import Module

Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Import:
    """One module asks for another, when it is loaded itself or later."""

    importer: str
    imported: str
    lazy: bool

    def __str__(self) -> str:
        return f"{self.importer} → {self.imported}"


def room_of(name: str) -> str:
    """`plan` for convoy.plan.topology, `errors` for convoy.errors, nothing for convoy itself."""
    return name.partition(".")[2].partition(".")[0]


def imports_of(modules: list[Module]) -> list[Import]:
    """All imports of all modules, of anything."""
    known = {module.name for module in modules}
    return [
        Import(module.name, name, lazy)
        for module in modules
        for statement, lazy in _statements(module.tree, lazy=False)
        for name in _names(statement, known)
    ]


def _statements(node: ast.AST, lazy: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, lazy
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from _statements(child, lazy or inside)


def _names(statement: ast.Import | ast.ImportFrom, known: set[str]) -> list[str]:
    """Full names; `from package import module` means the module."""
    if isinstance(statement, ast.Import):
        return [one.name for one in statement.names]
    if statement.level:
        return ["(relative)"]  # its target cannot be read off the line
    origin = statement.module or ""
    full = [f"{origin}.{one.name}" for one in statement.names]
    return [name if name in known else origin for name in full]


def own(imports: list[Import]) -> list[Import]:
    return [one for one in imports if one.imported.partition(".")[0] == "convoy"]


def foreign(imports: list[Import]) -> list[Import]:
    return [one for one in imports if one.imported.partition(".")[0] != "convoy"]


def graph_of(imports: list[Import]) -> Graph:
    graph: Graph = {}
    for one in own(imports):
        graph.setdefault(one.importer, set()).add(one.imported)
    return graph


def knot(graph: Graph) -> list[str]:
    """Modules that import each other in a ring; none is the aim."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


SHORTEST_FILE = 40  # lines of a module that only one other imports


def crumbs(modules: list[Module], imports: list[Import]) -> list[str]:
    """Modules that are shorter, have a single importer, and are no verb of the command line."""
    importers: dict[str, set[str]] = {}
    for one in own(imports):
        importers.setdefault(one.imported, set()).add(one.importer)
    return [
        module.name
        for module in modules
        if len(module.text.splitlines()) < SHORTEST_FILE
        and len(importers.get(module.name, ())) == 1
        and not module.is_package
        and room_of(module.name) != "cli"
    ]
