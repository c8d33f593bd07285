"""convoy run: configuration files written by the user."""

import shlex
from pathlib import Path

import pytest
from support.dry_runs import Meaning, dry, refusals, repeated, values
from support.readme_commands import ROWS, Row

# In the format of the TensorFlow program, with an entry that merges another.
CONFIGS_YML = """\
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
MY_CONFIG_ROWS = [row for row in ROWS if "my_config" in row.arguments]


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan_values(plan: Meaning) -> tuple[object, ...]:
    batch, rate = plan["batch"]["samples_per_update"], plan["learning_rate"]["base"]
    return plan["model"], batch, rate, plan["updates"]["epochs"]


@pytest.mark.parametrize(("row", "epochs"), list(zip(MY_CONFIG_ROWS, (30, 50), strict=True)))
@pytest.mark.parametrize(
    ("program", "folder"),
    [("train.py", "."), ("cnns/train.py", "."), ("cnns/train.py", "cnns")],
)
def test_a_file_in_the_working_directory_or_beside_the_program_is_read(
    row: Row, epochs: int, program: str, folder: str
) -> None:
    Path(folder).mkdir(exist_ok=True)
    (Path(folder) / "configs.yml").write_text(CONFIGS_YML)
    description = dry(row.line.replace("train.py", program))

    # 8 × 16 × 2 samples; the learning rate of momentum is 2^-11 × 256.
    assert plan_values(description["plan"]) == ("resnet50", 256, 0.125, epochs)
    assert values(description["plan"])["validation_mode"] == "none"
    assert description["dialect"] == "tensorflow"
    assert repeated(description) == values(description["plan"])


def test_every_value_of_a_file_keeps_its_line(working_directory: Path) -> None:
    (working_directory / "configs.yml").write_text(CONFIGS_YML)
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
def test_the_file_and_the_configuration_can_be_given_in_any_form(
    working_directory: Path, file: str, words: str
) -> None:
    (working_directory / file).write_text(CONFIGS_YML)
    description = dry(f"python3 train.py {words}")

    assert description["dialect"] == "tensorflow"
    assert plan_values(description["plan"]) == ("resnet50", 256, 0.125, 30)


def test_a_file_of_the_pytorch_program_is_read_in_its_dialect(working_directory: Path) -> None:
    (working_directory / "configs.yml").write_text(
        "my_config:\n  model: resnet50\n  data: imagenet\n  micro_batch_size: 3\n  epoch: 7\n"
    )
    description = dry("python3 train.py --config my_config")

    assert description["dialect"] == "pytorch"
    assert plan_values(description["plan"]) == ("resnet50", 3, 0.01, 7)


def test_a_file_of_the_user_overrides_the_shipped_configurations(working_directory: Path) -> None:
    (working_directory / "configs.yml").write_text(
        "resnet50: {model: resnet50, data: imagenet, lr: 3, micro_batch_size: 2}"
    )
    description = dry("python3 train.py --config resnet50")

    assert plan_values(description["plan"]) == ("resnet50", 2, 3, 10)
    assert "--config" not in shlex.split(description["command"])


def test_a_file_without_the_name_is_skipped(working_directory: Path) -> None:
    (working_directory / "configs.yml").write_text(CONFIGS_YML)

    assert dry("python3 train.py --config resnet50")["command"].startswith(
        "convoy train --config resnet50 "
    )


def test_a_misspelled_name_is_refused_with_near_names_of_the_file(working_directory: Path) -> None:
    (working_directory / "configs.yml").write_text(CONFIGS_YML)

    (message,) = refusals("python3 train.py --config my_confg")

    assert message.startswith("--config 'my_confg' is not a shipped configuration")
    assert message.endswith("did you mean my_config?")


def test_an_unreadable_file_is_reported(working_directory: Path) -> None:
    (working_directory / "configs.yml").write_text("my_config: [")
    (error,) = refusals("python3 train.py --config my_config")

    assert error.startswith("configs.yml, line 2: not YAML")


@pytest.mark.parametrize("text", ["resnet50: [", "resnet50:\n", "resnet50: [a]\n", "a: 1\na: 2\n"])
def test_an_invalid_file_is_not_replaced_by_a_shipped_configuration(
    working_directory: Path, text: str
) -> None:
    (working_directory / "configs.yml").write_text(text)

    assert refusals("python3 train.py --config resnet50")[0].startswith("configs.yml")


def test_every_invalid_key_is_reported_with_its_line(working_directory: Path) -> None:
    (working_directory / "configs.yml").write_text(
        "my_config:\n  batch_size: 8\n  model_sise: 50\n  epochs: long\n  shards: 4\n"
    )
    lines = refusals("python3 train.py --config my_config --optimiser momentum")

    assert lines[0].startswith(
        "configs.yml, line 3: model_sise is not an option; did you mean model_size"
    )
    assert lines[1].startswith("configs.yml, line 4: epochs expects a number, got 'long'")
    assert lines[2] == "configs.yml: --shards 4 needs --pipeline"
    assert len(lines) == 3
