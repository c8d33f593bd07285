"""Lines are found in whatever pieces they come."""

from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.launch.lines import Lines


def test_a_line_is_held_back_until_its_end_comes() -> None:
    lines = Lines(100)
    first, second = lines.feed(b"one\ntw"), lines.feed(b"o\n")

    assert (first, second, lines.rest()) == ([b"one"], [b"two"], [])


def test_what_has_no_end_is_left_at_last() -> None:
    lines = Lines(100)
    lines.feed(b"one\ntwo")

    assert (lines.rest(), lines.rest()) == ([b"two"], [])


def test_a_line_beyond_the_limit_is_cut() -> None:
    lines = Lines(4)

    assert lines.feed(b"123456789") == [b"1234", b"5678"]
    assert lines.feed(b"\n") == [b"9"]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=9)))
def test_nothing_is_lost_or_changed(pieces: list[bytes]) -> None:
    lines = Lines(1000)
    found = [line for piece in pieces for line in lines.feed(piece)] + lines.rest()
    whole = b"".join(pieces)

    assert found == (whole[:-1] if whole.endswith(b"\n") else whole).split(b"\n") or not whole
