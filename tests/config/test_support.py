"""What this version cannot carry out: a plan speaks of it, every run refuses it, with a way out."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from running import convoy

from convoy.cli.args import add_config, read_line
from convoy.config.catalog import DATA, MODELS
from convoy.config.command_line import as_flags
from convoy.config.named import read_named, shipped_names
from convoy.config.option import Option, WrongType, spelled
from convoy.config.resolve import RequestedOptions, resolve
from convoy.config.schema import option_table
from convoy.config.settings import Setting, from_source, settings_as_yaml
from convoy.config.support import not_available, unavailable
from convoy.dialects import DIALECTS

Case = tuple[Option, Any]

CANDIDATES = (1, 2, 0.5, 0.25, "x", ["x"], [1])
# What a rule wants beside a value; some of it is not available either.
BESIDE = {
    "data": ["--data-dir=DATA"],
}


def fits(row: Option, value: Any) -> bool:
    try:
        return row.problem(row.kind.check(value)) is None
    except WrongType:
        return False


def unready(row: Option) -> list[Any]:
    """Values that are not available: all of a closed list, one of an open one."""
    listed = not_available(row)
    if isinstance(listed, list):
        return listed
    fitting = [row.kind.check(one) for one in CANDIDATES if fits(row, one)]
    return [one for one in fitting if not row.is_ready(one)][:1]


CASES: list[Case] = [
    (row, value)
    for row in option_table().values()
    if not_available(row) is not None
    for value in unready(row)
]
EVERY = pytest.mark.parametrize(
    ("row", "value"), CASES, ids=[f"{row.name}-{spelled(value)}" for row, value in CASES]
)


def words_of(row: Option, value: Any) -> list[str]:
    return [*as_flags(row, value), *BESIDE.get(row.name, [])]


def missing(*words: str | Path) -> dict[str, dict[str, Any]]:
    """What a plan says is not available, by option."""
    said = convoy("plan", "--json", *words)
    assert said.code == 0, said.err
    listed = json.loads(said.out)["unavailable"]
    assert len({one["option"] for one in listed}) == len(listed)
    return {one["option"]: one for one in listed}


def ways_out(reason: str) -> list[list[str]]:
    """The words that a way out offers; none: it says to leave something out."""
    way_out = reason.split("; ", 1)[1]
    found = re.fullmatch(r"use (--[a-z0-9-]+)(?: (.+))?", way_out)
    if found is None:
        return []
    flag, values = found[1], (found[2] or "").replace("without a value", "")
    return [[flag, *one.split()] for one in values.split(" or ")]


def test_every_option_that_is_not_whole_is_tried_here() -> None:
    gaps = {row.name for row in option_table().values() if not_available(row) is not None}

    assert {row.name for row, _ in CASES} == gaps


@EVERY
def test_a_plan_speaks_of_it_and_of_nothing_that_was_not_asked_for(row: Option, value: Any) -> None:
    words = words_of(row, value)
    listed = missing(*words)
    asked = {word.split("=")[0].removeprefix("--").replace("-", "_") for word in words}

    assert listed[row.name]["value"] == json.loads(json.dumps(value))
    assert listed[row.name]["source"] == "command line"
    assert set(listed) <= {row.name, *asked}
    assert listed[row.name]["reason"].count("\n") == 0
    assert f"not yet   {next(iter(listed.values()))['reason']}" in convoy("plan", *words).out


@EVERY
def test_every_run_refuses_it_in_one_line_and_writes_nothing(
    row: Option, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = resolve(RequestedOptions(environment={})).settings
    Path("run").mkdir()
    Path("run/config.yaml").write_text(settings_as_yaml(settings))
    words = words_of(row, value)
    reasons = [f"convoy: {one['reason']}" for one in missing(*words).values()]
    for verb in (["train"], ["prove"], ["validate", "--random-weights"], ["resume", "run"]):
        override = ["--override"] if verb[0] == "resume" else []
        said = convoy(*verb, *words, *override)

        assert (said.code, said.out) == (2, ""), verb
        assert said.err.splitlines() == reasons, verb
    assert [str(path) for path in Path().rglob("*")] == ["run", "run/config.yaml"]


@EVERY
def test_the_way_out_leads_out(row: Option, value: Any) -> None:
    reason = missing(*words_of(row, value))[row.name]["reason"]
    offered = ways_out(reason)

    assert offered or reason.endswith("; leave it out")
    for words in offered:
        assert row.name not in missing(*words), words


@EVERY
def test_a_value_of_a_file_names_the_file_and_has_a_way_out(
    row: Option, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(f"# Mine.\n{row.name}: {json.dumps(value)}\n")
    beside = BESIDE.get(row.name, [])
    one = missing("--config-path", "mine.yaml", *beside)[row.name]

    assert one["source"] == "mine.yaml, line 2"
    assert "is not available in this version (mine.yaml, line 2); " in one["reason"]
    for words in ways_out(one["reason"]):
        assert row.name not in missing("--config-path", "mine.yaml", *beside, *words), words


def test_what_is_refused_is_refused_all_at_once() -> None:
    said = convoy("train", "--wandb", "--profile", "--compile-only", "--wandb-id=2")

    assert said.err.splitlines() == [
        f"convoy: {typed} is not available in this version; {way_out}"
        for typed, way_out in (
            ("--compile-only true", "use --no-compile-only"),
            ("--profile true", "use --no-profile"),
            ("--wandb true", "use --no-wandb"),
            ("--wandb-id 2", "leave it out"),
        )
    ]


@pytest.mark.parametrize("model", list(MODELS))
def test_what_nobody_said_is_never_refused(model: str) -> None:
    for data in DATA:
        asked = from_source("command line", {"model": model, "data": data})
        settings = resolve(RequestedOptions(asked, environment={})).settings

        assert {one.option for one in unavailable(settings)} <= {"model", "data"}


def without(settings: str, name: str) -> str:
    return "".join(
        line for line in settings.splitlines(keepends=True) if not line.startswith(f"{name}:")
    )


@pytest.mark.parametrize("config", shipped_names())
def test_a_shipped_configuration_has_a_way_out_of_each_of_its_gaps(
    config: str, tmp_path: Path
) -> None:
    named, _ = read_named(config, None)
    resolved = resolve(RequestedOptions(named=named, environment={"DATA_DIR": "DATA_DIR"}))
    copy = convoy("configs", config).out
    for one in unavailable(resolved.settings):
        if one.way_out.startswith("leave"):
            assert one.way_out.endswith(f" of a copy, made by `convoy configs {config} > FILE`")
            (tmp_path / "copy.yaml").write_text(without(copy, one.option))
            left, _ = read_named(None, str(tmp_path / "copy.yaml"))
            assert one.option not in left
        else:
            row, offered = option_table()[one.option], ways_out(one.reason)
            values = [read_line("plan", words, "", add_config).given for words in offered]
            assert values and all(row.is_ready(given[one.option].value) for given in values)
        assert f"({one.source})" in one.reason and one.source.startswith(f"config {config}, line ")


def test_a_list_of_a_file_is_emptied_by_its_flag(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("sharding_include_filter: [a]\n")
    words = ("--config-path", tmp_path / "mine.yaml")

    assert missing(*words)["sharding_include_filter"]["reason"].endswith(
        "; use --sharding-include-filter without a value"
    )
    assert missing(*words, "--sharding-include-filter") == {}


OPTIMIZERS = option_table()["optimizer"].declared.limit.choices


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_a_dialect_takes_for_granted_has_a_way_out(dialect: str, optimizer: str) -> None:
    for model in MODELS:
        granted = DIALECTS[dialect]().settings({"model": model, "optimizer": optimizer})
        for one in unavailable(granted):
            assert ways_out(one.reason), one


def test_the_source_of_a_dialect_is_named() -> None:
    granted = from_source("dialect tensorflow", {"mlperf_logging": True})
    (one,) = unavailable(granted)

    assert one.reason == (
        "--mlperf-logging true is not available in this version (dialect tensorflow); "
        "use --no-mlperf-logging"
    )


def test_nothing_usual_is_unavailable() -> None:
    assert [row.name for row in option_table().values() if not row.is_ready(row.default)] == []


def test_a_value_that_is_built_is_available() -> None:
    settings = {"model": Setting("resnet50", "x"), "optimizer": Setting("sgd", "x")}

    assert unavailable(settings) == []
