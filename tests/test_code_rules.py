"""Each code rule reports minimal bad examples and accepts good ones."""

import pytest
from support.code_rules import (
    Module,
    Rule,
    arguments_are_few,
    attributes_have_fixed_names,
    file_is_short,
    functions_are_short,
    keywords_are_not_passed_through,
    module_has_docstring,
    names_are_meaningful,
    names_of_tests_are_sentences,
    no_todo_comments,
    no_unsafe_loading,
    repeated_classes,
    signatures_are_annotated,
    violations,
)
from support.import_graph import Import, find_cycle, find_imports, small_single_importer_modules
from support.package_rules import forbidden_imports, forbidden_packages

BAD: list[tuple[Rule, str]] = [
    (file_is_short, "x = 1\n" * 501),
    (functions_are_short, "def f() -> None:\n" + "    x = 1\n" * 40),
    (functions_are_short, "class A:\n  def f() -> None:\n" + "    x = 1\n" * 40),
    (arguments_are_few, "def f(a, b, c, d, e, f, g): ..."),
    (arguments_are_few, "class A:\n  def f(self, a, b, c, *, d, e, f, g): ..."),
    (arguments_are_few, "def f(a, b, c, d, e, *f, **g): ..."),
    (signatures_are_annotated, "def f(a: int): ..."),
    (signatures_are_annotated, "def f(a) -> None: ..."),
    (signatures_are_annotated, "def f() -> None:\n  def g(*a) -> None: ..."),
    (module_has_docstring, "x = 1"),
    (module_has_docstring, '""" """\nx = 1'),
    (no_todo_comments, "x = 1  # TODO: two"),
    (no_todo_comments, '"""FIXME"""'),
    (attributes_have_fixed_names, "getattr(self, name)"),
    (attributes_have_fixed_names, "if hasattr(config, 'lr'): ..."),
    (attributes_have_fixed_names, "object.__setattr__(self, 'x', 1)"),
    (keywords_are_not_passed_through, "def f(**options: int) -> None:\n  g(1, **options)"),
    (no_unsafe_loading, "import pickle"),
    (no_unsafe_loading, "from pickle import loads"),
    (no_unsafe_loading, "def f() -> None:\n  import joblib.memory"),
    (no_unsafe_loading, "torch.load(path)"),
    (no_unsafe_loading, "torch.load(path, weights_only=False)"),
    (no_unsafe_loading, "torch.load(path, weights_only=safe)"),
    (no_unsafe_loading, "from torch import load"),
    (no_unsafe_loading, "eval(text)"),
    (no_unsafe_loading, "exec(text)"),
    (no_unsafe_loading, "subprocess.run(line, shell=True)"),
    (no_unsafe_loading, "subprocess.run(line, shell=enabled)"),
    (no_unsafe_loading, "np.load(path, allow_pickle=True)"),
    (names_are_meaningful, "class RunManager: ..."),
    (names_are_meaningful, "class BaseLayer: ..."),
    (names_are_meaningful, "def signal_handler() -> None: ..."),
    (names_are_meaningful, "class HTTPHelper: ..."),
    (names_of_tests_are_sentences, "def test_it() -> None: ..."),
    (names_of_tests_are_sentences, "def test_two_words() -> None: ..."),
]


@pytest.mark.parametrize(("rule", "text"), BAD, ids=[rule.__name__ for rule, _ in BAD])
def test_each_rule_reports_its_violation(rule: Rule, text: str) -> None:
    assert len(violations(rule, [Module("convoy.package.file", text)])) == 1


GOOD: list[tuple[Rule, Module]] = [
    (file_is_short, Module("convoy.config.sections.data", "x = 1\n" * 500)),
    (functions_are_short, Module("a", "def f() -> None:\n" + "    x = 1\n" * 39)),
    (arguments_are_few, Module("a", "class A:\n  def f(self, a, b, c, d, e, f): ...")),
    (signatures_are_annotated, Module("a", "class A:\n  def f(self, *a: int) -> None: ...")),
    (module_has_docstring, Module("a", "")),
    (attributes_have_fixed_names, Module("a", "hasattr(os, 'sched_getaffinity')")),
    (keywords_are_not_passed_through, Module("a", "def f(**o: int) -> None:\n  g(o)\nh(**o)")),
    (no_unsafe_loading, Module("a", "network.eval()\nrun(x, shell=False)\nstore.load(path)")),
    (names_are_meaningful, Module("convoy.package.baseline", "class Handlebar: ...")),
    (names_of_tests_are_sentences, Module("a", "def test_this_is_one() -> None: ...")),
]


