"""Rules of how gradients are summed: what passes, and what each problem says."""

import pytest

from convoy.config.resolve import MEANS, TYPES, broken_rules, divided_rule
from convoy.config.schema import build_config, option_table


def broken(types: tuple[str, ...] = (), means: tuple[str, ...] = ()) -> list[str]:
    wish = {"accumulator_dtype_rules": types, "gradient_mean_reduce_re": means}
    return [str(problem) for problem in broken_rules(build_config(wish))]


def test_rules_and_patterns_that_can_be_read_pass() -> None:
    types = ("fc.*=float32", "*.bias=auto", "a=b=float16", "*=float64")

    assert broken(types, (".*", r"layer\d\..*", "fc.weight")) == []


def test_a_rule_is_divided_at_its_last_sign() -> None:
    assert divided_rule("a=b=float16") == ("a=b", "float16")


@pytest.mark.parametrize("text", ["float32", "fc.*", "=float32", "="])
def test_a_rule_without_a_pattern_is_refused_with_an_example(text: str) -> None:
    assert broken((text,)) == [
        f"--accumulator-dtype-rules {text!r} is no rule: write PATTERN=TYPE, as 'fc.*=float32'"
    ]


@pytest.mark.parametrize(
    ("text", "near"), [("fc.*=flot16", "did you mean float16"), ("*=", "known are auto, bfloat16")]
)
def test_a_rule_without_a_type_is_refused_with_near_ones(text: str, near: str) -> None:
    (line,) = broken((text,))

    assert line.startswith(f"--accumulator-dtype-rules {text!r} names no type; {near}")


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "a{99999999999}", "(?P<1>a)"])
def test_a_pattern_that_is_none_is_refused_in_one_line(pattern: str) -> None:
    (line,) = broken(means=(pattern,))

    assert line.startswith(f"--gradient-mean-reduce-re {pattern!r} is no pattern: ")
    assert line.endswith("; the name of a parameter is one, as fc.weight")
    assert "\n" not in line


def test_all_problems_are_told_at_once() -> None:
    assert len(broken(("a", "b=c"), ("(", ")"))) == 4


def test_options_have_the_spellings_that_problems_name() -> None:
    table = option_table()

    assert table["accumulator_dtype_rules"].flag == TYPES
    assert table["gradient_mean_reduce_re"].flag == MEANS
    assert table["accumulator_dtype"].declared.also == ("--gradient-accumulation-dtype",)
