"""convoy run: what is wrong is told in plain lines, all of it at once, and nothing is done."""

import shlex
from pathlib import Path

import pytest
from dry_runs import dry, refusals
from running import convoy

ON_IMAGENET = "python3 train.py --dataset imagenet"
BEHIND = "the command stands behind `--`, as in `convoy run -- python3 train.py --config resnet50`"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_two_options_that_contradict_each_other_are_told() -> None:
    assert refusals(f"{ON_IMAGENET} --batch-size 4 --micro-batch-size 8") == [
        "--batch-size and --micro-batch-size say the same; give one"
    ]


def test_a_value_of_the_wrong_type_is_told() -> None:
    assert refusals(f"{ON_IMAGENET} --epochs many") == ["--epochs expects a number, got 'many'"]
    assert refusals("python3 train.py --model resnet18 --replicas 2.5") == [
        "--replicas expects a whole number, got '2.5'"
    ]


def test_a_value_that_no_one_knows_is_told_with_those_there_are() -> None:
    assert refusals(f"{ON_IMAGENET} --lr-schedule cosin") == [
        "--lr-schedule is one of stepped, cosine, exponential, polynomial_decay_lr, got 'cosin'"
    ]
    assert refusals("resnet_main.py --size 51")[0].endswith("101, 110, 152 or x50, got '51'")


def test_a_misspelt_word_is_answered_with_near_ones() -> None:
    (told,) = refusals(f"{ON_IMAGENET} --gradient-acumulation-count 4")

    assert told.startswith(
        "unknown option --gradient-acumulation-count; did you mean --gradient-accumulation-count"
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"{ON_IMAGENET} --model-size 50 --optimizer sgd", "--optimizer is an option of the "),
        (
            "train.py --model resnet50 --norm-type group --dataset x",
            "option --dataset is ambiguous: ",
        ),
        ("resnet_main.py --replicas 4", "--replicas is an option of the "),
    ],
)
def test_an_option_of_another_dialect_is_told_whose_it_is(line: str, told: str) -> None:
    (one,) = refusals(line)

    assert one.startswith(told) and " dialect" in one


def test_all_that_is_wrong_with_a_line_comes_together() -> None:
    line = "poprun --num-instances 2 --num-replicas 3 --quiet python3 train.py --dataset imagnet"
    told = refusals(f"{line} --model-size fifty --epochs 0 --modle resnet", "--lr", "fast")

    assert told == [
        "unknown option --quiet of poprun; leave it out",
        "--num-replicas 3 is not a multiple of --num-instances 2; use --num-replicas 4",
        "--lr expects a number, got 'fast'",
        "unknown option --modle; did you mean --mode, --model, --model-size?",
        "--dataset is one of imagenet, cifar-10, cifar-100, got 'imagnet'",
        "--model-size 'fifty' is no resnet for ImageNet; "
        "there are 10, 14, 18, 26, 34, 50, 101, 152",
        "--epochs must be above 0, got 0",
    ]


def test_rules_between_options_are_heard_with_the_rest() -> None:
    told = refusals(f"{ON_IMAGENET} --batch-norm --BN-span 3 --replicas 4 --seed x")

    assert told[0] == "--seed expects a whole number, got 'x'"
    assert told[1].startswith("--bn-span 3 does not divide --replicas 4")


@pytest.mark.parametrize(
    "words",
    [[], ["--"], ["python3", "train.py"], ["--dry-run"], ["--dry-run", "python3", "train.py"]],
)
def test_a_command_that_is_not_behind_the_dashes_is_told_where(words: list[str]) -> None:
    said = convoy("run", *words)

    assert (said.code, said.out, said.err) == (2, "", f"convoy: {BEHIND}\n")


@pytest.mark.parametrize("words", [[""], [" "], ["", ""]])
def test_a_command_of_nothing_is_told(words: list[str]) -> None:
    said = convoy("run", "--", *words)

    assert (said.code, said.out) == (2, "")
    assert said.err.count("\n") == 1 and "convoy run -- python3 train.py" in said.err


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("python3", "nothing follows python3; name a program"),
        ("python3 trian.py", "unknown program 'trian.py'; did you mean train.py"),
        ("bash train.sh", "unknown program or launcher 'bash'; "),
        ("convoy train", "`convoy train` is convoy's own command; run it without"),
        ("python3 -c 'import x'", "python3 -c runs text; name a program instead"),
        (
            "validate_dataset.py",
            "validate_dataset.py (data verify) is not available in this version",
        ),
    ],
)
def test_a_command_without_a_program_of_ours_is_told(line: str, told: str) -> None:
    (one,) = refusals(line)

    assert one.startswith(told)


def test_a_wrong_dialect_is_told_which_there_are() -> None:
    train = "--dialect tensorlfow has no train.py; use tensorflow or pytorch"
    validate = "--dialect tensorflow has no validate.py; use pytorch"

    assert refusals(ON_IMAGENET, "--dialect", "tensorlfow") == [train]
    assert refusals("validate.py", "--dialect", "tensorflow") == [validate]


def test_a_dialect_that_is_asked_for_is_taken() -> None:
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
def test_help_tells_the_options_of_the_dialect(line: str, option: str) -> None:
    said = convoy("run", "--", *shlex.split(line))

    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("usage: ") and option in said.out


def test_our_own_help_says_where_the_command_stands() -> None:
    said = convoy("run", "--help")

    assert (said.code, said.err) == (0, "")
    assert "convoy run -- python3 train.py" in said.out


def test_a_dry_run_writes_nothing(here: Path) -> None:
    lines = [
        f"{ON_IMAGENET} --log-dir logs --executable-cache-path cache",
        "train.py --model resnet18 --data generated --checkpoint-output-dir out",
        "restore.py --checkpoint-input-path RUN",
        "python3 -m examples_utils benchmark --benchmark pytorch_resnet50_train_real_pod4",
    ]
    for line in lines:
        dry(line, "--profile")

    assert list(here.iterdir()) == []
