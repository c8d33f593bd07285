"""Expressions of derived metrics: what they may say, and what they may not."""

import pytest

from convoy.bench.arithmetic import NoNumber, calculate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("{latency} * 1000.", 2500.0),
        ("{images} / {latency} - 1", 39.0),
        ("({images} + 4) % 7", 6.0),
        ("-{images} // 7 + 2 ** 3", -15.0 + 8.0),
        (" +1_000 ", 1000.0),
    ],
)
def test_an_expression_is_worth_what_arithmetic_says(expression: str, value: float) -> None:
    assert calculate(expression, {"latency": 2.5, "images": "100"}) == value


def test_a_negative_number_stands_in_parentheses() -> None:
    assert calculate("{a} ** 2", {"a": -3.0}) == 9.0


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("{a} / {zero}", "(1.0) / (0.0): float division by zero"),
        ("(0 - 1) ** 0.5", "math domain error"),
        ("9 ** 9 ** 9 ** 9", "math range error"),
        ("1e308 * 10", "1e308 * 10 is not finite"),
        ("{kind} + 1", "kind is SYNC, no number"),
        ("{nothing} + 1", "nothing is missing"),
        ("{lost} + 1", "lost is missing"),
        ("{odd} + 1", "odd is nan, no number"),
        ("{a} +", "'{a} +' is no arithmetic"),
        ("", "'' is no arithmetic"),
        ("{a} {a}", "is no arithmetic"),
        ("True", "is no arithmetic"),
        ("1j", "is no arithmetic"),
        ("'a' * 3", "is no arithmetic"),
        ("__import__('os')", "is no arithmetic"),
        ("a.b", "is no arithmetic"),
        ("max(1, 2)", "is no arithmetic"),
        ("1 << 3", "is no arithmetic"),
        ("[1]", "is no arithmetic"),
        ("(" * 5000 + "1" + ")" * 5000, "is no arithmetic"),
    ],
)
def test_an_expression_without_a_value_says_why(expression: str, reason: str) -> None:
    known = {"a": 1.0, "zero": 0.0, "kind": "SYNC", "lost": None, "odd": "nan"}
    with pytest.raises(NoNumber) as error:
        calculate(expression, known)

    assert reason in str(error.value)
