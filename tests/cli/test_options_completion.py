"""convoy completion: scripts that shells can run, and that know every word."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from running import convoy

from convoy.cli.data import ACTIONS
from convoy.cli.main import VERBS
from convoy.cli.options import FILES, SCRIPTS
from convoy.config.catalog import MODELS
from convoy.config.named import shipped_names
from convoy.config.schema import option_table

SCHEDULES = set(option_table()["pipeline_schedule"].declared.limit.choices)
FILES_HERE = ("plans.yaml", "plain.txt")
FOLDERS_HERE = ("plants", "two words")

# Each asks the shell for what may follow a line; the words come split, the last one unfinished.
ASK_BASH = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_convoy
((${#COMPREPLY[@]})) && printf '%s\\n' "${COMPREPLY[@]}"
"""

# Without a terminal zsh has no completion system; these stand in for what it offers to functions.
ASK_ZSH = """
compdef() { : }
compset() { words[CURRENT]=${words[CURRENT]#*=} }
compadd() { shift; print -rl -- ${(M)@:#$words[CURRENT]*} | grep . }
_describe() { local -a all=(${(P)@[-1]}); compadd -- ${all%%:*} }
_files() { [[ $1 == -/ ]] && compadd -- *(N/) || compadd -- *(N) }
source "$1"; shift
words=("$@") CURRENT=$#
_convoy
"""

ASK_FISH = """
source $argv[1]
set -l line (string join ' ' -- $argv[2..-1])
complete -C "$line" | string split -f1 \\t
"""

ASK = {
    "bash": ["bash", "--norc", "-c", ASK_BASH, "bash"],
    "zsh": ["zsh", "-f", "-c", ASK_ZSH, "zsh"],
    "fish": ["fish", "--no-config", "-c", ASK_FISH],
}

shells = pytest.mark.parametrize(
    "shell",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not installed"),
        )
        for name in ASK
    ],
)


def offered(shell: str, *words: str) -> set[str]:
    """What the shell offers for the last of the words, in a folder with a few files."""
    script = SCRIPTS / FILES[shell]
    said = subprocess.run(
        [*ASK[shell], script, *words],
        capture_output=True,
        text=True,
        env=dict(os.environ, HOME=os.devnull),
    )
    assert said.stderr == ""
    return {line.rstrip("/") for line in said.stdout.splitlines()}


