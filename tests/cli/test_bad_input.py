"""Invalid commands are reported in plain lines, without a traceback, with exit code 2."""

import re
from pathlib import Path

import pytest
from support.run_convoy import convoy
from support.sweeps import sweep


def error_lines(*words: str | Path) -> list[str]:
    """The error lines of a refused command."""
    result = convoy(*words)
    assert (result.code, result.out) == (2, ""), result
    lines = result.err.splitlines()
    assert all(line.startswith("convoy: ") and line.isprintable() for line in lines)
    return [line.removeprefix("convoy: ") for line in lines]


EXPECTED_ERRORS = {
    "trian": "unknown command 'trian'; did you mean train",
    "plan --model resnet51": "--model 'resnet51' is unknown; did you mean resnet65, resnet56",
    "models resnet51": "unknown model 'resnet51'; did you mean",
    "plan --pipeline-splits layer2/0/con1": "'layer2/0/con1' is not a layer of this model; did you",
    "plan --micro-batch-size 9000": "one update needs 9000 samples (micro-batch size 9000",
    "plan --lr -0.1": "--lr must be at least 0, got -0.1",
    "plan --lr=-0.1": "--lr must be at least 0, got -0.1",
    "plan --lr": "--lr needs a value",
    "plan --lr fast": "--lr expects a number, got 'fast'",
    "plan --epoch 0": "--epoch must be greater than 0, got 0",
    "plan --epoch 1 --updates 2": "--epochs and --updates both set the training length",
    "plan --shards 3 --pipeline-splits layer2": "--pipeline-splits defines 2 stages, but --shards",
    "plan --pipeline 2": "option --pipeline is ambiguous: it could be --pipeline-schedule, ",
    "plan --lrr 3": "unknown option --lrr; did you mean --lr",
    "plan extra": "unexpected argument 'extra'",
    "plan --json=yes": "ignored explicit argument 'yes'; see `convoy plan --help`",
    "plan --config": "argument --config: expected one argument; see `convoy plan --help`",
    "plan --config nope": "--config 'nope' is unknown; ",
    "plan --config=": "--config needs a value",
    "plan --config-path=": "--config-path needs a value",
    "plan --config=--": "--config needs a value",
    "plan -hosts 3": "unknown option -hosts; did you mean --hosts",
    "plan --replicas 99999999999 --bn-span 7": "--replicas must be at most 65536, got 99999999999",
    "plan --bn-span 99999999999": "--bn-span must be at most 65536, got 99999999999",
    "run -- python3 train.py --weight-avg-N --no-validation": "--weight-avg-N needs a value",
    "run -- python3 train.py --weight-avg-exp , --synthetic-data": "--weight-avg-exp needs a value",
    "prove --data cifar10 --data-dir DATA --micro-batch-size 9000": "but the dataset has 50000",
    "plan --config-path nope.yaml": "configuration file nope.yaml does not exist",
    "plan --config-path .": ". is a directory, not a configuration file",
    "train --data cifar10": "set --data-dir, or the environment variable DATA_DIR, to the",
    "plan --data imagine": "--data cannot be 'imagine'; did you mean",
    "plan --num-classes 5": "--num-classes cannot be set for shapes, which has 10",
    "plan --replicas 4 --instances 3": "3 does not divide --replicas 4",
    "plan --image-size 2": "--image-size must be at least 8, got 2",
    "train --model resnet51": "--model 'resnet51' is unknown; did you mean",
    "train --micro-batch-size 9000": "but the dataset has 8000",
    "train --data cifar10 --data-dir nope": "nope: no such folder; set --data-dir",
    "train --name=": "--name needs a value",
    "resume": "the following arguments are required: RUN; see `convoy resume --help`",
    "resume nope": "nope does not exist",
    "average nope": "nope does not exist",
    "validate nope": "nope does not exist",
    "validate": "specify a run or a checkpoint, or use --random-weights",
    "validate --model resnet8": "specify a run or a checkpoint, or use --random-weights",
    "validate --no-random-weights": "specify a run or a checkpoint, or use --random-weights",
    "validate --random-weights --config nope": "--config 'nope' is unknown; ",
    "validate --random-weights --repeat 0": "--repeat must be at least 1, got 0",
    "validate --random-weights --num-inference-thread 2": "--num-inference-thread 2 is not avail",
    "plan --epochs-per-ckpt 2 --ckpts-per-epoch 3": "--epochs-per-ckpt 2 and --ckpts-per-epoch 3",
    "plan --log-freq 2 --logs-per-epoch 4": "--log-freq and --logs-per-epoch both set how often",
    "train --init-path nope": "--init-path nope does not exist",
    "train --name-suffix a/b": "run name 'resnet14-shapes-a/b' (19 characters) is not valid",
    "models --jsn": "unknown option --jsn; did you mean --json",
    "configs a b": "unexpected argument 'b'",
    "options nonesuch": "no option matches nonesuch; ",
    "completion tcsh": "argument SHELL: invalid choice: 'tcsh'",
    "data fetch mnist --data-dir x": "argument DATASET: invalid choice: 'mnist'",
    "data fetch cifar10": "the following arguments are required: --data-dir",
}


