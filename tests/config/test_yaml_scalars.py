"""YAML scalars: null, booleans, numbers, text, and values that are refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.config.yaml_reader import parse_scalar, parse_tagged_scalar


@pytest.mark.parametrize("text", ["", "~", "null", "Null", "NULL"])
def test_null_is_none(text: str) -> None:
    assert parse_scalar(text) is None


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "false", "False", "FALSE"])
def test_only_true_and_false_are_booleans(text: str) -> None:
    assert parse_scalar(text) is (text.lower() == "true")


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("-0", 0), ("7", 7), ("+7", 7), ("-12", -12), ("9" * 18, 10**18 - 1)],
)
def test_whole_numbers_are_decimal(text: str, value: int) -> None:
    parsed = parse_scalar(text)

    assert (type(parsed), parsed) == (int, value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.e3", 1000.0),
        (".5", 0.5),
        ("-.5", -0.5),
        ("-1E5", -1e5),
        ("1e3", 1000.0),
        ("+2.5e+05", 2.5e5),
        ("0.0", 0.0),
        ("2.5e-6", 2.5e-6),
        ("0e0", 0.0),
        ("1.", 1.0),
    ],
)
def test_numbers_with_a_point_or_an_exponent_are_floats(text: str, value: float) -> None:
    parsed = parse_scalar(text)

    assert (type(parsed), parsed) == (float, value)


@pytest.mark.parametrize(
    "text",
    [
        *("no", "yes", "on", "off", "No", "YES", "y", "n", "tRUE", "nULL"),
        *("0x1F", "0o7", "0b1", "1_000", "1:30", "01:30", "190:20:30", "2024-02-29", "1/4"),
        *(".", "-", "+", "e5", "1e", "1e+", "--1", "1.2.3", "16.32.1", ".e3", "=", "<<", "-.", "."),
        *("nan", "inf", "Infinity", "+.nan", ".NAn", ".iNf", "1 2", " 1", "1\n", "٣", "½"),
    ],
)
def test_everything_else_is_text(text: str) -> None:
    assert parse_scalar(text) == text


@pytest.mark.parametrize("text", ["010", "-010", "+08", "00", "007", "00.5", "01e3", "0" * 5000])
def test_a_leading_zero_is_refused_as_ambiguous(text: str) -> None:
    with pytest.raises(ValueError, match="starts with a zero") as error:
        parse_scalar(text)

    assert len(str(error.value)) < 250


def test_the_error_for_a_leading_zero_contains_a_fix() -> None:
    with pytest.raises(ValueError, match="write -10 for a number"):
        parse_scalar("-0010")


@pytest.mark.parametrize("text", [".nan", ".NaN", ".NAN", ".inf", "-.inf", "+.Inf", ".INF"])
def test_non_finite_numbers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        parse_scalar(text)


@pytest.mark.parametrize("text", ["1e999", "-1e999", "1" + "0" * 400 + ".0"])
def test_a_number_beyond_the_range_of_floats_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        parse_scalar(text)


@pytest.mark.parametrize("text", ["1" * 19, "-" + "1" * 19, "9" * 5000])
def test_a_whole_number_of_more_than_18_digits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"of (19|5000) digits; the limit is 18"):
        parse_scalar(text)


@pytest.mark.parametrize(
    ("text", "tag", "value"),
    [
        ("1", "str", "1"),
        ("", "str", ""),
        ("010", "str", "010"),
        ("7", "int", 7),
        ("7", "float", 7.0),
        ("1e3", "float", 1000.0),
        ("True", "bool", True),
        ("", "null", None),
    ],
)
def test_a_core_tag_sets_the_type(text: str, tag: str, value: object) -> None:
    parsed = parse_tagged_scalar(text, tag)

    assert (type(parsed), parsed) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        *(("x", "int"), ("1.5", "int"), ("true", "int"), ("", "int"), ("0x1F", "int")),
        *(("x", "float"), ("true", "float"), ("1", "bool"), ("yes", "bool"), ("x", "null")),
        *((".nan", "float"), ("010", "int"), ("1" * 30, "int"), ("1" * 30, "float")),
    ],
)
def test_a_text_that_does_not_match_its_tag_is_refused(text: str, tag: str) -> None:
    with pytest.raises(ValueError):
        parse_tagged_scalar(text, tag)


@pytest.mark.parametrize("text", ["\x00", "a\x1b[2Jb", "\x7f", "\x85", "\u2028", "\r", "\ud800"])
def test_text_with_a_control_character_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"control character U\+[0-9A-F]{4}") as error:
        parse_tagged_scalar(text, "str")

    assert str(error.value).isprintable()


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_float_that_python_prints_is_read_back(value: float) -> None:
    assert math.copysign(1.0, float(str(parse_scalar(repr(value))))) == math.copysign(1.0, value)
    assert parse_scalar(repr(value)) == value


@given(st.integers(-(10**18) + 1, 10**18 - 1))
def test_every_whole_number_of_18_digits_is_read_back(value: int) -> None:
    assert parse_scalar(str(value)) == value
