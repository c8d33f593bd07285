"""The program name selects the dialect; if it is ambiguous, the arguments do."""

import pytest

from convoy.dialects.command import (
    PROGRAMS,
    Program,
    Purpose,
    Vocabulary,
    identify_program,
    split_command,
)
from convoy.errors import ConfigError

# A few flags of each dialect.
TENSORFLOW = "--config --wandb --epochs --batch-size --data-dir --pipeline --pipeline-splits -N"
PYTORCH = "--config --wandb --epoch --data --micro-batch-size --pipeline-splits --pipeline-mode -h"
VOCABULARIES = {
    "tensorflow": Vocabulary(TENSORFLOW.split(), {"mk2_resnet8_test", "both"}),
    "pytorch": Vocabulary(PYTORCH.split(), {"resnet50", "both"}),
}


def identify(line: str, dialect: str | None = None) -> Program:
    return identify_program(split_command(line.split(), {}), VOCABULARIES, dialect)


def dialect_of(line: str) -> str:
    return identify(line).dialect


def error_message(line: str, dialect: str | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        identify(line, dialect)

    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "expected", "purpose"),
    [
        ("validation.py", "tensorflow", "validate"),
        ("inference_embedded.py", "tensorflow", "infer"),
        ("validate.py", "pytorch", "validate"),
        ("run_benchmark.py", "pytorch", "infer"),
        ("host_benchmark.py", "pytorch", "data benchmark"),
        ("validate_dataset.py", "pytorch", "data verify"),
        ("create_webdataset.py", "pytorch", "data convert"),
        ("distributed_webdataset.py", "pytorch", "data rebalance"),
        ("run_benchmark_with_triton_server.py", "pytorch", "serve"),
        ("send_request.py", "pytorch", "request"),
        ("resnet_main.py", "popart", "train"),
        ("resnet_synthetic_benchmark.py", "popart", "synthetic benchmark"),
    ],
)
def test_a_program_of_one_dialect_selects_it(name: str, expected: str, purpose: str) -> None:
    assert identify(f"python3 a/b/{name} --epochs 3") == Program(
        name, expected, Purpose(purpose), ("--epochs", "3")
    )


def test_the_benchmark_runner_is_a_module_with_an_argument() -> None:
    result = identify("python3 -m examples_utils benchmark --spec benchmarks.yml")

    assert result == Program(
        "examples_utils benchmark",
        "examples_utils",
        Purpose.BENCHMARK,
        ("--spec", "benchmarks.yml"),
    )


def test_three_programs_exist_in_two_dialects() -> None:
    both = PROGRAMS["tensorflow"].keys() & PROGRAMS["pytorch"].keys()

    assert both == {"train.py", "restore.py", "weight_avg.py"}
    assert all(PROGRAMS["tensorflow"][name] == PROGRAMS["pytorch"][name] for name in both)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--epochs 3", "tensorflow"),
        ("--epoch 3 --micro-batch-size 3", "pytorch"),
        ("--epoch 3 --data x", "pytorch"),  # a tie: both are prefixes in the other dialect
        ("--data-dir x --data y --batch-size 3", "tensorflow"),
        ("--epochs=3", "tensorflow"),
        ("--pipeline", "tensorflow"),  # an ambiguous prefix in the other dialect
        ("--pipeline-split a", "pytorch"),  # a tie: a unique prefix in both
        ("--micro 3", "pytorch"),
        ("--batch 3", "tensorflow"),
        ("-N 3", "tensorflow"),
        ("-h", "pytorch"),
        ("--config both --wandb", "pytorch"),
        ("--config mine", "pytorch"),
        ("--config mk2_resnet8_test", "tensorflow"),
        ("--config=mk2_resnet8_test --wandb", "tensorflow"),
        ("--config resnet50", "pytorch"),
        ("--config mk2_resnet8_test --micro-batch-size 3 --data x", "pytorch"),
        ("--config", "pytorch"),
        ("", "pytorch"),
        ("--epochs 3 --epochs 4 --data x --micro 3", "pytorch"),  # a repeated flag counts once
        ("--nope --what --epochs 3", "tensorflow"),
        ("-11 --- -1e3", "pytorch"),
    ],
)
def test_the_dialect_with_most_known_arguments_is_selected(words: str, expected: str) -> None:
    for name in ("train.py", "restore.py", "weight_avg.py"):
        assert dialect_of(f"python3 {name} {words}") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python3 examples/applications/tensorflow/cnns/training/train.py", "tensorflow"),
        ("./TensorFlow1/train.py --wandb", "tensorflow"),
        ("python3 tensorflow/train.py --micro-batch-size 3", "pytorch"),
        ("python3 pytorch/train.py", "pytorch"),
        ("python3 -m tensorflow.cnns.train", "tensorflow"),
        ("python3 -m train", "pytorch"),
    ],
)
def test_the_path_selects_the_dialect_only_on_a_tie(line: str, expected: str) -> None:
    assert dialect_of(line) == expected


def test_the_given_dialect_takes_precedence() -> None:
    assert identify("python3 train.py --config resnet50", "tensorflow").dialect == "tensorflow"
    assert identify("python3 tensorflow/train.py --epochs 3", "pytorch").dialect == "pytorch"


def test_without_vocabularies_the_preferred_dialect_is_selected() -> None:
    assert identify_program(split_command(["train.py", "--epochs"], {}), {}).dialect == "pytorch"


@pytest.mark.parametrize(
    ("line", "dialect", "message"),
    [
        ("python3 trian.py", None, "unknown program 'trian.py'; did you mean train.py"),
        ("python3 a/validations.py", None, "unknown program 'validations.py'; did you mean valid"),
        ("python3 .", None, "unknown program ''; choose from analyse_checkpoints.py, "),
        ("python3 -m torch.distributed.run", None, "unknown program 'run.py'; "),
        ("python3 -m examples_utils", None, "unknown program 'examples_utils'; did you mean exa"),
        ("python3 -m examples_utils platform", None, "unknown program 'examples_utils platform'"),
        ("python3 examples_utils benchmark", None, "unknown program 'examples_utils'; did you m"),
        ("train.py", "popart", "--dialect popart has no train.py; use tensorflow or pytorch"),
        ("resnet_main.py", "pytorch", "--dialect pytorch has no resnet_main.py; use popart"),
    ],
)
def test_an_unknown_program_is_refused_with_the_known_ones(
    line: str, dialect: str | None, message: str
) -> None:
    assert error_message(line, dialect).startswith(message)
