"""Architecture: which packages may import which, and rules for every file."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from support.code_rules import (
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
    read_modules,
    repeated_classes,
    signatures_are_annotated,
    violations,
)
from support.import_graph import (
    find_cycle,
    find_imports,
    import_graph,
    package_of,
    small_single_importer_modules,
)
from support.package_rules import MAY_IMPORT, forbidden_imports, forbidden_packages

ROOT = Path(__file__).parents[1]
MODULES = read_modules(ROOT, "convoy")
TESTS = [module for module in read_modules(ROOT, "tests") if ".test_" in module.name]
IMPORTS = find_imports(MODULES)

RULES = [
    file_is_short,
    functions_are_short,
    arguments_are_few,
    signatures_are_annotated,
    module_has_docstring,
    no_todo_comments,
    attributes_have_fixed_names,
    keywords_are_not_passed_through,
    no_unsafe_loading,
    names_are_meaningful,
]


def test_packages_import_only_allowed_packages() -> None:
    assert forbidden_imports(IMPORTS) == []


def test_every_package_has_import_rules() -> None:
    assert {package_of(module.name) for module in MODULES} - {""} - MAY_IMPORT.keys() == set()


def test_packages_use_only_allowed_libraries() -> None:
    assert forbidden_packages(IMPORTS) == []


def test_imports_are_written_in_full() -> None:
    assert [str(item) for item in IMPORTS if item.imported == "(relative)"] == []


def test_no_modules_import_each_other_in_a_cycle() -> None:
    assert find_cycle(import_graph(IMPORTS)) == []


def test_a_class_name_exists_once() -> None:
    assert repeated_classes(MODULES) == []


def test_no_small_module_has_a_single_importer() -> None:
    """Such a module belongs in its importer; modules of the command line may be short."""
    assert small_single_importer_modules(MODULES, IMPORTS) == []


def test_backward_passes_run_in_the_executor_only() -> None:
    """There is one engine: the trainer and users' pipelines run on the same executor."""
    callers = {
        module.name
        for module in MODULES
        for call in module.calls
        if ast.unparse(call.func).endswith((".backward", "autograd.grad"))
        and not ast.unparse(call.func).startswith("stage.")
    }

    # The trace of a user's network computes gradients once, to check its parameters.
    assert callers == {"convoy.parallel.executor", "convoy.layers.user_network"}


@pytest.mark.parametrize(
    ("module", "piece"),
    [
        ("convoy.engine.trainer", "convoy.engine.loops"),
        ("convoy.run.build", "convoy.parallel.executor"),
        ("convoy.engine.pipeline", "convoy.parallel.executor"),
        ("convoy.engine.pipeline", "convoy.engine.loops"),
        ("convoy.engine.gradient_step", "convoy.numerics.gradients"),
        ("convoy.data.infeed", "convoy.data.loader"),
    ],
)
def test_the_trainer_and_custom_loops_share_their_pieces(module: str, piece: str) -> None:
    assert piece in import_graph(IMPORTS)[module]


@pytest.mark.parametrize(
    ("name", "users"),
    [
        ("PipelineExecutor", {"parallel.executor", "engine.pipeline"}),
        ("GradientTree", {"run.parameter_groups", "engine.gradient_step"}),
        ("repeat", {"engine.trainer", "engine.pipeline"}),
        ("prefetch", {"data.loader", "data.infeed"}),
        # `prefetch`, and the thread that writes checkpoints.
        ("ThreadPoolExecutor", {"data.loader", "checkpoint.background"}),
    ],
)
def test_a_piece_of_the_engine_is_used_by_the_trainer_and_by_custom_loops(
    name: str, users: set[str]
) -> None:
    """`tests/engine/test_one_engine.py` counts the calls of both."""
    callers = {
        module.name.removeprefix("convoy.")
        for module in MODULES
        for call in module.calls
        if ast.unparse(call.func) == name
    }

    assert callers == users


@pytest.mark.processes
@pytest.mark.parametrize(
    "packages", [("config", "models", "planning", "dialects"), ("cli",)], ids=" and ".join
)
def test_torch_free_packages_load_without_torch_and_numpy(packages: tuple[str, ...]) -> None:
    names = [module.name for module in MODULES if package_of(module.name) in packages]
    # One module is called `import`, so an import statement cannot load it.
    imports = f"import sys; from importlib import import_module; [*map(import_module, {names})]"
    script = f"{imports}; print({{'torch', 'numpy'}} & sys.modules.keys())"
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert process.stdout.strip() == "set()"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_follows_the_rule(rule: Rule) -> None:
    assert violations(rule, MODULES) == []


def test_the_names_of_all_tests_are_sentences() -> None:
    assert violations(names_of_tests_are_sentences, TESTS) == []
