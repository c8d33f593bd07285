"""The help of every verb, printed without heavy imports."""

import subprocess
import sys

import pytest
from support.run_convoy import convoy

from convoy.cli.args import TRAIN_HELP
from convoy.cli.main import VERBS
from convoy.config.schema import option_table

RUN_VERBS = ("train", "resume", "validate", "average", "plan")
HEAVY_PACKAGES = ("torch", "numpy", "rich", "yaml")

IMPORT_CHECK_SCRIPT = f"""
import contextlib, io, sys
from convoy.cli.main import main
lines = [["--help"], ["--version"], ["train", "--help"], ["resume", "--help"], ["data", "--help"],
         ["validate", "--help"], ["average", "--help"], ["plan"], ["plan", "--json"], ["options"],
         ["options", "--json"], ["models"], ["data", "bench", "--help"], ["data", "show", "--help"],
         ["train", "--lr", "-1"], ["data", "bench", "--elements", "0"], ["trian"]]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    codes = [int(main(words)) for words in lines]
print(codes, [name for name in {HEAVY_PACKAGES} if name in sys.modules])
"""


@pytest.mark.parametrize("name", VERBS)
def test_help_succeeds_and_fits_a_hundred_columns(name: str) -> None:
    result = convoy(name, "--help")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"usage: convoy {name}")
    assert [line for line in result.out.splitlines() if len(line) > 100] == []
    assert [convoy(name, word) for word in ("-h", "--hel")] == [result, result]


@pytest.mark.parametrize("name", RUN_VERBS)
def test_run_verbs_show_every_option_with_an_effect(name: str) -> None:
    words = [word.strip(".,") for word in convoy(name, "--help-all").out.split()]

    assert {row.flag for row in option_table().values() if row.has_effect} <= set(words)
    assert "--enable-conv-dithering" not in words


@pytest.mark.parametrize("name", [*RUN_VERBS, "prove", "import", "export", "run"])
def test_help_fits_on_one_screen(name: str) -> None:
    assert len(convoy(name, "--help").out.splitlines()) <= 60


def test_train_shows_the_common_options() -> None:
    flags = shown_options("train")

    common = [
        option_table()[name] for names in (TRAIN_HELP.common or {}).values() for name in names
    ]
    assert {row.shown_flag for row in common} <= flags
    assert "--poly-lr-end-ratio" not in flags


@pytest.mark.parametrize(
    ("command", "shown", "hidden"),
    [
        ("train", {"--output", "--epochs", "--lr"}, {"--checkpoint-output-path", "--epoch"}),
        ("plan", {"--lr", "--explain"}, {"--output"}),
        ("prove", {"--lr", "--updates"}, {"--output", "--replicas", "--pipeline-schedule"}),
        ("resume", {"--data-dir", "--replicas", "--stop-after"}, {"--lr", "--model", "--output"}),
        ("validate", {"--valid-batch-size", "--num-workers"}, {"--lr", "--epochs", "--output"}),
        ("average", {"--weight-avg-n", "--norm-statistics"}, {"--lr", "--output"}),
        ("import", {"--model", "--num-classes", "--output"}, {"--lr", "--epochs"}),
        ("export", {"--output", "--format"}, {"--lr", "--epochs", "--data"}),
        ("data bench", {"--num-workers", "--elements"}, {"--lr", "--model", "--output"}),
        ("data show", {"--output", "--seed"}, {"--lr", "--model"}),
    ],
)
def test_a_command_shows_the_options_that_it_uses(
    command: str, shown: set[str], hidden: set[str]
) -> None:
    flags = shown_options(*command.split())

    assert shown <= flags
    assert flags & hidden == set()


def test_help_shows_the_defaults_that_models_and_datasets_replace() -> None:
    text = " ".join(convoy("train", "--help-all").out.split())

    assert "[5; shapes: 3; cifar10, cifar100: 20]" in text
    assert "[32; cifar10, cifar100: 128]" in text
    assert "Number of groups in group norm. [depends on --model]" in text


def test_defaults_of_other_commands_are_not_those_of_train() -> None:
    resume, prove = (" ".join(convoy(name, "--help").out.split()) for name in ("resume", "prove"))

    assert "Options that are not given keep the values of the run." in resume
    assert "Number of data-parallel replicas of the network. --gradient-accumulation" in resume
    assert "Model architecture. [resnet20]" in prove
    assert "Number of epochs to measure. [2]" in convoy("data", "bench", "--help").out


def test_help_all_lists_the_other_spellings() -> None:
    text = " ".join(convoy("train", "--help-all").out.split())

    assert "--output DIR Folder of the run. Default: a new folder in --log-dir. Also" in text
    assert "Also --dataloader-worker, --pipeline-num-parallel." in text
    assert "Also --batch-size." in text


def shown_options(*command: str) -> set[str]:
    lines = convoy(*command, "--help").out.splitlines()
    return {line.split()[0] for line in lines if line.startswith("  --")}


def test_help_does_not_wrap_inside_a_flag() -> None:
    assert "[true; --no-augment]" in " ".join(convoy("train", "--help-all").out.split())


@pytest.mark.parametrize(("name", "accepted"), [("train", True), ("plan", True), ("resume", False)])
def test_only_verbs_that_start_a_run_take_a_named_configuration(name: str, accepted: bool) -> None:
    assert ("--config-path" in convoy(name, "--help").out) is accepted


@pytest.mark.processes
def test_commands_without_a_network_import_no_heavy_packages() -> None:
    process = subprocess.run(
        [sys.executable, "-c", IMPORT_CHECK_SCRIPT], capture_output=True, text=True
    )

    assert process.stdout == f"{[0] * 14 + [2, 2, 2]} []\n", process.stderr