def beginning(prefix: str, names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith(prefix)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few files and folders to complete."""
    for name in FILES_HERE:
        (tmp_path / name).touch()
    for name in FOLDERS_HERE:
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("shell", FILES)
def test_the_script_is_printed_as_it_is_shipped(shell: str) -> None:
    said = convoy("completion", shell)

    assert (said.code, said.err) == (0, "")
    assert said.out == (SCRIPTS / FILES[shell]).read_text(encoding="utf-8")


def test_a_shell_without_a_script_is_refused() -> None:
    said = convoy("completion", "tcsh")

    assert (said.code, said.out) == (2, "")
    assert "'tcsh'" in said.err and "bash" in said.err


@pytest.mark.parametrize("shell", FILES)
def test_every_script_knows_every_option(shell: str) -> None:
    script = (SCRIPTS / FILES[shell]).read_text(encoding="utf-8")
    words = set(script.replace("'", " ").replace(":", " ").replace(" -l ", " --").split())
    spellings = [one for row in option_table().values() for one in (row.flag, *row.declared.also)]

    assert [one for one in spellings if one not in words] == []


@shells
@pytest.mark.processes
def test_the_verbs_are_offered(shell: str) -> None:
    assert offered(shell, "convoy", "") >= VERBS.keys()
    assert offered(shell, "convoy", "tra") == {"train"}
    assert offered(shell, "convoy", "--ver") == {"--version"}


@shells
@pytest.mark.processes
def test_the_options_of_a_verb_are_offered(shell: str) -> None:
    assert offered(shell, "convoy", "train", "--pipeline-sch") == {"--pipeline-schedule"}
    assert offered(shell, "convoy", "train", "--no-aug") == {"--no-augment"}
    assert offered(shell, "convoy", "plan", "--expl") == {"--explain"}
    assert offered(shell, "convoy", "train", "--expl") == set()
    assert offered(shell, "convoy", "models", "--mod") == set()


@shells
@pytest.mark.processes
def test_each_action_of_a_verb_has_its_own_options(shell: str) -> None:
    assert offered(shell, "convoy", "data", "bench", "--elem") == {"--elements"}
    assert offered(shell, "convoy", "data", "show", "--elem") == set()
    assert offered(shell, "convoy", "data", "show", "--split", "") == {"train", "validation"}
    assert offered(shell, "convoy", "data", "show", "--pipeline-sch") == {"--pipeline-schedule"}
    assert offered(shell, "convoy", "data", "fetch", "--pipeline-sch") == set()
    assert offered(shell, "convoy", "data", "bench", "--model", "resnet1") == beginning(
        "resnet1", MODELS
    )


@shells
@pytest.mark.processes
def test_an_older_spelling_is_offered_where_nothing_else_begins_so(shell: str) -> None:
    assert offered(shell, "convoy", "train", "--outp") == {"--output"}


@shells
@pytest.mark.processes
def test_the_choices_of_an_option_are_offered(shell: str) -> None:
    assert offered(shell, "convoy", "train", "--pipeline-schedule", "") == SCHEDULES
    assert offered(shell, "convoy", "train", "--pipeline-schedule", "gr") == {"grouped"}
    assert offered(shell, "convoy", "train", "--model", "resnet2") == beginning("resnet2", MODELS)
    assert offered(shell, "convoy", "train", "--config", "") == set(shipped_names())


@shells
@pytest.mark.processes
def test_what_stands_before_does_not_confuse(shell: str) -> None:
    before = ("convoy", "train", "--augment", "--lr", "-1", "--lr-epoch-decay", "1", "2")

    assert offered(shell, *before, "--pipeline-schedule", "gr") == {"grouped"}
    assert offered(shell, *before, "--pipeline-sch") == {"--pipeline-schedule"}


@shells
@pytest.mark.processes
@pytest.mark.usefixtures("folder")
def test_a_switch_takes_no_word_and_a_list_takes_many(shell: str) -> None:
    assert offered(shell, "convoy", "resume", "--augment", "pla") == {"plants"}
    if shell == "fish":
        return  # it knows of one word behind an option at most
    assert offered(shell, "convoy", "resume", "--lr", "-1", "pla") == {"plants"}
    assert offered(shell, "convoy", "validate", "--lr-epoch-decay", "1", "2", "pla") == set()


@shells
@pytest.mark.processes
def test_a_value_may_follow_an_equals_sign(shell: str) -> None:
    words = ("--config", "=", "shap") if shell == "bash" else ("--config=shap",)
    found = offered(shell, "convoy", "train", *words)

    assert {one.removeprefix("--config=") for one in found} == beginning("shap", shipped_names())


@shells
@pytest.mark.processes
@pytest.mark.usefixtures("folder")
def test_files_and_folders_are_offered_where_a_path_belongs(shell: str) -> None:
    assert offered(shell, "convoy", "train", "--config-path", "pla") == {*FILES_HERE, "plants"}
    assert offered(shell, "convoy", "train", "--data-dir", "pla") == {"plants"}
    assert "plants" in offered(shell, "convoy", "train", "--output", "pla")
    assert offered(shell, "convoy", "resume", "pla") == {"plants"}
    assert offered(shell, "convoy", "validate", "plants", "pla") == {"plants"}
    assert offered(shell, "convoy", "train", "--lr", "pla") == set()
    assert offered(shell, "convoy", "train", "pla") == set()


@shells
@pytest.mark.processes
def test_names_are_offered_where_a_verb_takes_them(shell: str) -> None:
    assert offered(shell, "convoy", "configs", "shap") == beginning("shap", shipped_names())
    assert offered(shell, "convoy", "models", "resnet1") == beginning("resnet1", MODELS)
    assert offered(shell, "convoy", "options", "pipeline_sch") == {"pipeline_schedule"}
    assert offered(shell, "convoy", "options", "lr", "pipeline_sch") == {"pipeline_schedule"}
    assert offered(shell, "convoy", "data", "") == set(ACTIONS)
    assert offered(shell, "convoy", "data", "fetch", "cifar10") == {"cifar10", "cifar100"}
    assert offered(shell, "convoy", "completion", "") == set(FILES)


@pytest.mark.processes
@pytest.mark.usefixtures("folder")
def test_a_name_with_a_blank_stays_one_word_in_bash() -> None:
    assert offered("bash", "convoy", "resume", "two") == {"two words"}
