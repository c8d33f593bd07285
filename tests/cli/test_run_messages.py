"""convoy run: error messages. All problems are reported at once, and nothing is run."""

import shlex
from pathlib import Path

import pytest
from support.dry_runs import dry, refusals
from support.run_convoy import convoy

ON_IMAGENET = "python3 train.py --dataset imagenet"


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_spellings_of_one_option_are_reported() -> None:
    assert refusals(f"{ON_IMAGENET} --batch-size 4 --micro-batch-size 8") == [
        "--batch-size and --micro-batch-size set the same option; use only one"
    ]


def test_a_value_of_the_wrong_type_is_reported() -> None:
    assert refusals(f"{ON_IMAGENET} --epochs many") == ["--epochs expects a number, got 'many'"]
    assert refusals("python3 train.py --model resnet18 --replicas 2.5") == [
        "--replicas expects an integer, got '2.5'"
    ]


def test_an_unknown_value_is_reported_with_the_known_ones() -> None:
    assert refusals(f"{ON_IMAGENET} --lr-schedule cosin") == [
        "--lr-schedule must be one of stepped, cosine, exponential, polynomial_decay_lr, "
        "got 'cosin'"
    ]
    assert refusals("resnet_main.py --size 51")[0].endswith("101, 110, 152 or x50, got '51'")


def test_a_misspelled_argument_is_refused_with_near_names() -> None:
    (message,) = refusals(f"{ON_IMAGENET} --gradient-acumulation-count 4")

    assert message.startswith(
        "unknown option --gradient-acumulation-count; did you mean --gradient-accumulation-count"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{ON_IMAGENET} --model-size 50 --optimizer sgd", "--optimizer is an option of the "),
        (
            "train.py --model resnet50 --norm-type group --dataset x",
            "option --dataset is ambiguous: ",
        ),
        ("resnet_main.py --replicas 4", "--replicas is an option of the "),
    ],
)
def test_an_option_of_another_dialect_is_reported_with_that_dialect(
    line: str, message: str
) -> None:
    (error,) = refusals(line)

    assert error.startswith(message) and " dialect" in error


def test_all_problems_of_a_command_are_reported_together() -> None:
    line = "poprun --num-instances 2 --num-replicas 3 --quiet python3 train.py --dataset imagnet"
    lines = refusals(f"{line} --model-size fifty --epochs 0 --modle resnet", "--lr", "fast")

    assert lines == [
        "unknown option --quiet of poprun; leave it out",
        "--num-replicas 3 is not a multiple of --num-instances 2; use --num-replicas 4",
        "--lr expects a number, got 'fast'",
        "unknown option --modle; did you mean --mode, --model, --model-size?",
        "--dataset must be one of imagenet, cifar-10, cifar-100, got 'imagnet'",
        "--model-size 'fifty' is not a resnet for ImageNet; "
        "the sizes are 10, 14, 18, 26, 34, 50, 101, 152",
        "--epochs must be greater than 0, got 0",
    ]


def test_rules_between_options_are_reported_with_the_rest() -> None:
    lines = refusals(f"{ON_IMAGENET} --batch-norm --BN-span 3 --replicas 4 --seed x")

    assert lines[0] == "--seed expects an integer, got 'x'"
    assert lines[1].startswith("--bn-span 3 does not divide --replicas 4")


@pytest.mark.parametrize(
    "words",
    [[], ["--"], ["python3", "train.py"], ["--dry-run"], ["--dry-run", "python3", "train.py"]],
)
def test_a_command_without_two_dashes_is_refused_with_an_example(words: list[str]) -> None:
    result = convoy("run", *words)

    assert (result.code, result.out) == (2, "")
    assert "after `--`" in result.err and "`convoy run -- python3 train.py" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("words", [[""], [" "], ["", ""]])
def test_an_empty_command_is_reported(words: list[str]) -> None:
    result = convoy("run", "--", *words)

    assert (result.code, result.out) == (2, "")
    assert result.err.count("\n") == 1 and "convoy run -- python3 train.py" in result.err


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("python3", "nothing follows python3; name a program"),
        ("python3 trian.py", "unknown program 'trian.py'; did you mean train.py"),
        ("bash train.sh", "unknown program or launcher 'bash'; "),
        ("convoy train", "`convoy train` is convoy's own command; run it without"),
        ("python3 -c 'import x'", "python3 -c runs a string; name a program instead"),
        (
            "validate_dataset.py",
            "validate_dataset.py (data verify) is not available in this version",
        ),
    ],
)
def test_an_unknown_program_is_reported(line: str, message: str) -> None:
    (error,) = refusals(line)

    assert error.startswith(message)


def test_an_unknown_dialect_is_refused_with_the_known_ones() -> None:
    (train_error,) = refusals(ON_IMAGENET, "--dialect", "tensorlfow")
    (validate_error,) = refusals("validate.py", "--dialect", "tensorflow")

    assert "--dialect tensorlfow has no train.py" in train_error
    assert train_error.endswith("tensorflow or pytorch")
    assert "--dialect tensorflow has no validate.py" in validate_error
    assert validate_error.endswith("pytorch")


def test_the_given_dialect_is_used() -> None:
    line = "python3 train.py --epoch 3 --micro-batch-size 4"

    assert dry(line)["dialect"] == "pytorch"
    assert dry(line, "--dialect", "tensorflow")["dialect"] == "tensorflow"


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("python train.py --help", "--micro-batch-size"),
        ("python train.py --dataset imagenet --help", "--gradient-accumulation-count"),
        ("python resnet_main.py -h", "--replication-factor"),
        ("poprun --num-replicas 2 python validation.py --help", "--restore-path"),
    ],
)
def test_help_lists_the_options_of_the_dialect(line: str, option: str) -> None:
    result = convoy("run", "--", *shlex.split(line))

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("usage: ") and option in result.out


def test_the_help_shows_an_example_command() -> None:
    result = convoy("run", "--help")

    assert (result.code, result.err) == (0, "")
    assert "convoy run -- python3 train.py" in result.out


def test_a_dry_run_writes_nothing(working_directory: Path) -> None:
    lines = [
        f"{ON_IMAGENET} --log-dir logs --executable-cache-path cache",
        "train.py --model resnet18 --data generated --checkpoint-output-dir out",
        "restore.py --checkpoint-input-path RUN",
        "python3 -m examples_utils benchmark --benchmark pytorch_resnet50_train_real_pod4",
    ]
    for line in lines:
        dry(line, "--profile")

    assert list(working_directory.iterdir()) == []
