"""Parameter patterns that match no parameter are refused."""

from typing import Any

import pytest

from convoy.config.schema import build_config
from convoy.errors import ConfigError
from convoy.planning.plan import plan_run


def errors(**values: Any) -> list[str]:
    try:
        plan_run(build_config({"model": "resnet8", **values}))
    except ConfigError as error:
        return str(error).splitlines()
    return []


def test_patterns_that_match_are_accepted() -> None:
    rules = ("layer1.*.weight=bfloat16", "layer1.*=float16", "fc.bias=auto", "*=float64")

    assert errors(accumulator_dtype_rules=rules, gradient_mean_reduce_re=(".*", r"fc\.\w+")) == []


def test_a_pattern_that_matches_no_parameter_is_refused_with_near_names() -> None:
    lines = errors(accumulator_dtype_rules=("fc.wait=float16",), gradient_mean_reduce_re=("fc",))

    first, second = lines
    assert first.startswith("--gradient-mean-reduce-re 'fc' matches no parameter")
    assert "conv1.weight" in first
    assert second.startswith("--accumulator-dtype-rules 'fc.wait' matches no parameter")
    assert second.endswith("fc.weight, fc.bias, conv1.weight?")


def test_a_rule_shadowed_by_earlier_rules_is_refused() -> None:
    rules = ("*.weight=float16", "*.bias=float32", "fc.*=float64")

    (line,) = errors(accumulator_dtype_rules=rules)
    assert line.startswith("--accumulator-dtype-rules 'fc.*=float64' has no effect")
    assert line.endswith("the first match applies")


@pytest.mark.parametrize("pattern", ["fc", "weight", "c.weight", "fc.weigh"])
def test_a_pattern_matches_full_names(pattern: str) -> None:
    assert len(errors(gradient_mean_reduce_re=(pattern,))) == 1
    assert len(errors(accumulator_dtype_rules=(f"{pattern}=float16",))) == 1


@pytest.mark.parametrize("flag", ["force_weight_to_fp16", "force_weight_to_fp32"])
def test_only_a_substring_of_no_name_is_refused(flag: str) -> None:
    options = {"model": "resnet8", flag: ("fc", "head")}

    with pytest.raises(ConfigError, match=r"--force-weight-to-fp\d\d 'head' matches no parameter"):
        plan_run(build_config(options))
    plan_run(build_config({**options, flag: ("fc",)}))
