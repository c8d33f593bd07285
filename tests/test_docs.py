"""What the pages say is so: commands parse, files exist, generated pages are up to date."""

import importlib.util
import re
import shlex
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from running import convoy

from convoy.cli.arguments import read_line, read_plain

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
TRAINING = ("train", "plan")
OF_RUNS = ("resume", "validate", "average")


def commands(page: Path, program: str) -> list[list[str]]:
    """The command lines of a page's console blocks that call a program."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), re.S)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    words = [shlex.split(line, comments=True) for line in lines]
    return [line for line in words if line[0] == program]


CONVOY = [(page, words) for page in PAGES for words in commands(page, "convoy")]
MAKE = [(page, words) for page in PAGES for words in commands(page, "make")]


@pytest.mark.parametrize(("page", "words"), CONVOY, ids=lambda one: str(one)[-60:])
def test_every_convoy_command_in_the_docs_is_understood(page: Path, words: list[str]) -> None:
    verb, rest = words[1], words[2:]
    if verb in TRAINING:
        said = convoy("plan", *rest, *(["--data-dir=DATA"] if "--data-dir" not in rest else []))

        assert said.code == 0, f"{page.name}: {said.err}"
    else:
        module = import_module(f"convoy.cli.{verb}")
        if verb in OF_RUNS:
            assert read_line(verb, rest, "", module._add_own).problems == []
        else:
            read_plain(verb, rest, "", module._add_own)


@pytest.mark.parametrize(("page", "words"), MAKE, ids=lambda one: str(one)[-60:])
def test_every_make_target_in_the_docs_exists(page: Path, words: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)

    assert words[1] in targets, page.name


def test_the_docs_hold_commands_at_all() -> None:
    assert len(CONVOY) > 10 and len(MAKE) > 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_a_page_names_is_there(page: Path) -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|yaml|md))`", page.read_text())
    missing = [
        name
        for name in named
        if not (ROOT / name).exists() and not (ROOT / "convoy" / name).exists()
    ]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
    broken = [link for link in links if not (page.parent / link).exists()]

    assert broken == []


def test_the_generated_pages_say_what_the_tables_say() -> None:
    assert _tool("write_docs").outdated() == []


def _tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
