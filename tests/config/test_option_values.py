"""Option types: parsed from arguments, checked from YAML, written as arguments."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.config.option import OptionTypeError, ValueType, format_value, to_cli_words

INTEGER, NUMBER, TEXT, BOOLEAN = ValueType(int), ValueType(float), ValueType(str), ValueType(bool)


def parse_error(value_type: ValueType, word: str) -> str:
    with pytest.raises(OptionTypeError) as error:
        value_type.parse([word])
    return str(error.value)


def check_error(value_type: ValueType, value: Any) -> str:
    with pytest.raises(OptionTypeError) as error:
        value_type.check(value)
    return str(error.value)


def test_annotations_become_value_types() -> None:
    assert ValueType.from_annotation(int) == INTEGER
    assert ValueType.from_annotation(float | None) == ValueType(float, optional=True)
    assert ValueType.from_annotation(tuple[str, ...]) == ValueType(str, is_list=True)
    assert ValueType.from_annotation(tuple[int, ...] | None) == ValueType(
        int, is_list=True, optional=True
    )


@pytest.mark.parametrize(
    ("kind", "word", "value"),
    [
        (INTEGER, "12", 12),
        (INTEGER, "-1", -1),
        (NUMBER, "1e-3", 0.001),
        (NUMBER, "-2", -2.0),
        (TEXT, "resnet50", "resnet50"),
        (TEXT, "12", "12"),
        (BOOLEAN, "True", True),
        (BOOLEAN, "false", False),
    ],
)
def test_a_word_is_parsed_by_its_type(kind: ValueType, word: str, value: Any) -> None:
    parsed = kind.parse([word])

    assert parsed == value
    assert type(parsed) is kind.base


@pytest.mark.parametrize(
    ("kind", "word", "text"),
    [
        (INTEGER, "2.5", "expects an integer, got '2.5'"),
        (INTEGER, "1e6", "expects an integer, got '1e6'"),
        (INTEGER, "9" * 19, "expects an integer of at most 18 digits"),
        (INTEGER, "-" + "9" * 400, "expects an integer of at most 18 digits"),
        (NUMBER, "fast", "expects a number, got 'fast'"),
        (NUMBER, "nan", "expects a finite number, got nan"),
        (NUMBER, "1e999", "expects a finite number, got inf"),
        (BOOLEAN, "yes", "expects true or false, got 'yes'"),
        (TEXT, "a\x07b", "contains the control character U+0007"),
        (TEXT, "a\udcff", "contains the control character U+DCFF"),
        (INTEGER, "x" * 500, f"expects an integer, got '{'x' * 60}'…"),
        *((kind, "", "needs a value") for kind in (INTEGER, NUMBER, TEXT, BOOLEAN)),
    ],
)
def test_a_word_of_the_wrong_type_is_refused_in_one_line(
    kind: ValueType, word: str, text: str
) -> None:
    assert parse_error(kind, word) == text


@pytest.mark.parametrize("words", [["1", "2", "3"], ["1,2,3"], ["1,2", "3"], ["1,", ",2,3"]])
def test_a_list_is_split_by_space_and_by_comma(words: list[str]) -> None:
    assert ValueType(int, is_list=True).parse(words) == (1, 2, 3)


@pytest.mark.parametrize("words", [[], [""]])
def test_a_list_may_be_empty(words: list[str]) -> None:
    assert ValueType(int, is_list=True).parse(words) == ()


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (INTEGER, True, "expects an integer, got true"),
        (INTEGER, 2.0, "expects an integer, got 2.0"),
        (INTEGER, "2", "expects an integer, got '2'"),
        (INTEGER, None, "expects an integer, got nothing"),
        (NUMBER, "1e", "expects a number, got '1e'"),
        (NUMBER, False, "expects a number, got false"),
        (NUMBER, {"a": 1}, "expects a number, got several values"),
        (TEXT, 50, "expects a string, got 50"),
        (TEXT, "", "needs a value"),
        (BOOLEAN, 1, "expects true or false, got 1"),
        (BOOLEAN, "no", "expects true or false, got 'no'"),
        (ValueType(int, is_list=True), [1, "2"], "expects an integer, got '2'"),
    ],
)
def test_a_yaml_value_of_the_wrong_type_is_refused(kind: ValueType, value: Any, text: str) -> None:
    assert check_error(kind, value) == text


def test_an_integer_is_converted_to_float() -> None:
    value = NUMBER.check(5)

    assert (value, type(value)) == (5.0, float)


def test_a_single_yaml_value_becomes_a_list_and_null_an_empty_list() -> None:
    splits = ValueType(str, is_list=True)

    assert splits.check("layer2") == ("layer2",)
    assert splits.check(["a", "b"]) == ("a", "b")
    assert splits.check(None) == ()
    assert ValueType(int, optional=True).check(None) is None


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_written_exactly(number: float) -> None:
    assert NUMBER.parse(to_cli_words(number)) == number


@settings(deadline=None)
@given(st.integers(-(10**18) + 1, 10**18 - 1) | st.booleans())
def test_integers_and_booleans_are_written_exactly(value: int | bool) -> None:
    assert ValueType(type(value)).parse(to_cli_words(value)) == value


def test_values_are_written_in_short_form() -> None:
    assert to_cli_words(5.0) == ["5"]
    assert to_cli_words(1e-05) == ["1e-05"]
    assert to_cli_words(0.123456789) == ["0.123456789"]
    assert to_cli_words((1, 2.5, "a")) == ["1", "2.5", "a"]
    assert format_value(True) == "true"
    assert format_value(None) == format_value(()) == "–"
    assert format_value(("a\nb", "\u200b")) == "a\\nb \\u200b"
