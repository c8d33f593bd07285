"""The precedence of sources, and the source of every value."""

from itertools import combinations
from typing import Any

import pytest

from convoy.config import schema as schema_module
from convoy.config.option import Limit, Option, ValueType
from convoy.config.resolve import ResolvedConfig, resolve
from convoy.config.schema import (
    Problem,
    RequestedOptions,
    RunConfig,
    Setting,
    option_table,
    settings_from,
)
from convoy.errors import ConfigError


def resolve_sources(
    command_line: dict[str, Any] | None = None,
    named: dict[str, Any] | None = None,
    environment: dict[str, str] | None = None,
) -> ResolvedConfig:
    return resolve(
        RequestedOptions(
            settings_from("command line", command_line or {}),
            settings_from("default.yaml, line 1", named or {}),
            environment=environment or {},
        )
    )


def problem_lines(request: RequestedOptions) -> list[str]:
    with pytest.raises(ConfigError) as error:
        resolve(request)
    return str(error.value).splitlines()


def test_without_settings_the_defaults_of_options_model_and_data_apply() -> None:
    resolved = resolve_sources()
    sources = {name: setting.source for name, setting in resolved.settings.items()}

    assert resolved.config.network.norm_num_groups == 16
    assert {name: source for name, source in sources.items() if source != "default"} == {
        "norm_num_groups": "model resnet14",
        "epoch": "data shapes",
        "warmup_epoch": "data shapes",
    }
    assert list(sources) == list(option_table())


def test_the_config_has_the_values_of_the_settings() -> None:
    resolved = resolve_sources({"lr": 0.7, "model": "resnet50", "data": "generated"})

    assert isinstance(resolved.config, RunConfig)
    assert resolved.config.learning_rate.lr == 0.7
    assert resolved.config.network.model == "resnet50"


def test_a_dataset_sets_its_defaults_whatever_source_chose_it() -> None:
    values = {"data": "cifar10", "data_dir": "DATA"}
    from_command_line, from_file = resolve_sources(values), resolve_sources(named=values)

    assert from_command_line.settings["epoch"] == Setting(20.0, "data cifar10")
    assert from_file.settings["epoch"] == Setting(20.0, "data cifar10")


@pytest.mark.parametrize(("low", "high"), list(combinations(range(4), 2)))
def test_a_higher_source_overrides_a_lower_one(low: int, high: int) -> None:
    """The order is default, environment, named configuration, command line."""
    sources: list[dict[str, Any]] = [
        {},
        {"environment": {"DATA_DIR": "environment"}},
        {"named": {"data_dir": "named"}},
        {"command_line": {"data_dir": "line"}},
    ]
    expected = [
        Setting(None, "default"),
        Setting("environment", "environment DATA_DIR"),
        Setting("named", "default.yaml, line 1"),
        Setting("line", "command line"),
    ]

    assert resolve_sources(**(sources[low] | sources[high])).settings["data_dir"] == expected[high]


@pytest.mark.parametrize("layer", ["named", "command_line"])
def test_a_source_overrides_the_defaults_of_model_and_data(layer: str) -> None:
    values = {"data": "cifar10", "data_dir": "DATA", "norm_num_groups": 8, "epoch": 3.0}
    settings = resolve_sources(**{layer: values}).settings

    assert settings["norm_num_groups"].value == 8
    assert settings["epoch"].value == 3.0
    assert settings["warmup_epoch"] == Setting(1.0, "data cifar10")


def test_an_empty_environment_variable_is_ignored() -> None:
    assert resolve_sources(environment={"DATA_DIR": ""}).settings["data_dir"] == Setting(
        None, "default"
    )


def test_the_environment_of_the_process_is_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DATA_DIR", "/data")

    assert resolve(RequestedOptions()).config.data.data_dir == "/data"


def training_length(resolved: ResolvedConfig) -> tuple[float | None, int | None]:
    return resolved.config.length.epoch, resolved.config.length.updates


@pytest.mark.parametrize(
    ("named", "command_line", "expected"),
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
    named: dict[str, Any], command_line: dict[str, Any], expected: tuple[float | None, int | None]
) -> None:
    assert training_length(resolve_sources(command_line, named)) == expected


def test_the_source_of_an_unset_length_is_the_one_that_unset_it() -> None:
    assert resolve_sources({"updates": 3}).settings["epoch"] == Setting(None, "command line")


@pytest.mark.parametrize("layer", ["named", "command_line"])
def test_two_lengths_of_one_source_are_refused(layer: str) -> None:
    with pytest.raises(ConfigError, match="--epochs and --updates both set"):
        resolve_sources(**{layer: {"epoch": 1.0, "updates": 2}})


@pytest.mark.parametrize(
    ("named", "command_line", "expected"),
    [
        ({}, {}, (4, None)),
        ({}, {"log_freq": 7}, (None, 7)),
        ({"log_freq": 7}, {}, (None, 7)),
        ({"log_freq": 7}, {"logs_per_epoch": 0}, (0, None)),
        ({"logs_per_epoch": 2}, {"log_freq": 7}, (None, 7)),
        ({"logs_per_epoch": None, "log_freq": 7}, {"logs_per_epoch": 2}, (2, None)),
    ],
)
def test_the_higher_source_of_a_report_interval_unsets_the_other(
    named: dict[str, Any], command_line: dict[str, Any], expected: tuple[int | None, int | None]
) -> None:
    report = resolve_sources(command_line, named).config.report

    assert (report.logs_per_epoch, report.log_freq) == expected


@pytest.mark.parametrize("layer", ["named", "command_line"])
def test_two_report_intervals_of_one_source_are_refused(layer: str) -> None:
    with pytest.raises(ConfigError, match="--log-freq and --logs-per-epoch both set"):
        resolve_sources(**{layer: {"log_freq": 7, "logs_per_epoch": 4}})


def test_an_unset_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="--epochs or --updates must set"):
        resolve_sources(named={"epoch": None})


def test_all_problems_are_reported_in_one_error() -> None:
    request = RequestedOptions(
        settings_from("command line", {"model": "resnet51", "epoch": 1.0, "updates": 2}),
        problems=[Problem("", "unknown option --lrr"), Problem("x.yaml, line 3: lr", "is odd")],
        environment={"DATA_DIR": "a\x07"},
    )

    assert [line[:31] for line in problem_lines(request)] == [
        "unknown option --lrr",
        "x.yaml, line 3: lr is odd",
        "environment DATA_DIR contains t",
        "--model 'resnet51' is unknown; ",
        "--epochs and --updates both set",
    ]


def test_limits_also_apply_to_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = Option("seed", "data", ValueType(int), 0, "Seed.", Limit(at_least=0), env_var="SEED")
    table = option_table() | {"seed": seed}
    monkeypatch.setattr(schema_module, "option_table", lambda: table)

    assert problem_lines(RequestedOptions(environment={"SEED": "-3"})) == [
        "environment SEED must be at least 0, got -3"
    ]
    assert resolve(RequestedOptions(environment={"SEED": "3"})).settings["seed"].value == 3
