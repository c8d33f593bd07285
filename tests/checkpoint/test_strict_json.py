"""The JSON reader that trusts nobody."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.checkpoint.strict_json import encode, parse

FINITE = st.floats(allow_nan=False, allow_infinity=False)
WHOLE = st.integers(min_value=-(2**63), max_value=2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | WHOLE | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b'{"a": 1, "b": 2, "a": 3}', "'a' appears twice"),
        (b'{"update": NaN}', "NaN is not a number"),
        (b"[-Infinity]", "-Infinity is not a number"),
        (b"[1e999]", "1e999 is not finite"),
        (b"[" + b"9" * 5000 + b"]", "5000 digits"),
        (b"[" * 100_000, "nested more than 32"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "nested more than 32"),
        (b"[" * 33 + b"]" * 33, "nested more than 32"),
        (b'["' + b"x" * 2**20 + b'"]', "at most 1,048,576"),
        (b'["\\ud800"]', "surrogates not allowed"),
        (b"\xff\xfe", "can't decode"),
        (b"1 2", "Extra data"),
    ],
)
def test_hostile_json_is_refused_with_its_reason(data: bytes, reason: str):
    with pytest.raises(ValueError, match=reason):
        parse(data)


def test_nesting_up_to_the_limit_is_read():
    assert parse(b"[" * 32 + b"]" * 32) != []


def test_many_keys_of_which_one_repeats_are_refused_without_a_search_for_each():
    keys = b",".join(b'"%d":0' % key for key in range(60_000))

    with pytest.raises(ValueError, match="'59999' appears twice"):
        parse(b"{" + keys + b',"59999":1}')


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": 10**30}, {"a": {1, 2}}])
def test_what_could_not_be_read_again_is_not_written(value: object):
    with pytest.raises(ValueError):
        encode(value)


@given(VALUES)
@settings(deadline=None)
def test_every_value_comes_back_as_it_was(value: object):
    assert parse(encode(value)) == value


@given(st.binary(max_size=64) | TEXT.map(str.encode))
@settings(deadline=None)
def test_random_bytes_raise_nothing_but_value_errors(data: bytes):
    try:
        parse(data)
    except ValueError as error:
        assert str(error)
