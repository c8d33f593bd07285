"""For tests: values of every option within its limits, made from the option table."""

import math
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from convoy.config.fields import Option
from convoy.config.schema import option_table
from convoy.config.yaml_limits import MOST_DIGITS

# An example is a value for each of all options; a busy machine must not fail the test.
LIGHT = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _texts(but: str) -> SearchStrategy[str]:
    """Made of allowed characters alone: with many options, to filter would take too long."""
    allowed = st.characters(
        codec="utf-8",
        exclude_categories=("Cc", "Zl", "Zp"),
        include_characters="\t\n",
        exclude_characters="\ufeff\ufffe\uffff" + but,
    )
    return st.text(allowed, min_size=1, max_size=20)


def one_value(row: Option) -> SearchStrategy[Any]:
    """One value, or one item of a list."""
    limit = row.declared.limit
    if limit.choices:
        return st.sampled_from(limit.choices)
    if row.kind.base is bool:
        return st.booleans()
    if row.kind.base is str:
        return _texts(but="," * row.kind.many)
    if row.kind.base is int:
        most = 10**MOST_DIGITS - 1
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


def value(row: Option) -> SearchStrategy[Any]:
    """A value of the option's whole type."""
    one = one_value(row)
    if row.kind.many:
        return st.lists(one, max_size=4).map(tuple)
    return st.none() | one if row.kind.optional else one


def values() -> SearchStrategy[dict[str, Any]]:
    """A value for every option, by name."""
    return st.fixed_dictionaries({name: value(row) for name, row in option_table().items()})
