"""Rules for gradient accumulation: valid values, and the message of each problem."""

import pytest

from convoy.config.resolve import DTYPE_RULES_FLAG, MEAN_REDUCE_FLAG, check_rules, split_dtype_rule
from convoy.config.schema import build_config, option_table


def rule_problems(
    dtype_rules: tuple[str, ...] = (), mean_patterns: tuple[str, ...] = ()
) -> list[str]:
    values = {"accumulator_dtype_rules": dtype_rules, "gradient_mean_reduce_re": mean_patterns}
    return [str(problem) for problem in check_rules(build_config(values))]


def test_valid_rules_and_patterns_pass() -> None:
    dtype_rules = ("fc.*=float32", "*.bias=auto", "a=b=float16", "*=float64")

    assert rule_problems(dtype_rules, (".*", r"layer\d\..*", "fc.weight")) == []


def test_a_rule_is_split_at_its_last_equals_sign() -> None:
    assert split_dtype_rule("a=b=float16") == ("a=b", "float16")


@pytest.mark.parametrize("text", ["float32", "fc.*", "=float32", "="])
def test_a_rule_without_a_pattern_is_refused_with_an_example(text: str) -> None:
    (line,) = rule_problems((text,))

    assert line.startswith(f"--accumulator-dtype-rules {text!r} is not a valid rule")
    assert "PATTERN=DTYPE" in line


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [("fc.*=flot16", "did you mean float16"), ("*=", "choose from auto, bfloat16")],
)
def test_a_rule_without_a_dtype_is_refused_with_similar_names(text: str, suggestion: str) -> None:
    (line,) = rule_problems((text,))

    assert line.startswith(
        f"--accumulator-dtype-rules {text!r} does not name a dtype; {suggestion}"
    )


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "a{99999999999}", "(?P<1>a)"])
def test_an_invalid_pattern_is_refused_in_one_line(pattern: str) -> None:
    (line,) = rule_problems(mean_patterns=(pattern,))

    assert line.startswith(f"--gradient-mean-reduce-re {pattern!r} is not a regular expression: ")
    assert line.endswith("fc.weight")
    assert "\n" not in line


def test_all_problems_are_reported_together() -> None:
    assert len(rule_problems(("a", "b=c"), ("(", ")"))) == 4


def test_the_flags_in_messages_are_those_of_the_options() -> None:
    table = option_table()

    assert table["accumulator_dtype_rules"].flag == DTYPE_RULES_FLAG
    assert table["gradient_mean_reduce_re"].flag == MEAN_REDUCE_FLAG
    assert table["accumulator_dtype"].aliases == ("--gradient-accumulation-dtype",)
