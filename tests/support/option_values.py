"""Values of every option within its limits, generated from the option table."""

import math
import re
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from convoy.config.option import Option
from convoy.config.schema import option_table
from convoy.config.sections.network import MODELS
from convoy.text import MAX_DIGITS

# An example has a value for every option; a busy machine must not fail the test.
LIGHT = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Generated from allowed characters: filtering would take too long with many options.
_ALLOWED = st.characters(
    codec="utf-8",
    exclude_categories=("Cc", "Zl", "Zp"),
    include_characters="\t\n",
    exclude_characters="\ufeff\ufffe\uffff",
)
AWKWARD = (
    *("-", "---", "-x", "--lr", "--lr=1", "-5", "-5e3", "--no-", "a=b", "a,b", ",", "\\,", "a\\,b"),
    *("#", "# a", "a: b", "a:", "[a", "{", "&a", "*a", "!!int 3", "|", ">", "%", "@", "`", "~"),
    *("'", '"', "\"'", " a ", "  ", "\t", "a\nb", "null", "true", "1e3", "010", "é", "名前", "…"),
)
_TEXTS = (st.text(_ALLOWED, min_size=1, max_size=20) | st.sampled_from(AWKWARD)).map(
    lambda text: "---" if text == "--" else text  # "--" ends the options of a command
)


def one_value(row: Option) -> SearchStrategy[Any]:
    """A value, or an item of a list."""
    limit = row.limit
    if limit.choices:
        return st.sampled_from(limit.choices)
    if row.value_type.base is bool:
        return st.booleans()
    if row.value_type.base is str:
        return _TEXTS.map(_as_item) if row.value_type.is_list else _TEXTS
    if row.value_type.base is int:
        most = 10**MAX_DIGITS - 1
        least = -most if limit.at_least is None else math.ceil(limit.at_least)
        return st.integers(least, most if limit.at_most is None else math.floor(limit.at_most))
    least = limit.at_least if limit.above is None else limit.above
    return st.floats(
        min_value=least,
        max_value=limit.at_most,
        exclude_min=limit.above is not None,
        allow_nan=False,
        allow_infinity=False,
    )


def _as_item(text: str) -> str:
    """Items of a list must not end with a backslash."""
    return text.rstrip("\\") or "x"


def value(row: Option) -> SearchStrategy[Any]:
    """A value of the type of the option."""
    item = one_value(row)
    if row.value_type.is_list:
        return st.lists(item, max_size=4).map(tuple)
    return st.none() | item if row.value_type.optional else item


def values() -> SearchStrategy[dict[str, Any]]:
    """A value for every option, by name."""
    return st.fixed_dictionaries({name: value(row) for name, row in option_table().items()})


@st.composite
def consistent_values(draw: st.DrawFn) -> dict[str, Any]:
    """A value for every option, without contradictions between values."""
    chosen = draw(values())
    chosen["model"] = draw(st.sampled_from(list(MODELS)))
    chosen["data"] = draw(st.sampled_from(["generated", "synthetic"]))  # they accept any image size
    for item, other in (
        ("epoch", "updates"),
        ("lr", "base_learning_rate_exponent"),
        ("logs_per_epoch", "log_freq"),
        ("name", "checkpoint_output_path"),
        ("init_path", "pretrained"),
    ):
        wins, loses = draw(st.permutations([item, other]))
        chosen[wins] = draw(one_value(option_table()[wins]))
        chosen[loses] = None
    for wins, loses in (
        ("lr_drops", "lr_scheduler_freq"),
        ("abs_end_learning_rate", "poly_lr_end_ratio"),
        ("rmsprop_base_decay_exp", "rmsprop_decay"),
    ):
        if chosen[wins] is not None:
            chosen[loses] = option_table()[loses].default
    return chosen | _adjusted(chosen)


def _adjusted(chosen: dict[str, Any]) -> dict[str, Any]:
    """Values adjusted to the other drawn values."""
    drops = len(chosen["lr_epoch_decay"]) + len(chosen["lr_share_decay"])
    low, high = sorted((chosen["cutmix_lambda_low"], chosen["cutmix_lambda_high"]))
    return {
        "lr_multipliers": (chosen["lr_multipliers"][:1] or (0.5,)) * (drops + 1),
        "cutmix_lambda_low": low,
        "cutmix_lambda_high": high,
        "micro_batch_size": max(2, chosen["micro_batch_size"]),
        "half_res_training": False,
        "initial_loss_scaling": chosen["initial_loss_scaling"] and chosen["loss_scaling"],
        "enable_fp_exceptions": False,
        "force_weight_to_fp32": (),
        "gradient_mean_reduce_re": tuple(map(re.escape, chosen["gradient_mean_reduce_re"])),
        "accumulator_dtype_rules": tuple(
            f"{item}=float32" for item in chosen["accumulator_dtype_rules"]
        ),
        "shards": None,
        "available_memory_proportion": chosen["available_memory_proportion"][:1],
        "bn_span": 1,
        "compile": chosen["compile"] and chosen["pipeline_schedule"] != "zero-bubble",
        "ckpts_per_epoch": min(1, chosen["ckpts_per_epoch"]),
    }
