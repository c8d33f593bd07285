"""Named configurations: shipped ones, a user's file, one entry of it; every fault with its line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from convoy.config import named
from convoy.config.named import read_named, read_settings, shipped_names
from convoy.config.settings import Setting
from convoy.errors import ConfigError

Write = Callable[[str], str]

FLEET = """
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
    """Writes `mine.yaml` into the working folder."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "mine.yaml").write_text(text)
        return "mine.yaml"

    return write


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of shipped configurations with two in it."""
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "small.yaml").write_text("# Small.\nmodel: resnet8\nlr: 0.05\n")
    (folder / "broken.yaml").write_text("modle: resnet8\n")
    monkeypatch.setattr(named, "SHIPPED", folder)
    return folder


def problems(path: str) -> list[str]:
    return [str(problem) for problem in read_named(None, path)[1]]


def refused(name: str | None, path: str | None) -> str:
    with pytest.raises(ConfigError) as error:
        read_named(name, path)
    return str(error.value)


def test_nothing_asked_is_nothing_read() -> None:
    assert read_named(None, None) == ({}, [])


@pytest.mark.usefixtures("shipped")
def test_a_shipped_configuration_names_itself_and_the_line() -> None:
    assert shipped_names() == ["broken", "small"]
    assert read_named("small", None) == (
        {
            "model": Setting("resnet8", "config small, line 2"),
            "lr": Setting(0.05, "config small, line 3"),
        },
        [],
    )


@pytest.mark.usefixtures("shipped")
def test_a_shipped_configuration_is_checked_as_well() -> None:
    (problem,) = read_named("broken", None)[1]

    assert str(problem).startswith("config broken, line 1: modle is no option; did you mean model")


@pytest.mark.usefixtures("shipped")
def test_an_unknown_name_is_refused_with_near_ones() -> None:
    assert refused("smal", None) == "--config 'smal' is unknown; did you mean small?"
    assert refused("../small", None).startswith("--config '../small' is unknown")


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_configuration_is_sound(name: str) -> None:
    settings, problems = read_named(name, None)

    assert settings and not problems


def test_a_flat_file_is_read_with_lines_and_types(write: Write) -> None:
    path = write("lr: 1e-3\n\nepoch: 2\naugment: false\npipeline_splits: [a, b]\n")

    assert read_named(None, path) == (
        {
            "lr": Setting(0.001, "mine.yaml, line 1"),
            "epoch": Setting(2.0, "mine.yaml, line 3"),
            "augment": Setting(False, "mine.yaml, line 4"),
            "pipeline_splits": Setting(("a", "b"), "mine.yaml, line 5"),
        },
        [],
    )


def test_an_entry_of_a_file_is_read_by_name(write: Write) -> None:
    settings, _ = read_named("base", write(FLEET))

    assert settings == {
        "model": Setting("resnet20", "mine.yaml, line 3"),
        "lr": Setting(0.2, "mine.yaml, line 4"),
    }


def test_a_merged_value_keeps_the_line_where_it_was_written(write: Write) -> None:
    settings, _ = read_named("fast", write(FLEET))

    assert settings["model"] == Setting("resnet20", "mine.yaml, line 3")
    assert settings["lr"] == Setting(0.4, "mine.yaml, line 10")


def test_of_two_merged_parents_the_later_wins(write: Write) -> None:
    settings, _ = read_named("both", write(FLEET))

    assert {name: one.value for name, one in settings.items()} == {
        "model": "resnet20",
        "lr": 0.3,
        "momentum": 0.8,
        "seed": 7,
    }


def test_an_unknown_entry_is_refused_with_near_ones(write: Write) -> None:
    path = write(FLEET)

    assert refused("fats", path).startswith(
        "mine.yaml has no configuration 'fats'; did you mean fast"
    )


def test_a_file_of_entries_asks_for_a_name(write: Write) -> None:
    path = write(FLEET)

    assert refused(None, path) == (
        "mine.yaml holds several configurations; choose with --config: base, steady, fast, both"
    )


def test_a_flat_file_has_no_names(write: Write) -> None:
    path = write("lr: 1\n")

    assert refused("fast", path) == (
        "mine.yaml holds one configuration without a name; leave out --config"
    )


def test_an_empty_file_sets_nothing(write: Write) -> None:
    assert read_named(None, write("# nothing\n")) == ({}, [])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\nbatch_sise: 3", "mine.yaml, line 2: batch_sise is no option; did you mean"),
        ("lr: fast", "mine.yaml, line 1: lr expects a number, got 'fast'"),
        ("lr: {a: 1}", "mine.yaml, line 1: lr expects a number, got several values"),
        ("epoch: 1\nseed: 1.5", "mine.yaml, line 2: seed expects a whole number, got 1.5"),
        ("replicas: true", "mine.yaml, line 1: replicas expects a whole number, got true"),
        ("augment: no", "mine.yaml, line 1: augment expects true or false, got 'no'"),
        ("name: 5", "mine.yaml, line 1: name expects text, got 5"),
        ("momentum:", "mine.yaml, line 1: momentum expects a number, got nothing"),
        ("lr: -1", "mine.yaml, line 1: lr must be at least 0, got -1"),
        ("micro_batch_size: 0", "mine.yaml, line 1: micro_batch_size must be at least 1, got 0"),
        ("stem: smal", "mine.yaml, line 1: stem cannot be 'smal'; did you mean small?"),
        ("'l\\nr': 1", "is no option"),
    ],
)
def test_a_wrong_value_is_told_with_file_line_and_key(write: Write, text: str, told: str) -> None:
    (problem,) = problems(write(text))

    assert told in problem and "\n" not in problem


def test_all_problems_of_a_file_come_together(write: Write) -> None:
    told = problems(write("lrr: 1\nseed: x\nlr: -1\nepoch: 3\n"))

    assert [line.split(":")[0] for line in told] == [f"mine.yaml, line {n}" for n in (1, 2, 3)]


def test_a_value_beyond_its_limits_stays_for_the_rules(write: Write) -> None:
    settings, problems = read_named(None, write("data: mnist\n"))

    assert settings == {"data": Setting("mnist", "mine.yaml, line 1")}
    assert len(problems) == 1


def test_a_key_set_twice_is_refused_with_both_lines(write: Write) -> None:
    path = write("lr: 1\nseed: 2\nlr: 2\n")

    assert refused(None, path) == "mine.yaml, line 3: the key 'lr' is already set on line 1"


def test_a_missing_file_is_refused(write: Write) -> None:
    write("")

    assert refused(None, "none.yaml") == "there is no configuration file none.yaml"


def test_settings_of_a_file_carry_its_path(write: Write) -> None:
    assert read_settings(Path(write("seed: 3\n"))) == (
        {"seed": Setting(3, "mine.yaml, line 1")},
        [],
    )
