"""A resumed run keeps its configuration, unless a change is requested."""

from pathlib import Path
from typing import Any

import pytest

from convoy.config.resolve import read_run_settings, resolve, resolve_resumed
from convoy.config.schema import (
    Problem,
    RequestedOptions,
    Setting,
    config_digest,
    settings_as_yaml,
    settings_from,
)
from convoy.errors import ConfigError


def command_line_settings(**values: Any) -> dict[str, Setting]:
    return settings_from("command line", values)


@pytest.fixture
def config_path(tmp_path: Path) -> Path:
    """The config.yaml of a run that was started with a few options."""
    settings = command_line_settings(lr=0.3, updates=20, stop_after=7, data_dir="DATA", name="old")
    path = tmp_path / "config.yaml"
    path.write_text(settings_as_yaml(resolve(RequestedOptions(settings, environment={})).settings))
    return path


def test_the_settings_of_a_run_are_read_from_its_file(config_path: Path) -> None:
    settings = read_run_settings(config_path)

    assert settings["lr"].value == 0.3
    assert settings["lr"].source.startswith(f"{config_path}, line ")


def test_stop_after_does_not_apply_to_a_resumed_run(config_path: Path) -> None:
    assert "stop_after" not in read_run_settings(config_path)
    assert (
        resolve_resumed(read_run_settings(config_path), {}, [], False).config.length.stop_after
        is None
    )


def test_without_changes_the_config_is_the_same(config_path: Path) -> None:
    started = resolve(RequestedOptions(command_line_settings(lr=0.3, updates=20), environment={}))
    resumed = resolve_resumed(read_run_settings(config_path), {}, [], override=False)

    assert config_digest(resumed.settings) == config_digest(started.settings)
    assert (resumed.config.length.epoch, resumed.config.length.updates) == (None, 20)


def test_options_that_do_not_affect_the_weights_may_change(config_path: Path) -> None:
    changes = command_line_settings(
        dataloader_worker=4, stop_after=9, data_dir="ELSEWHERE", keep_last=2
    )
    resumed = resolve_resumed(read_run_settings(config_path), changes, [], override=False).config

    assert (resumed.data.dataloader_worker, resumed.data.data_dir) == (4, "ELSEWHERE")
    assert resumed.length.stop_after == 9


@pytest.mark.parametrize(("text", "folder"), [("data_dir: DATA\n", "DATA"), ("seed: 1\n", None)])
def test_the_environment_does_not_affect_a_resumed_run(
    config_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, folder: str | None
) -> None:
    monkeypatch.setenv("DATA_DIR", "/elsewhere")
    config_path.write_text(text)
    resumed = resolve_resumed(read_run_settings(config_path), {}, [], override=False)

    assert resumed.config.data.data_dir == folder


def test_a_changed_training_is_refused_with_every_difference(config_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_resumed(
            read_run_settings(config_path),
            command_line_settings(lr=0.1, epoch=2.0),
            [],
            override=False,
        )

    assert ("--epochs was –, now 2; --updates was 20, now –; --lr was 0.3, now 0.1; ") in str(
        error.value
    )
    assert "--override" in str(error.value)


def test_override_accepts_a_changed_training(config_path: Path) -> None:
    resumed = resolve_resumed(
        read_run_settings(config_path), command_line_settings(lr=0.1), [], override=True
    )

    assert resumed.config.learning_rate.lr == 0.1


def test_the_same_value_is_not_a_change(config_path: Path) -> None:
    resumed = resolve_resumed(
        read_run_settings(config_path), command_line_settings(lr=0.3), [], override=False
    )

    assert resumed.settings["lr"] == Setting(0.3, "command line")


def test_options_that_are_fixed_at_the_start_are_refused(config_path: Path) -> None:
    changes = command_line_settings(name_suffix="b", log_dir="elsewhere", init_path="other")

    with pytest.raises(ConfigError) as error:
        resolve_resumed(read_run_settings(config_path), changes, [], override=True)

    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == [
        "--init-path cannot be set",
        "--log-dir cannot be set",
        "--name-suffix cannot be set",
    ]


def test_problems_of_the_command_line_are_reported(config_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^unknown option --lrr$"):
        resolve_resumed(
            read_run_settings(config_path), {}, [Problem("", "unknown option --lrr")], True
        )


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a run folder: config\.yaml is missing$"):
        read_run_settings(tmp_path / "config.yaml")


def test_all_problems_of_the_file_are_reported(config_path: Path) -> None:
    config_path.write_text(config_path.read_text() + "lrr: 1\nunknown: 2\n")

    with pytest.raises(ConfigError) as error:
        read_run_settings(config_path)

    assert len(str(error.value).splitlines()) == 2