@pytest.mark.parametrize(("rule", "module"), GOOD, ids=[rule.__name__ for rule, _ in GOOD])
def test_clean_code_has_no_violations(rule: Rule, module: Module) -> None:
    assert violations(rule, [module]) == []


@pytest.mark.parametrize("name", ["convoy.data.utils", "convoy.misc", "convoy.planning.common"])
def test_meaningless_module_names_are_reported(name: str) -> None:
    assert len(violations(names_are_meaningful, [Module(name, '"""One."""')])) == 1


def imports_in(name: str, text: str, *others: str) -> list[Import]:
    return find_imports([Module(name, text), *(Module(other, "") for other in others)])


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("convoy.planning.batch", "from convoy.data.loader import SampleOrder"),
        ("convoy.planning.batch", "import convoy.engine.trainer"),
        ("convoy.planning.batch", "def f():\n  from convoy.rng import key"),
        ("convoy.engine.trainer", "from convoy.report.log import Log"),
        ("convoy.parallel.slice", "if TYPE_CHECKING:\n  from convoy.layers.modules import Add"),
        ("convoy.layers.build", "from convoy import events"),
        ("convoy.cli.train", "from convoy.engine.trainer import Trainer"),
        ("convoy.cli.data", "from convoy.data.download import fetch"),
        ("convoy.errors", "from convoy.registry import suggest"),
        ("convoy", "from convoy.cli.main import main"),
    ],
)
def test_a_forbidden_import_is_reported(name: str, text: str) -> None:
    assert len(forbidden_imports(imports_in(name, text, "convoy.events"))) == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("convoy.cli.data", "def f():\n  from convoy.data.download import fetch"),
        ("convoy.cli.train", "def f():\n  from convoy.checkpoint.store import CheckpointStore"),
        ("convoy.planning.batch", "from convoy.planning import layers, stages"),
        ("convoy.registry", "from convoy.errors import ConfigError"),
        ("convoy.data.loader", "import torch"),
    ],
)
def test_an_allowed_import_is_not_a_violation(name: str, text: str) -> None:
    assert forbidden_imports(imports_in(name, text)) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("convoy.planning.topology", "import torch.nn"),
        ("convoy.config.rules", "def f():\n  from numpy import array"),
        ("convoy.events", "import yaml"),
        ("convoy.rng", "import torch"),
    ],
)
def test_a_forbidden_library_is_reported(name: str, text: str) -> None:
    assert len(forbidden_packages(imports_in(name, text))) == 1


def test_import_cycles_are_reported() -> None:
    acyclic = {"a": {"b", "d"}, "b": {"c"}, "c": {"d"}}

    assert find_cycle(acyclic) == []
    assert set(find_cycle({**acyclic, "d": {"b"}})) == {"b", "c", "d"}


def test_a_module_imported_from_its_package_counts_as_the_module() -> None:
    found = imports_in("convoy.a", "def f():\n  from convoy.b import c, D", "convoy.b.c")

    assert found == [
        Import("convoy.a", "convoy.b.c", lazy=True),
        Import("convoy.a", "convoy.b", lazy=True),
    ]
    assert imports_in("convoy.a", "from . import b")[0].imported == "(relative)"


def test_a_class_name_in_two_modules_is_reported() -> None:
    modules = [Module("convoy.a", "class A: ..."), Module("convoy.b", "class A: ...\nclass B: ...")]

    assert repeated_classes(modules) == ["A: convoy.a, convoy.b"]


@pytest.mark.parametrize(
    ("name", "lines", "importers", "count"),
    [
        ("convoy.a.b", 39, ["convoy.c"], 1),
        ("convoy.a.b", 40, ["convoy.c"], 0),
        ("convoy.a.b", 39, ["convoy.c", "convoy.d"], 0),
        ("convoy.cli.b", 39, ["convoy.c"], 0),
    ],
)
def test_a_small_module_with_a_single_importer_is_reported(
    name: str, lines: int, importers: list[str], count: int
) -> None:
    imports = [Import(importer, name, lazy=False) for importer in importers]

    assert len(small_single_importer_modules([Module(name, "x = 1\n" * lines)], imports)) == count
