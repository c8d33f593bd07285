"""The plan of the house: which room opens which door, and what every file keeps to."""

import subprocess
import sys
from pathlib import Path

import pytest
from house_imports import crumbs, graph_of, imports_of, knot, room_of
from house_plan import MAY_IMPORT, closed_doors, unwanted_packages
from house_rules import (
    Rule,
    arguments_are_few,
    attributes_have_fixed_names,
    file_is_short,
    functions_are_short,
    keywords_are_not_passed_through,
    module_says_what_it_is,
    names_of_tests_are_sentences,
    names_say_something,
    nothing_is_left_to_do,
    nothing_read_can_run,
    offences,
    read_modules,
    repeated_classes,
    signatures_are_annotated,
)

ROOT = Path(__file__).parents[1]
MODULES = read_modules(ROOT, "convoy")
TESTS = [one for one in read_modules(ROOT, "tests") if ".test_" in one.name]
IMPORTS = imports_of(MODULES)

RULES = [
    file_is_short,
    functions_are_short,
    arguments_are_few,
    signatures_are_annotated,
    module_says_what_it_is,
    nothing_is_left_to_do,
    attributes_have_fixed_names,
    keywords_are_not_passed_through,
    nothing_read_can_run,
    names_say_something,
]


def test_rooms_open_only_their_own_doors() -> None:
    assert closed_doors(IMPORTS) == []


def test_every_room_is_in_the_plan_of_the_house() -> None:
    assert {room_of(module.name) for module in MODULES} - {""} - MAY_IMPORT.keys() == set()


def test_rooms_use_only_the_packages_they_may() -> None:
    assert unwanted_packages(IMPORTS) == []


def test_imports_are_written_in_full() -> None:
    assert [str(one) for one in IMPORTS if one.imported == "(relative)"] == []


def test_no_modules_import_each_other_in_a_ring() -> None:
    assert knot(graph_of(IMPORTS)) == []


def test_a_class_name_exists_once() -> None:
    assert repeated_classes(MODULES) == []


def test_no_small_module_has_a_single_importer() -> None:
    """It belongs in the module that imports it; verbs of the command line may be short."""
    assert crumbs(MODULES, IMPORTS) == []


@pytest.mark.processes
@pytest.mark.parametrize(
    "rooms", [("config", "models", "plan", "dialects"), ("cli",)], ids=" and ".join
)
def test_what_is_pure_loads_without_torch_and_numpy(rooms: tuple[str, ...]) -> None:
    names = [module.name for module in MODULES if room_of(module.name) in rooms]
    # By name: one verb is called `import`, which no statement can import.
    loads = f"import sys; from importlib import import_module; [*map(import_module, {names})]"
    script = f"{loads}; print({{'torch', 'numpy'}} & sys.modules.keys())"
    loaded = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert loaded.stdout.strip() == "set()"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    assert offences(rule, MODULES) == []


def test_the_names_of_all_tests_are_sentences() -> None:
    assert offences(names_of_tests_are_sentences, TESTS) == []
