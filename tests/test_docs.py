"""The docs are correct: commands parse, files exist, generated files are up to date."""

import re
import shlex
from pathlib import Path

import pytest
import write_docs
from pages import options as options_page
from pages.command_words import parser_of
from support import unavailable_options
from support.run_convoy import convoy

from convoy.config import option_docs
from convoy.config.command_line import expand_prefixes, parse_flags, unknown_argument_problems
from convoy.config.flags import canonical

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
TRAINING = ("train", "plan")


def commands(page: Path, program: str) -> list[list[str]]:
    """The commands of a program in the console blocks of a page, without `> FILE`."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text(), re.S)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    words = [shlex.split(line.partition(" > ")[0], comments=True) for line in lines]
    return [line for line in words if line[0] == program]


CONVOY = [(page, words) for page in PAGES for words in commands(page, "convoy")]
MAKE = [(page, words) for page in PAGES for words in commands(page, "make")]


@pytest.mark.parametrize(("page", "words"), CONVOY, ids=lambda item: str(item)[-60:])
def test_every_convoy_command_in_the_docs_is_valid(page: Path, words: list[str]) -> None:
    verb, rest = words[1], words[2:]
    if verb in TRAINING:
        result = convoy("plan", *rest)

        assert result.code == 0, f"{page.name}: {result.err}"
    elif verb == "run":
        result = convoy(verb, *(rest if "--dry-run" in rest else ["--dry-run", *rest]))

        assert result.code == 0, f"{page.name}: {result.err}"
    else:
        if verb == "data":
            verb, rest = f"data {rest[0]}", rest[1:]
        parser = parser_of(verb)
        args, extra = parser.parse_known_args(expand_prefixes(rest, parser))
        flags = vars(args).get("flag_occurrences", [])

        assert unknown_argument_problems(extra, parser) == []
        assert parse_flags(flags, canonical()).problems == []


@pytest.mark.parametrize(("page", "words"), MAKE, ids=lambda item: str(item)[-60:])
def test_every_make_target_in_the_docs_exists(page: Path, words: list[str]) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)

    assert words[1] in targets, page.name


def test_the_docs_contain_commands() -> None:
    assert len(CONVOY) > 10 and len(MAKE) > 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_mentions_exists(page: Path) -> None:
    names = re.findall(r"`((?:[a-z_]+/)+[a-z_0-9]+\.(?:py|yaml|md))`", page.read_text())
    missing = [
        name
        for name in names
        if not (ROOT / name).exists() and not (ROOT / "convoy" / name).exists()
    ]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_is_valid(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)", page.read_text())
    broken = [link for link in links if not (page.parent / link).exists()]

    assert broken == []


def test_the_generated_files_are_up_to_date() -> None:
    assert write_docs.outdated() == []


def test_the_page_of_options_shows_the_support_of_each_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (options_page, option_docs):
        monkeypatch.setattr(
            module, "option_table", unavailable_options.table_with_unavailable_options
        )
    page = options_page.options_page()
    cells = {line.split("`")[1]: line.split(" | ") for line in page.splitlines() if "| `--" in line}

    assert option_docs.options_summary() in page
    assert cells["--momentum"][3] == "any"
    assert cells["--lr"][3] == "CUDA"
    assert "On CUDA only: replays kernels in one go." in cells["--lr"][4]
    assert cells["--seed"][3] == "none (IPU only)"
    assert "No effect: no device here has tiles." in cells["--seed"][4]
    assert "Not available in this version: grouped." in cells["--pipeline-schedule"][4]


def test_the_line_for_editors_refers_to_the_schema() -> None:
    page = (ROOT / "docs" / "options.md").read_text()
    (schema,) = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", page, re.M)

    assert f"convoy options --schema > {schema}\n" in page
    assert (ROOT / "docs" / schema).is_file()
