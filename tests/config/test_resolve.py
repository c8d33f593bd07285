"""Who wins over whom, and that every value says who set it."""

from itertools import combinations
from typing import Any

import pytest

from convoy.config import resolve as resolve_module
from convoy.config.option import Declaration, Limit, Option, ValueType
from convoy.config.resolve import RequestedOptions, Resolved, resolve
from convoy.config.schema import RunConfig, option_table
from convoy.config.settings import Problem, Setting, from_source
from convoy.errors import ConfigError


def found(
    line: dict[str, Any] | None = None,
    named: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
) -> Resolved:
    return resolve(
        RequestedOptions(
            from_source("command line", line or {}),
            from_source("default.yaml, line 1", named or {}),
            environment=environment or {},
        )
    )


def refused(asked: RequestedOptions) -> list[str]:
    with pytest.raises(ConfigError) as error:
        resolve(asked)
    return str(error.value).splitlines()


def test_nothing_asked_is_the_default_and_what_model_and_data_bring() -> None:
    resolved = found()
    sources = {name: one.source for name, one in resolved.settings.items()}

    assert resolved.config.network.norm_num_groups == 16
    assert {name: one for name, one in sources.items() if one != "default"} == {
        "norm_num_groups": "model resnet14",
        "epoch": "data shapes",
        "warmup_epoch": "data shapes",
    }
    assert list(sources) == list(option_table())


def test_the_configuration_holds_the_values_of_the_settings() -> None:
    resolved = found({"lr": 0.7, "model": "resnet50", "data": "generated"})

    assert isinstance(resolved.config, RunConfig)
    assert resolved.config.learning_rate.lr == 0.7
    assert resolved.config.network.model == "resnet50"


def test_a_data_set_brings_its_recipe_from_whatever_source_it_was_chosen() -> None:
    asked = {"data": "cifar10", "data_dir": "DATA"}
    by_line, by_file = found(asked), found(named=asked)

    assert by_line.settings["epoch"] == Setting(20.0, "data cifar10")
    assert by_file.settings["epoch"] == Setting(20.0, "data cifar10")


@pytest.mark.parametrize(("low", "high"), list(combinations(range(4), 2)))
def test_a_higher_source_wins_over_a_lower_one(low: int, high: int) -> None:
    """default < environment < named configuration < command line, on an option of all four."""
    sources: list[dict[str, Any]] = [
        {},
        {"environment": {"DATA_DIR": "environment"}},
        {"named": {"data_dir": "named"}},
        {"line": {"data_dir": "line"}},
    ]
    wanted = [
        Setting(None, "default"),
        Setting("environment", "environment DATA_DIR"),
        Setting("named", "default.yaml, line 1"),
        Setting("line", "command line"),
    ]

    assert found(**(sources[low] | sources[high])).settings["data_dir"] == wanted[high]


@pytest.mark.parametrize("place", ["named", "line"])
def test_a_source_wins_over_what_model_and_data_bring(place: str) -> None:
    asked = {"data": "cifar10", "data_dir": "DATA", "norm_num_groups": 8, "epoch": 3.0}
    settings = found(**{place: asked}).settings

    assert settings["norm_num_groups"].value == 8
    assert settings["epoch"].value == 3.0
    assert settings["warmup_epoch"] == Setting(1.0, "data cifar10")


def test_an_empty_variable_is_no_variable() -> None:
    assert found(environment={"DATA_DIR": ""}).settings["data_dir"] == Setting(None, "default")


def test_the_environment_of_the_process_is_read_unless_another_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATA_DIR", "/data")

    assert resolve(RequestedOptions()).config.data.data_dir == "/data"


def length(resolved: Resolved) -> tuple[float | None, int | None]:
    return resolved.config.length.epoch, resolved.config.length.updates


@pytest.mark.parametrize(
    ("named", "line", "wanted"),
    [
        ({}, {}, (3.0, None)),
        ({}, {"updates": 3}, (None, 3)),
        ({}, {"epoch": 3.0}, (3.0, None)),
        ({"updates": 3}, {}, (None, 3)),
        ({"updates": 3}, {"epoch": 2.0}, (2.0, None)),
        ({"epoch": 2.0}, {"updates": 3}, (None, 3)),
        ({"epoch": 2.0, "updates": None}, {"updates": 3}, (None, 3)),
        ({"epoch": None, "updates": 3}, {}, (None, 3)),
        ({"epoch": 2.0, "updates": 7}, {"updates": 3}, (None, 3)),
        ({"data": "cifar10", "data_dir": "DATA", "updates": 3}, {}, (None, 3)),
    ],
)
def test_the_higher_source_of_a_length_unsets_the_other(
    named: dict[str, Any], line: dict[str, Any], wanted: tuple[float | None, int | None]
) -> None:
    assert length(found(line, named)) == wanted


def test_an_unset_length_names_who_unset_it() -> None:
    assert found({"updates": 3}).settings["epoch"] == Setting(None, "command line")


@pytest.mark.parametrize("place", ["named", "line"])
def test_two_lengths_of_one_source_are_refused(place: str) -> None:
    with pytest.raises(ConfigError, match="--epoch and --updates both set the length"):
        found(**{place: {"epoch": 1.0, "updates": 2}})


@pytest.mark.parametrize(
    ("named", "line", "wanted"),
    [
        ({}, {}, (4, None)),
        ({}, {"log_freq": 7}, (None, 7)),
        ({"log_freq": 7}, {}, (None, 7)),
        ({"log_freq": 7}, {"logs_per_epoch": 0}, (0, None)),
        ({"logs_per_epoch": 2}, {"log_freq": 7}, (None, 7)),
        ({"logs_per_epoch": None, "log_freq": 7}, {"logs_per_epoch": 2}, (2, None)),
    ],
)
def test_the_higher_source_of_a_rhythm_of_reports_unsets_the_other(
    named: dict[str, Any], line: dict[str, Any], wanted: tuple[int | None, int | None]
) -> None:
    report = found(line, named).config.report

    assert (report.logs_per_epoch, report.log_freq) == wanted


@pytest.mark.parametrize("place", ["named", "line"])
def test_two_rhythms_of_one_source_are_refused(place: str) -> None:
    with pytest.raises(ConfigError, match="--log-freq and --logs-per-epoch both say how often"):
        found(**{place: {"log_freq": 7, "logs_per_epoch": 4}})


def test_a_length_that_is_only_taken_away_is_refused() -> None:
    with pytest.raises(ConfigError, match="--epoch or --updates must set the length"):
        found(named={"epoch": None})


def test_every_problem_is_heard_in_one_error() -> None:
    asked = RequestedOptions(
        from_source("command line", {"model": "resnet51", "epoch": 1.0, "updates": 2}),
        problems=[Problem("", "unknown option --lrr"), Problem("x.yaml, line 3: lr", "is odd")],
        environment={"DATA_DIR": "a\x07"},
    )

    assert [line[:30] for line in refused(asked)] == [
        "unknown option --lrr",
        "x.yaml, line 3: lr is odd",
        "environment DATA_DIR holds the",
        "--model 'resnet51' is unknown;",
        "--epoch and --updates both set",
    ]


def test_limits_hold_for_variables_too(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = Declaration("Seed.", Limit(at_least=0), env="SEED")
    table = option_table() | {"seed": Option("seed", "data", ValueType(int), 0, declared)}
    monkeypatch.setattr(resolve_module, "option_table", lambda: table)

    assert refused(RequestedOptions(environment={"SEED": "-3"})) == [
        "environment SEED must be at least 0, got -3"
    ]
    assert resolve(RequestedOptions(environment={"SEED": "3"})).settings["seed"].value == 3
