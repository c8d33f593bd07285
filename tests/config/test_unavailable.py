"""Unavailable values: a plan lists them, every run refuses them and suggests a fix."""

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.run_convoy import convoy, parse_plan_command
from support.sweeps import sweep

from convoy.config.named_configs import read_named_config, shipped_config_names
from convoy.config.option import Option, OptionTypeError, format_value
from convoy.config.option_docs import unavailable_choices
from convoy.config.resolve import resolve, unavailable_values
from convoy.config.schema import (
    RequestedOptions,
    Setting,
    option_table,
    settings_as_yaml,
    settings_from,
)
from convoy.config.sections.data import DATA
from convoy.config.sections.network import MODELS
from convoy.dialects import DIALECTS

Case = tuple[Option, Any]

CANDIDATES = (1, 2, 0.5, 0.25, "x", ["x"], [1])
# Other arguments that an option needs.
EXTRA_WORDS = {
    "data": ["--data-dir=DATA"],
}


def is_valid(row: Option, value: Any) -> bool:
    try:
        return row.problem(row.value_type.check(value)) is None
    except OptionTypeError:
        return False


def unavailable_samples(row: Option) -> list[Any]:
    """All unavailable choices of an option, or one unavailable value if it has no choices."""
    listed = unavailable_choices(row)
    if isinstance(listed, list):
        return listed
    valid = [row.value_type.check(value) for value in CANDIDATES if is_valid(row, value)]
    return [value for value in valid if not row.is_available(value)][:1]


CASES: list[Case] = [
    (row, value)
    for row in option_table().values()
    if unavailable_choices(row) is not None
    for value in unavailable_samples(row)
]
every_case = pytest.mark.parametrize(
    ("row", "value"), CASES, ids=[f"{row.name}-{format_value(value)}" for row, value in CASES]
)


def to_args(row: Option, value: Any) -> list[str]:
    return [*row.to_cli_args(value), *EXTRA_WORDS.get(row.name, [])]


def plan_unavailable(*words: str | Path) -> dict[str, dict[str, Any]]:
    """The unavailable values that a plan lists, by option."""
    result = convoy("plan", "--json", *words)
    assert result.code == 0, result.err
    listed = json.loads(result.out)["unavailable"]
    assert len({entry["option"] for entry in listed}) == len(listed)
    return {entry["option"]: entry for entry in listed}


def suggested_words(reason: str) -> list[list[str]]:
    """The arguments that a message suggests; none if it suggests to remove an option."""
    hint = reason.split("; ", 1)[1]
    match = re.fullmatch(r"use (--[a-z0-9-]+)(?: (.+))?", hint)
    if match is None:
        return []
    flag, values = match[1], (match[2] or "").replace("without a value", "")
    return [[flag, *value.split()] for value in values.split(" or ")]


def test_every_option_with_unavailable_values_has_a_case() -> None:
    expected = {row.name for row in option_table().values() if unavailable_choices(row) is not None}

    assert {row.name for row, _ in CASES} == expected


@every_case
def test_a_plan_lists_the_value_and_no_value_that_was_not_requested(
    row: Option, value: Any
) -> None:
    words = to_args(row, value)
    listed = plan_unavailable(*words)
    requested = {word.split("=")[0].removeprefix("--").replace("-", "_") for word in words}

    assert listed[row.name]["value"] == json.loads(json.dumps(value))
    assert listed[row.name]["source"] == "command line"
    assert set(listed) <= {row.name, *requested}
    assert listed[row.name]["reason"].count("\n") == 0
    assert f"not available  {next(iter(listed.values()))['reason']}" in convoy("plan", *words).out


