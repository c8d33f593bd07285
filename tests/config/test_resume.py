"""A run that goes on keeps its configuration, unless a change is meant."""

from pathlib import Path
from typing import Any

import pytest

from convoy.config.resolve import RequestedOptions, resolve, resolve_resumed, settings_of_run
from convoy.config.settings import Problem, Setting, digest, from_source, settings_as_yaml
from convoy.errors import ConfigError


def line(**values: Any) -> dict[str, Setting]:
    return from_source("command line", values)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """The file of a run that was started with a few options."""
    asked = line(lr=0.3, updates=20, stop_after=7, data_dir="DATA", name="old")
    path = tmp_path / "config.yaml"
    path.write_text(settings_as_yaml(resolve(RequestedOptions(asked, environment={})).settings))
    return path


def test_a_run_says_what_it_was(config: Path) -> None:
    settings = settings_of_run(config)

    assert settings["lr"].value == 0.3
    assert settings["lr"].source.startswith(f"{config}, line ")


def test_a_wish_for_one_part_of_the_run_is_forgotten(config: Path) -> None:
    assert "stop_after" not in settings_of_run(config)
    assert resolve_resumed(settings_of_run(config), {}, [], False).config.length.stop_after is None


def test_nothing_given_is_the_same_run(config: Path) -> None:
    started = resolve(RequestedOptions(line(lr=0.3, updates=20), environment={}))
    resumed = resolve_resumed(settings_of_run(config), {}, [], override=False)

    assert digest(resumed.settings) == digest(started.settings)
    assert (resumed.config.length.epoch, resumed.config.length.updates) == (None, 20)


def test_what_the_weights_do_not_depend_on_may_change(config: Path) -> None:
    given = line(dataloader_worker=4, stop_after=9, data_dir="ELSEWHERE", keep_last=2)
    resumed = resolve_resumed(settings_of_run(config), given, [], override=False).config

    assert (resumed.data.dataloader_worker, resumed.data.data_dir) == (4, "ELSEWHERE")
    assert resumed.length.stop_after == 9


@pytest.mark.parametrize(("said", "folder"), [("data_dir: DATA\n", "DATA"), ("seed: 1\n", None)])
def test_the_environment_does_not_change_a_run(
    config: Path, monkeypatch: pytest.MonkeyPatch, said: str, folder: str | None
) -> None:
    monkeypatch.setenv("DATA_DIR", "/elsewhere")
    config.write_text(said)
    resumed = resolve_resumed(settings_of_run(config), {}, [], override=False)

    assert resumed.config.data.data_dir == folder


def test_another_training_is_refused_with_every_difference(config: Path) -> None:
    with pytest.raises(ConfigError) as error:
        resolve_resumed(settings_of_run(config), line(lr=0.1, epoch=2.0), [], override=False)

    assert str(error.value) == (
        "this would be another training: --epoch was –, now 2; --updates was 20, now –; "
        "--lr was 0.3, now 0.1; leave it out, or add --override to go on with the change"
    )


def test_another_training_goes_on_if_it_is_meant(config: Path) -> None:
    resumed = resolve_resumed(settings_of_run(config), line(lr=0.1), [], override=True)

    assert resumed.config.learning_rate.lr == 0.1


def test_the_same_value_given_again_is_no_change(config: Path) -> None:
    resumed = resolve_resumed(settings_of_run(config), line(lr=0.3), [], override=False)

    assert resumed.settings["lr"] == Setting(0.3, "command line")


def test_what_is_settled_when_a_run_starts_cannot_be_given_again(config: Path) -> None:
    given = line(name_suffix="b", log_dir="elsewhere", init_path="other")

    with pytest.raises(ConfigError) as error:
        resolve_resumed(settings_of_run(config), given, [], override=True)

    assert str(error.value).splitlines() == [
        "--init-path cannot be given: a run goes on with its own weights",
        "--log-dir cannot be given: a run stays in its folder",
        "--name-suffix cannot be given: a run stays in its folder",
    ]


def test_problems_of_the_command_line_are_told(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"^unknown option --lrr$"):
        resolve_resumed(settings_of_run(config), {}, [Problem("", "unknown option --lrr")], True)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no run: there is no config\.yaml$"):
        settings_of_run(tmp_path / "config.yaml")


def test_a_file_with_faults_is_refused_with_all_of_them(config: Path) -> None:
    config.write_text(config.read_text() + "lrr: 1\ntempo: 2\n")

    with pytest.raises(ConfigError) as error:
        settings_of_run(config)

    assert len(str(error.value).splitlines()) == 2
