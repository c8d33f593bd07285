"""The import graph of the package, including imports inside functions."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

from support.code_rules import Module

Graph = dict[str, set[str]]


@dataclass(frozen=True)
class Import:
    """One module imports another, at load time or lazily inside a function."""

    importer: str
    imported: str
    lazy: bool

    def __str__(self) -> str:
        return f"{self.importer} → {self.imported}"


def package_of(name: str) -> str:
    """`data` for convoy.data.mix, `errors` for convoy.errors, nothing for convoy itself."""
    return name.partition(".")[2].partition(".")[0]


def find_imports(modules: list[Module]) -> list[Import]:
    """All imports of all modules."""
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
        return [alias.name for alias in statement.names]
    if statement.level:
        return ["(relative)"]  # the line does not contain its target
    origin = statement.module or ""
    full = [f"{origin}.{alias.name}" for alias in statement.names]
    return [name if name in known else origin for name in full]


def internal_imports(imports: list[Import]) -> list[Import]:
    return [item for item in imports if item.imported.partition(".")[0] == "convoy"]


def external_imports(imports: list[Import]) -> list[Import]:
    return [item for item in imports if item.imported.partition(".")[0] != "convoy"]


def import_graph(imports: list[Import]) -> Graph:
    graph: Graph = {}
    for item in internal_imports(imports):
        graph.setdefault(item.importer, set()).add(item.imported)
    return graph


def find_cycle(graph: Graph) -> list[str]:
    """Return modules that import each other in a cycle; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


SHORTEST_FILE = 40  # lines of a module with a single importer


def small_single_importer_modules(modules: list[Module], imports: list[Import]) -> list[str]:
    """Short modules with a single importer, except those of the command line."""
    importers: dict[str, set[str]] = {}
    for item in internal_imports(imports):
        importers.setdefault(item.imported, set()).add(item.importer)
    return [
        module.name
        for module in modules
        if len(module.text.splitlines()) < SHORTEST_FILE
        and len(importers.get(module.name, ())) == 1
        and not module.is_package
        and package_of(module.name) != "cli"
    ]
