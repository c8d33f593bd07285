"""Arithmetic of derived metrics: numbers, names in braces, + - * / // % ** and parentheses."""

import ast
import math
import operator
from collections.abc import Callable, Mapping

from convoy.bench.definition import places, substituted
from convoy.config.user_text import shown

_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: math.pow,  # not **, whose result may be complex
}


class NoNumber(ValueError):
    """The expression has no value; says why."""


def calculate(expression: str, known: Mapping[str, float | str | None]) -> float:
    """The value of an expression over what is known by name."""
    numbers = {name: repr(_number(name, known.get(name))) for name in places(expression)}
    text = substituted(expression, {name: f"({number})" for name, number in numbers.items()})
    try:
        value = _value(ast.parse(text.strip(), mode="eval").body)
    except (ArithmeticError, ValueError) as error:
        raise NoNumber(f"{text.strip()}: {error}") from None
    except (SyntaxError, RecursionError, MemoryError):
        raise NoNumber(f"{shown(expression)} is no arithmetic") from None
    if not math.isfinite(value):
        raise NoNumber(f"{text.strip()} is not finite")
    return value


def _number(name: str, known: float | str | None) -> float:
    if known is None:
        raise NoNumber(f"{name} is missing")
    try:
        number = float(known)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise NoNumber(f"{name} is {known}, no number")
    return number


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _OPERATIONS:
            return _OPERATIONS[type(operation)](_value(left), _value(right))
    raise SyntaxError("neither a number nor an operation")
