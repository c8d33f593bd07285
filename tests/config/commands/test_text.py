"""What is typed becomes words, and nothing of it ever reaches a shell."""

import pytest

from convoy.config.commands.text import words_of
from convoy.errors import ConfigError

ENVIRONMENT = {"HOME": "/home/me", "DATASETS_DIR": "/data sets"}


def words(*typed: str) -> list[str]:
    return words_of(typed, ENVIRONMENT)


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("python3 train.py --lr 1", ["python3", "train.py", "--lr", "1"]),
        ("  python3\ttrain.py\n", ["python3", "train.py"]),
        ("A='{\"a b\": 1}' python3", ['A={"a b": 1}', "python3"]),
        ('x --args="--tag-output -x A" y', ["x", "--args=--tag-output -x A", "y"]),
        ("python3 train.py \\\n    --lr 1", ["python3", "train.py", "--lr", "1"]),
        ("python3 train.py \\\r\n  --lr 1", ["python3", "train.py", "--lr", "1"]),
        ("python3 train.py --splits a,\\\nb", ["python3", "train.py", "--splits", "a,b"]),
        ("python3 'my train.py'", ["python3", "my train.py"]),
        ("python3 my\\ train.py", ["python3", "my train.py"]),
        ("x --steps Resize(256) --glob * #1", ["x", "--steps", "Resize(256)", "--glob", "*", "#1"]),
        ("x ''", ["x", ""]),
    ],
)
def test_a_quoted_text_is_split_as_a_shell_would(text: str, split: list[str]) -> None:
    assert words(text) == split


def test_words_that_the_shell_has_split_stay_as_they_are() -> None:
    typed = ["poprun", "--mpi-local-args=-x A", "$B", "`c`", "a|b", "'d'", "e\\ f"]

    assert words(*typed) == typed


def test_a_single_word_without_spaces_is_no_text() -> None:
    assert words("./train'.py") == ["./train'.py"]


@pytest.mark.parametrize(
    ("word", "at_home"),
    [
        ("~", "/home/me"),
        ("~/data", "/home/me/data"),
        ("--data-dir=~/data", "--data-dir=/home/me/data"),
        ("DATA_DIR=~/data", "DATA_DIR=/home/me/data"),
        ("~you/data", "~you/data"),
        ("a~/data", "a~/data"),
        ("run~", "run~"),
    ],
)
def test_a_tilde_is_the_home_folder(word: str, at_home: str) -> None:
    assert words("python3", word) == ["python3", at_home]
    assert words(f"python3 {word}") == ["python3", at_home]


def test_a_tilde_stays_where_no_home_is_known() -> None:
    assert words_of(["x", "~/data"], {}) == ["x", "~/data"]


def test_a_variable_of_a_quoted_text_is_replaced_and_not_split() -> None:
    assert words("x $DATASETS_DIR/a ${DATASETS_DIR}b 'c d$'") == [
        "x",
        "/data sets/a",
        "/data setsb",
        "c d$",
    ]


def test_a_variable_that_is_not_set_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"^\$NOWHERE in the quoted command is not set; set it"):
        words("x --data-dir $NOWHERE/a")


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("python3 train.py | tee log", "'|'"),
        ("python3 train.py 2>&1", "'>&'"),
        ("python3 train.py>log", "'>'"),
        ("python3 train.py < in", "'<'"),
        ("cd there && python3 train.py", "'&&'"),
        ("A=1; python3 train.py", "';'"),
        ("nohup python3 train.py &", "'&'"),
        ("python3 train.py --lr $(cat lr)", "'$(cat'"),
        ("python3 train.py --lr `cat lr`", "'`cat'"),
        ("python3 train.py --lr ${LR:-1}", "'${LR:-1}'"),
    ],
)
def test_what_is_for_a_shell_is_refused_with_a_way_out(text: str, sign: str) -> None:
    with pytest.raises(ConfigError) as refused:
        words(text)

    assert str(refused.value).startswith(f"{sign} is for a shell, and none is started; ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("word", ["|", "||", "&&", ";", ">", ">>", "<", "2>&1", "&", "2>"])
def test_a_word_for_a_shell_is_refused_outside_a_text_too(word: str) -> None:
    with pytest.raises(ConfigError, match="is for a shell"):
        words("python3", "train.py", word, "log")


def test_signs_inside_quotes_are_no_business_of_a_shell() -> None:
    assert words("x 'a|b' \"c>d\" e\\;f") == ["x", "a|b", "c>d", "e;f"]


@pytest.mark.parametrize("text", ["x 'a b", 'x "a', "x a\\"])
def test_quotes_that_stay_open_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^the quoted command cannot be split: no "):
        words(text)


@pytest.mark.parametrize("typed", [[], [""], ["  "], ["", " \n"]])
def test_an_empty_command_is_refused_with_an_example(typed: list[str]) -> None:
    with pytest.raises(ConfigError, match="no command to run; write it behind --, as in `convoy r"):
        words(*typed)
