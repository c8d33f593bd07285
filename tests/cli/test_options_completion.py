"""convoy completion: scripts that run in each shell and know every option."""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
from support.run_convoy import convoy

from convoy.cli.data import ACTIONS
from convoy.cli.main import VERBS
from convoy.cli.options import FILES, SCRIPTS
from convoy.config.named_configs import shipped_config_names
from convoy.config.schema import option_table
from convoy.config.sections.network import MODELS

SCHEDULES = set(option_table()["pipeline_schedule"].limit.choices)
FILE_NAMES = ("plans.yaml", "plain.txt")
FOLDER_NAMES = ("plants", "two words")

# Each script completes the last of its arguments, as the shell would.
COMPLETE_IN_BASH = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_convoy
((${#COMPREPLY[@]})) && printf '%s\\n' "${COMPREPLY[@]}"
"""

# zsh has no completion system without a terminal, so this script defines the functions it uses.
COMPLETE_IN_ZSH = """
compdef() { : }
compset() { words[CURRENT]=${words[CURRENT]#*=} }
compadd() { shift; print -rl -- ${(M)@:#$words[CURRENT]*} | grep . }
_describe() { local -a all=(${(P)@[-1]}); compadd -- ${all%%:*} }
_files() { [[ $1 == -/ ]] && compadd -- *(N/) || compadd -- *(N) }
source "$1"; shift
words=("$@") CURRENT=$#
_convoy
"""

COMPLETE_IN_FISH = """
source $argv[1]
set -l line (string join ' ' -- $argv[2..-1])
complete -C "$line" | string split -f1 \\t
"""

COMPLETION_COMMANDS = {
    "bash": ["bash", "--norc", "-c", COMPLETE_IN_BASH, "bash"],
    "zsh": ["zsh", "-f", "-c", COMPLETE_IN_ZSH, "zsh"],
    "fish": ["fish", "--no-config", "-c", COMPLETE_IN_FISH],
}

shells = pytest.mark.parametrize(
    "shell",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(not shutil.which(name), reason=f"{name} is not installed"),
        )
        for name in COMPLETION_COMMANDS
    ],
)


def completions(shell: str, *words: str) -> set[str]:
    """The completions of the last argument in the working directory."""
    script = SCRIPTS / FILES[shell]
    result = subprocess.run(
        [*COMPLETION_COMMANDS[shell], script, *words],
        capture_output=True,
        text=True,
        env=dict(os.environ, HOME=os.devnull),
    )
    assert result.stderr == ""
    return {line.rstrip("/") for line in result.stdout.splitlines()}


def with_prefix(prefix: str, names: Iterable[str]) -> set[str]:
    return {name for name in names if name.startswith(prefix)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few files and folders to complete."""
    for name in FILE_NAMES:
        (tmp_path / name).touch()
    for name in FOLDER_NAMES:
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("shell", FILES)
def test_the_script_is_printed_as_it_is_shipped(shell: str) -> None:
    result = convoy("completion", shell)

    assert (result.code, result.err) == (0, "")
    assert result.out == (SCRIPTS / FILES[shell]).read_text(encoding="utf-8")


def test_a_shell_without_a_script_is_refused() -> None:
    result = convoy("completion", "tcsh")

    assert (result.code, result.out) == (2, "")
    assert "'tcsh'" in result.err and "bash" in result.err


@pytest.mark.parametrize("shell", FILES)
def test_every_script_contains_every_option(shell: str) -> None:
    script = (SCRIPTS / FILES[shell]).read_text(encoding="utf-8")
    words = set(script.replace("'", " ").replace(":", " ").replace(" -l ", " --").split())
    spellings = [
        spelling for row in option_table().values() for spelling in (row.flag, *row.aliases)
    ]

    assert [spelling for spelling in spellings if spelling not in words] == []


@shells
@pytest.mark.processes
def test_the_verbs_are_completed(shell: str) -> None:
    assert completions(shell, "convoy", "") >= VERBS.keys()
    assert completions(shell, "convoy", "tra") == {"train"}
    assert completions(shell, "convoy", "--ver") == {"--version"}


@shells
@pytest.mark.processes
def test_the_options_of_a_verb_are_completed(shell: str) -> None:
    assert completions(shell, "convoy", "train", "--pipeline-sch") == {"--pipeline-schedule"}
    assert completions(shell, "convoy", "train", "--no-aug") == {"--no-augment"}
    assert completions(shell, "convoy", "plan", "--expl") == {"--explain"}
    assert completions(shell, "convoy", "train", "--expl") == set()
    assert completions(shell, "convoy", "models", "--mod") == set()


@shells
@pytest.mark.processes
def test_each_action_of_a_verb_has_its_own_options(shell: str) -> None:
    assert completions(shell, "convoy", "data", "bench", "--elem") == {"--elements"}
    assert completions(shell, "convoy", "data", "show", "--elem") == set()
    assert completions(shell, "convoy", "data", "show", "--split", "") == {"train", "validation"}
    assert completions(shell, "convoy", "data", "show", "--pipeline-sch") == {"--pipeline-schedule"}
    assert completions(shell, "convoy", "data", "fetch", "--pipeline-sch") == set()
    assert completions(shell, "convoy", "data", "bench", "--model", "resnet1") == with_prefix(
        "resnet1", MODELS
    )


@shells
@pytest.mark.processes
def test_a_deprecated_spelling_is_completed_if_nothing_else_matches(shell: str) -> None:
    assert completions(shell, "convoy", "train", "--outp") == {"--output"}


@shells
@pytest.mark.processes
def test_the_choices_of_an_option_are_completed(shell: str) -> None:
    assert completions(shell, "convoy", "train", "--pipeline-schedule", "") == SCHEDULES
    assert completions(shell, "convoy", "train", "--pipeline-schedule", "gr") == {"grouped"}
    assert completions(shell, "convoy", "train", "--model", "resnet2") == with_prefix(
        "resnet2", MODELS
    )
    assert completions(shell, "convoy", "train", "--config", "") == set(shipped_config_names())


@shells
@pytest.mark.processes
def test_preceding_arguments_do_not_affect_completion(shell: str) -> None:
    before = ("convoy", "train", "--augment", "--lr", "-1", "--lr-epoch-decay", "1", "2")

    assert completions(shell, *before, "--pipeline-schedule", "gr") == {"grouped"}
    assert completions(shell, *before, "--pipeline-sch") == {"--pipeline-schedule"}


@shells
@pytest.mark.processes
@pytest.mark.usefixtures("folder")
def test_a_switch_takes_no_value_and_a_list_takes_many(shell: str) -> None:
    assert completions(shell, "convoy", "resume", "--augment", "pla") == {"plants"}
    if shell == "fish":
        return  # fish completes at most one value of an option
    assert completions(shell, "convoy", "resume", "--lr", "-1", "pla") == {"plants"}
    assert completions(shell, "convoy", "validate", "--lr-epoch-decay", "1", "2", "pla") == set()


@shells
@pytest.mark.processes
def test_a_value_may_follow_an_equals_sign(shell: str) -> None:
    typed = ("--config", "=", "shap") if shell == "bash" else ("--config=shap",)
    words = completions(shell, "convoy", "train", *typed)

    assert {word.removeprefix("--config=") for word in words} == with_prefix(
        "shap", shipped_config_names()
    )


@shells
@pytest.mark.processes
@pytest.mark.usefixtures("folder")
def test_paths_are_completed_only_for_options_that_take_a_path(shell: str) -> None:
    assert completions(shell, "convoy", "train", "--config-path", "pla") == {*FILE_NAMES, "plants"}
    assert completions(shell, "convoy", "train", "--data-dir", "pla") == {"plants"}
    assert "plants" in completions(shell, "convoy", "train", "--output", "pla")
    assert completions(shell, "convoy", "resume", "pla") == {"plants"}
    assert completions(shell, "convoy", "validate", "plants", "pla") == {"plants"}
    assert completions(shell, "convoy", "train", "--lr", "pla") == set()
    assert completions(shell, "convoy", "train", "pla") == set()


@shells
@pytest.mark.processes
def test_names_are_completed_for_verbs_that_take_them(shell: str) -> None:
    assert completions(shell, "convoy", "configs", "shap") == with_prefix(
        "shap", shipped_config_names()
    )
    assert completions(shell, "convoy", "models", "resnet1") == with_prefix("resnet1", MODELS)
    assert completions(shell, "convoy", "options", "pipeline_sch") == {"pipeline_schedule"}
    assert completions(shell, "convoy", "options", "lr", "pipeline_sch") == {"pipeline_schedule"}
    assert completions(shell, "convoy", "data", "") == set(ACTIONS)
    assert completions(shell, "convoy", "data", "fetch", "cifar10") == {"cifar10", "cifar100"}
    assert completions(shell, "convoy", "completion", "") == set(FILES)


@pytest.mark.processes
@pytest.mark.usefixtures("folder")
def test_a_name_with_a_space_stays_one_argument_in_bash() -> None:
    assert completions("bash", "convoy", "resume", "two") == {"two words"}