@sweep(("line", "text"), EXPECTED_ERRORS.items())
def test_a_single_error_is_reported_in_one_line(
    line: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (error,) = error_lines(*line.split())

    assert text in error
    assert list(tmp_path.iterdir()) == []  # a refused command writes nothing


@pytest.mark.parametrize("verb", ["plan", "train"])
def test_all_problems_of_a_command_and_its_file_are_reported_at_once(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("# A comment.\nbatch_sise: 8\nmomentum: 2\naugment: often\n")
    line = "word --lrr 3 --seed x --threads 900 --model resnet51 --shards 3 --pipeline-split layer2"
    lines = error_lines(verb, *line.split(), "--lr", "--config-path", "mine.yaml")

    assert [line.split(";")[0] for line in lines] == [
        "unexpected argument 'word'",
        "unknown option --lrr",
        "--seed expects an integer, got 'x'",
        "--lr needs a value",
        "--threads must be at most 512, got 900",
        "mine.yaml, line 2: batch_sise is not an option",
        "mine.yaml, line 3: momentum must be at most 1, got 2",
        "mine.yaml, line 4: augment expects true or false, got 'often'",
        "--model 'resnet51' is unknown",
        "--pipeline-splits defines 2 stages, but --shards is 3",
    ]


def test_an_unreadable_file_does_not_hide_other_problems(tmp_path: Path) -> None:
    lines = error_lines("plan", "--lrr", "--config-path", tmp_path / "none.yaml", "--lr=x")

    assert [line.split()[0] for line in lines] == ["unknown", "--lr", "configuration"]
    assert "none.yaml" in lines[2]


def test_an_invalid_dataset_causes_no_other_errors() -> None:
    (error,) = error_lines("plan", "--data", "generatd", "--num-classes", "5")

    assert error.startswith("--data cannot be 'generatd'; did you mean generated")


def test_debug_prints_the_traceback_of_a_config_error() -> None:
    result = convoy("plan", "--lr", "-1", "--debug")

    assert result.code == 2
    assert "Traceback" in result.err and result.err.endswith("--lr must be at least 0, got -1\n")


@pytest.mark.parametrize("verb", ["resume", "average"])
def test_a_verb_that_reads_a_run_takes_no_named_configuration(verb: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("lr: 0.1\n")
    (tmp_path / "checkpoints" / "update-1").mkdir(parents=True)
    lines = error_lines(verb, tmp_path, "--config", "shapes-resnet14")

    assert lines[0].startswith("unknown option --config; ")


def test_validating_a_run_accepts_neither_a_configuration_nor_random_weights(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.yaml").write_text("lr: 0.1\n")
    (tmp_path / "checkpoints" / "update-1").mkdir(parents=True)
    line = ("--lrr", "--config", "shapes-resnet14", "--random-weights")

    assert [re.split("[:;]", text)[0] for text in error_lines("validate", tmp_path, *line)] == [
        "unknown option --lrr",
        "--random-weights validates a newly initialized network and cannot be combined with a run",
        "--config cannot be combined with a run, which has its own configuration",
    ]


@pytest.mark.parametrize("file", ["a: [", "lr: 1\nlr: 2", "!!python/name:os.system x", "\tlr: 1"])
def test_an_invalid_configuration_file_is_reported_with_its_line(tmp_path: Path, file: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(file)
    (error,) = error_lines("plan", "--config-path", path)

    assert error.startswith(f"{path}, line ")


def test_a_control_character_is_refused() -> None:
    assert error_lines("plan", "--name", "a\x1b[2Jb") == [
        "--name contains the control character U+001B"
    ]