@every_case
def test_every_run_refuses_the_value_in_one_line_and_writes_nothing(
    row: Option, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = resolve(RequestedOptions(environment={})).settings
    Path("run").mkdir()
    Path("run/config.yaml").write_text(settings_as_yaml(settings))
    words = to_args(row, value)
    reasons = [f"convoy: {entry['reason']}" for entry in plan_unavailable(*words).values()]
    for verb in (["train"], ["prove"], ["validate", "--random-weights"], ["resume", "run"]):
        override = ["--override"] if verb[0] == "resume" else []
        result = convoy(*verb, *words, *override)

        assert (result.code, result.out) == (2, ""), verb
        assert result.err.splitlines() == reasons, verb
    assert [str(path) for path in Path().rglob("*")] == ["run", "run/config.yaml"]


@every_case
def test_the_suggested_fix_works(row: Option, value: Any) -> None:
    reason = plan_unavailable(*to_args(row, value))[row.name]["reason"]
    suggested = suggested_words(reason)

    assert suggested or reason.endswith("; remove it")
    for words in suggested:
        assert row.name not in plan_unavailable(*words), words


@every_case
def test_a_value_from_a_file_is_reported_with_file_and_fix(
    row: Option, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("custom.yaml").write_text(f"# A comment.\n{row.name}: {json.dumps(value)}\n")
    extra = EXTRA_WORDS.get(row.name, [])
    entry = plan_unavailable("--config-path", "custom.yaml", *extra)[row.name]

    assert entry["source"] == "custom.yaml, line 2"
    assert "is not available in this version (custom.yaml, line 2); " in entry["reason"]
    for words in suggested_words(entry["reason"]):
        assert row.name not in plan_unavailable("--config-path", "custom.yaml", *extra, *words), (
            words
        )


def test_all_unavailable_values_are_reported_together() -> None:
    result = convoy("train", "--wandb", "--profile", "--compile-only", "--wandb-id=2")

    assert result.err.splitlines() == [
        f"convoy: {typed} is not available in this version; {fix}"
        for typed, fix in (
            ("--compile-only true", "use --no-compile-only"),
            ("--profile true", "use --no-profile"),
            ("--wandb true", "use --no-wandb"),
            ("--wandb-id 2", "remove it"),
        )
    ]


@sweep(("model", "data"), product(MODELS, DATA))
def test_the_defaults_of_models_and_datasets_are_available(model: str, data: str) -> None:
    request = settings_from("command line", {"model": model, "data": data})
    settings = resolve(RequestedOptions(request, environment={})).settings

    assert {problem.option for problem in unavailable_values(settings)} <= {"model", "data"}


def without_option(settings: str, name: str) -> str:
    return "".join(
        line for line in settings.splitlines(keepends=True) if not line.startswith(f"{name}:")
    )


@sweep("config", shipped_config_names())
def test_every_unavailable_value_of_a_shipped_configuration_has_a_fix(
    config: str, tmp_path: Path
) -> None:
    named, _ = read_named_config(config, None)
    resolved = resolve(RequestedOptions(named_config=named, environment={"DATA_DIR": "DATA_DIR"}))
    copy = convoy("configs", config).out
    for problem in unavailable_values(resolved.settings):
        name = problem.option
        if problem.message.partition("; ")[2].startswith("remove"):
            assert f"`convoy configs {config} > FILE`" in problem.message
            (tmp_path / "copy.yaml").write_text(without_option(copy, name))
            settings, _ = read_named_config(None, str(tmp_path / "copy.yaml"))
            assert name not in settings
        else:
            row, suggested = option_table()[name], suggested_words(str(problem))
            fixes = [parse_plan_command(words).settings for words in suggested]
            assert fixes and all(row.is_available(settings[name].value) for settings in fixes)
        assert f"({problem.source})" in str(problem)
        assert problem.source.startswith(f"config {config}, line ")


def test_a_flag_without_a_value_empties_a_list_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "custom.yaml").write_text("sharding_include_filter: [a]\n")
    words = ("--config-path", tmp_path / "custom.yaml")

    assert plan_unavailable(*words)["sharding_include_filter"]["reason"].endswith(
        "; use --sharding-include-filter without a value"
    )
    assert plan_unavailable(*words, "--sharding-include-filter") == {}


OPTIMIZERS = option_table()["optimizer"].limit.choices


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_unavailable_default_of_a_dialect_has_a_fix(dialect: str, optimizer: str) -> None:
    for model in MODELS:
        defaults = DIALECTS[dialect]().default_settings({"model": model, "optimizer": optimizer})
        for problem in unavailable_values(defaults):
            assert suggested_words(str(problem)), problem


def test_the_dialect_is_named_as_source() -> None:
    defaults = settings_from("dialect tensorflow", {"mlperf_logging": True})
    (problem,) = unavailable_values(defaults)

    assert str(problem) == (
        "--mlperf-logging true is not available in this version (dialect tensorflow); "
        "use --no-mlperf-logging"
    )


def test_all_defaults_are_available() -> None:
    assert [row.name for row in option_table().values() if not row.is_available(row.default)] == []


def test_supported_values_are_available() -> None:
    settings = {"model": Setting("resnet50", "x"), "optimizer": Setting("sgd", "x")}

    assert unavailable_values(settings) == []
