"""convoy run: configurations in a file of the reader's own."""

import shlex
from pathlib import Path

import pytest
from dry_runs import Meaning, dry, refusals, repeated, values
from readme_commands import ROWS, Row

# As the TensorFlow program has them: its own keys, and one that builds on another.
FILE = """\
base: &base
  model: resnet
  model_size: 50
  dataset: imagenet
  epochs: 30
  optimiser: momentum
  momentum: 0.9
  batch_size: 4

my_config:
  <<: *base
  batch_size: 8
  gradient_accumulation_count: 16
  replicas: 2
  validation: False
"""
MY_LINES = [row for row in ROWS if "my_config" in row.tail]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said_of(plan: Meaning) -> tuple[object, ...]:
    batch, rate = plan["batch"]["samples_per_update"], plan["learning_rate"]["base"]
    return plan["model"], batch, rate, plan["updates"]["epochs"]


@pytest.mark.parametrize(("row", "epochs"), list(zip(MY_LINES, (30, 50), strict=True)))
@pytest.mark.parametrize(
    ("program", "folder"),
    [("train.py", "."), ("cnns/train.py", "."), ("cnns/train.py", "cnns")],
)
def test_a_file_here_or_beside_the_program_defines_it(
    row: Row, epochs: int, program: str, folder: str
) -> None:
    Path(folder).mkdir(exist_ok=True)
    (Path(folder) / "configs.yml").write_text(FILE)
    meaning = dry(row.line.replace("train.py", program))

    # 8 × 16 × 2; momentum: 2^-11 × 256
    assert said_of(meaning["plan"]) == ("resnet50", 256, 0.125, epochs)
    assert values(meaning["plan"])["validation_mode"] == "none"
    assert meaning["dialect"] == "tensorflow"
    assert repeated(meaning) == values(meaning["plan"])


def test_every_value_of_it_keeps_its_line(here: Path) -> None:
    (here / "configs.yml").write_text(FILE)
    options = dry("python3 train.py --config my_config --epochs 50")["plan"]["options"]

    assert options["micro_batch_size"] == {"value": 8, "source": "configs.yml, line 12"}
    assert options["data"] == {"value": "imagenet", "source": "configs.yml, line 4"}
    assert options["epoch"] == {"value": 50.0, "source": "command line"}


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("configs.yml", "--config=my_config"),
        ("other.yml", "--config-path other.yml --config my_config"),
        ("other.yml", "--config my_config --config-path=other.yml"),
    ],
)
def test_each_way_of_naming_it_finds_who_wrote_it(here: Path, file: str, words: str) -> None:
    (here / file).write_text(FILE)
    meaning = dry(f"python3 train.py {words}")

    assert meaning["dialect"] == "tensorflow"
    assert said_of(meaning["plan"]) == ("resnet50", 256, 0.125, 30)


def test_a_file_of_the_pytorch_program_is_read_in_its_words(here: Path) -> None:
    (here / "configs.yml").write_text(
        "my_config:\n  model: resnet50\n  data: imagenet\n  micro_batch_size: 3\n  epoch: 7\n"
    )
    meaning = dry("python3 train.py --config my_config")

    assert meaning["dialect"] == "pytorch"
    assert said_of(meaning["plan"]) == ("resnet50", 3, 0.01, 7)


def test_a_file_of_the_reader_wins_over_what_is_shipped(here: Path) -> None:
    (here / "configs.yml").write_text(
        "resnet50: {model: resnet50, data: imagenet, lr: 3, micro_batch_size: 2}"
    )
    meaning = dry("python3 train.py --config resnet50")

    assert said_of(meaning["plan"]) == ("resnet50", 2, 3, 10)
    assert "--config" not in shlex.split(meaning["command"])


def test_a_file_that_does_not_know_the_name_is_passed_over(here: Path) -> None:
    (here / "configs.yml").write_text(FILE)

    assert dry("python3 train.py --config resnet50")["command"].startswith(
        "convoy train --config resnet50 "
    )


def test_a_misspelt_name_is_answered_with_those_of_the_file(here: Path) -> None:
    (here / "configs.yml").write_text(FILE)

    assert refusals("python3 train.py --config my_confg") == [
        "--config 'my_confg' is not shipped, and no configs.yml here defines it; "
        "did you mean my_config?"
    ]


def test_a_file_that_cannot_be_read_is_told(here: Path) -> None:
    (here / "configs.yml").write_text("my_config: [")
    (broken,) = refusals("python3 train.py --config my_config")

    assert broken.startswith("configs.yml, line 2: not YAML")


@pytest.mark.parametrize("text", ["resnet50: [", "resnet50:\n", "resnet50: [a]\n", "a: 1\na: 2\n"])
def test_a_faulty_file_is_never_passed_over_for_what_is_shipped(here: Path, text: str) -> None:
    (here / "configs.yml").write_text(text)

    assert refusals("python3 train.py --config resnet50")[0].startswith("configs.yml")


def test_every_wrong_key_of_it_is_told_with_its_line(here: Path) -> None:
    (here / "configs.yml").write_text(
        "my_config:\n  batch_size: 8\n  model_sise: 50\n  epochs: long\n  shards: 4\n"
    )
    told = refusals("python3 train.py --config my_config --optimiser momentum")

    assert told[0].startswith(
        "configs.yml, line 3: model_sise is no option; did you mean model_size"
    )
    assert told[1].startswith("configs.yml, line 4: epochs expects a number, got 'long'")
    assert told[2] == "configs.yml: --shards 4 needs --pipeline"
    assert len(told) == 3
