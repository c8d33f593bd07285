"""convoy options: every option with its meaning, as a table, one by one and for programs."""

import json
from importlib import import_module
from pathlib import Path

import pretended
import pytest
from jsonschema import Draft7Validator
from running import convoy

from convoy.config import support as described
from convoy.config.schema import option_table

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "convoy.schema.json"


@pytest.fixture
def mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table in which --lr works on CUDA only, --seed nowhere, and two are not whole yet."""
    for module in (described, import_module("convoy.cli.options")):
        monkeypatch.setattr(module, "option_table", pretended.pretended_table)


def line_of(flag: str, out: str) -> list[str]:
    (line,) = [line for line in out.splitlines() if line.startswith(f"{flag} ")]
    return line.split()


def test_the_table_has_a_line_for_every_option() -> None:
    said = convoy("options")
    flags = [line.split()[0] for line in said.out.splitlines() if line.startswith("--")]

    assert (said.code, said.err) == (0, "")
    assert flags == [row.flag for row in option_table().values()]


def test_the_table_ends_with_the_count_of_each_kind() -> None:
    assert convoy("options").out.splitlines()[-1] == f"{described.summary()} (*)"


@pytest.mark.usefixtures("mixed")
def test_the_table_tells_the_kinds_apart() -> None:
    out = convoy("options").out

    assert line_of("--momentum", out)[1:3] == ["here", "0.9"]
    assert line_of("--lr", out)[1:3] == ["CUDA", "0.1"]
    assert line_of("--seed", out)[1:3] == ["nowhere", "0"]
    assert line_of("--pipeline-schedule", out)[1] == "here*"


def test_the_list_for_programs_tells_all_of_an_option() -> None:
    rows = {row["name"]: row for row in json.loads(convoy("options", "--json").out)}

    assert list(rows) == list(option_table())
    assert rows["data_dir"] == {
        "name": "data_dir",
        "flag": "--data-dir",
        "section": "data",
        "type": "text",
        "limits": "",
        "default": None,
        "shown": "–",
        "also": ["--imagenet-data-path"],
        "environment": "DATA_DIR",
        "help": "Folder of the data set.",
        "reach": "works here",
        "why": None,
        "not_available": None,
        "ready": None,
        "free": True,
    }
    assert (rows["lr"]["limits"], rows["lr"]["shown"]) == ("≥ 0, ≤ 1e+30", "0.1")
    assert rows["lr"]["free"] is False
    assert rows["lr_epoch_decay"]["type"] == "list of number"


@pytest.mark.usefixtures("mixed")
def test_the_list_for_programs_tells_the_kinds_apart() -> None:
    words = ("options", "--json", "lr", "seed", "pipeline_schedule", "samples")
    lr, seed, schedule, samples = json.loads(convoy(*words).out)

    assert (lr["reach"], lr["why"]) == ("works on CUDA only", "replays kernels in one go")
    assert (seed["reach"], seed["why"]) == ("no counterpart", "no device here has tiles.")
    assert schedule["not_available"] == [
        option_table()["pipeline_schedule"].declared.limit.choices[0]
    ]
    assert (samples["not_available"], samples["ready"]) == (True, [None, 5])


def test_one_option_is_shown_in_full() -> None:
    said = convoy("options", "data_dir")

    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [
        "--data-dir",
        "  Folder of the data set.",
        "  default      –",
        "  type         text",
        "  also         --imagenet-data-path",
        "  environment  DATA_DIR",
        "  in a file    data_dir",
        "  works        here",
        "  resumed      may change",
    ]


@pytest.mark.usefixtures("mixed")
def test_what_restricts_an_option_is_shown_with_the_reason() -> None:
    lr, schedule = convoy("options", "lr", "pipeline-schedule").out.split("\n\n")

    assert "  works        On CUDA only: replays kernels in one go." in lr.splitlines()
    assert "  available    Not available in this version: grouped." in schedule.splitlines()


@pytest.mark.parametrize(
    ("typed", "flag"),
    [
        ("--lr", "--lr"),
        ("lr", "--lr"),
        ("--micro-batch-size", "--micro-batch-size"),
        ("micro_batch_size", "--micro-batch-size"),
        ("--batch-size", "--micro-batch-size"),
        ("BN_span", "--bn-span"),
        ("--no-augment", "--augment"),
    ],
)
def test_an_option_is_found_under_any_of_its_spellings(typed: str, flag: str) -> None:
    assert convoy("options", typed).out.startswith(f"{flag}\n")


def test_several_options_are_shown_in_the_order_asked() -> None:
    blocks = convoy("options", "--seed", "lr").out.split("\n\n")

    assert [block.splitlines()[0] for block in blocks] == ["--seed", "--lr"]


def test_unknown_names_are_answered_together_with_near_ones() -> None:
    said = convoy("options", "weight_decai", "--pipeline-shedule", "lr", "zzz")

    assert (said.code, said.out) == (2, "")
    assert [line.split(",")[0] for line in said.err.splitlines()] == [
        "convoy: unknown option weight_decai; did you mean --weight-decay",
        "convoy: unknown option pipeline-shedule; did you mean --pipeline-schedule",
        "convoy: unknown option zzz; `convoy options` lists them",
    ]


def test_the_schema_is_printed_as_it_is_shipped() -> None:
    said = convoy("options", "--schema")

    assert (said.code, said.err) == (0, "")
    assert said.out == SCHEMA_FILE.read_text(encoding="utf-8")
    Draft7Validator.check_schema(json.loads(said.out))


def test_the_schema_of_some_options_is_refused() -> None:
    said = convoy("options", "lr", "--schema")

    assert (said.code, said.err) == (
        2,
        "convoy: --schema is of all options; leave out the names\n",
    )
