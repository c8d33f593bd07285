"""Named configurations: shipped ones, files and their entries, and errors with line numbers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support.sweeps import sweep

from convoy.config import named_configs
from convoy.config.named_configs import read_named_config, read_settings, shipped_config_names
from convoy.config.schema import Setting
from convoy.errors import ConfigError

Write = Callable[[str], str]

SEVERAL_CONFIGS = """
base: &base
  model: resnet20
  lr: 0.2
steady: &steady
  momentum: 0.8
  lr: 0.3
fast:
  <<: *base
  lr: 0.4
both:
  <<: [*base, *steady]
  seed: 7
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write `custom.yaml` into the working directory."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "custom.yaml").write_text(text)
        return "custom.yaml"

    return write


@pytest.fixture
def shipped_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two configurations that replaces the shipped ones."""
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "small.yaml").write_text("# Small.\nmodel: resnet8\nlr: 0.05\n")
    (folder / "broken.yaml").write_text("modle: resnet8\n")
    monkeypatch.setattr(
        named_configs, "shipped_configs", partial(named_configs.shipped_configs, folder)
    )
    return folder


def problems(path: str) -> list[str]:
    return [str(problem) for problem in read_named_config(None, path)[1]]


def error_message(name: str | None, path: str | None) -> str:
    with pytest.raises(ConfigError) as error:
        read_named_config(name, path)
    return str(error.value)


def test_without_a_name_and_a_file_nothing_is_read() -> None:
    assert read_named_config(None, None) == ({}, [])


@pytest.mark.usefixtures("shipped_folder")
def test_the_source_of_a_shipped_value_is_its_name_and_line() -> None:
    assert shipped_config_names() == ["broken", "small"]
    assert read_named_config("small", None) == (
        {
            "model": Setting("resnet8", "config small, line 2"),
            "lr": Setting(0.05, "config small, line 3"),
        },
        [],
    )


@pytest.mark.usefixtures("shipped_folder")
def test_a_shipped_configuration_is_checked() -> None:
    (problem,) = read_named_config("broken", None)[1]

    assert str(problem).startswith(
        "config broken, line 1: modle is not an option; did you mean model"
    )


@pytest.mark.usefixtures("shipped_folder")
def test_an_unknown_name_is_refused_with_similar_names() -> None:
    assert error_message("smal", None) == "--config 'smal' is unknown; did you mean small?"
    assert error_message("../small", None).startswith("--config '../small' is unknown")


@sweep("name", shipped_config_names())
def test_every_shipped_configuration_is_valid(name: str) -> None:
    settings, problems = read_named_config(name, None)

    assert settings and not problems


def test_a_flat_file_is_read_with_lines_and_types(write: Write) -> None:
    path = write("lr: 1e-3\n\nepoch: 2\naugment: false\npipeline_splits: [a, b]\n")

    assert read_named_config(None, path) == (
        {
            "lr": Setting(0.001, "custom.yaml, line 1"),
            "epoch": Setting(2.0, "custom.yaml, line 3"),
            "augment": Setting(False, "custom.yaml, line 4"),
            "pipeline_splits": Setting(("a", "b"), "custom.yaml, line 5"),
        },
        [],
    )


def test_an_entry_of_a_file_is_read_by_name(write: Write) -> None:
    settings, _ = read_named_config("base", write(SEVERAL_CONFIGS))

    assert settings == {
        "model": Setting("resnet20", "custom.yaml, line 3"),
        "lr": Setting(0.2, "custom.yaml, line 4"),
    }


def test_a_merged_value_keeps_the_line_where_it_was_written(write: Write) -> None:
    settings, _ = read_named_config("fast", write(SEVERAL_CONFIGS))

    assert settings["model"] == Setting("resnet20", "custom.yaml, line 3")
    assert settings["lr"] == Setting(0.4, "custom.yaml, line 10")


def test_the_later_of_two_merged_parents_applies(write: Write) -> None:
    settings, _ = read_named_config("both", write(SEVERAL_CONFIGS))

    assert {name: setting.value for name, setting in settings.items()} == {
        "model": "resnet20",
        "lr": 0.3,
        "momentum": 0.8,
        "seed": 7,
    }


def test_an_unknown_entry_is_refused_with_similar_names(write: Write) -> None:
    path = write(SEVERAL_CONFIGS)

    assert error_message("fats", path).startswith(
        "custom.yaml has no configuration 'fats'; did you mean fast"
    )


def test_a_file_with_several_entries_needs_a_name(write: Write) -> None:
    message = error_message(None, write(SEVERAL_CONFIGS))

    assert message.startswith("custom.yaml contains several configurations")
    assert message.endswith("--config: base, steady, fast, both")


def test_a_file_with_one_configuration_has_no_names(write: Write) -> None:
    path = write("lr: 1\n")

    assert error_message("fast", path) == (
        "custom.yaml contains one configuration without a name; remove --config"
    )


def test_an_empty_file_sets_nothing(write: Write) -> None:
    assert read_named_config(None, write("# nothing\n")) == ({}, [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\nbatch_sise: 3", "custom.yaml, line 2: batch_sise is not an option; did you mean"),
        ("lr: fast", "custom.yaml, line 1: lr expects a number, got 'fast'"),
        ("lr: {a: 1}", "custom.yaml, line 1: lr expects a number, got several values"),
        ("epoch: 1\nseed: 1.5", "custom.yaml, line 2: seed expects an integer, got 1.5"),
        ("replicas: true", "custom.yaml, line 1: replicas expects an integer, got true"),
        ("augment: no", "custom.yaml, line 1: augment expects true or false, got 'no'"),
        ("name: 5", "custom.yaml, line 1: name expects a string, got 5"),
        ("momentum:", "custom.yaml, line 1: momentum expects a number, got nothing"),
        ("lr: -1", "custom.yaml, line 1: lr must be at least 0, got -1"),
        ("micro_batch_size: 0", "custom.yaml, line 1: micro_batch_size must be at least 1, got 0"),
        ("stem: smal", "custom.yaml, line 1: stem cannot be 'smal'; did you mean small?"),
        ("'l\\nr': 1", "is not an option"),
    ],
)
def test_a_problem_is_reported_with_file_line_and_key(
    write: Write, text: str, message: str
) -> None:
    (problem,) = problems(write(text))

    assert message in problem and "\n" not in problem


def test_all_problems_of_a_file_are_reported_together(write: Write) -> None:
    lines = problems(write("lrr: 1\nseed: x\nlr: -1\nepoch: 3\n"))

    assert [line.split(":")[0] for line in lines] == [
        f"custom.yaml, line {line}" for line in (1, 2, 3)
    ]


def test_a_value_beyond_its_limits_is_still_in_the_settings(write: Write) -> None:
    settings, problems = read_named_config(None, write("data: mnist\n"))

    assert settings == {"data": Setting("mnist", "custom.yaml, line 1")}
    assert len(problems) == 1


def test_a_key_set_twice_is_refused_with_both_lines(write: Write) -> None:
    path = write("lr: 1\nseed: 2\nlr: 2\n")

    assert error_message(None, path) == "custom.yaml, line 3: the key 'lr' is already set on line 1"


def test_a_missing_file_is_refused(write: Write) -> None:
    write("")

    assert error_message(None, "none.yaml") == "configuration file none.yaml does not exist"


def test_the_source_of_a_value_is_the_path_of_its_file(write: Write) -> None:
    assert read_settings(Path(write("seed: 3\n"))) == (
        {"seed": Setting(3, "custom.yaml, line 1")},
        [],
    )
