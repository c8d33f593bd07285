"""Messages of workers are short lines of JSON; anything else is refused."""

import json
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.launch.messages import LONGEST_LINE, Ended, Failed, Message, Started, decode, encode

FAILED = Failed(kind="DataError", text="no\nrecords", traceback="Traceback …", code=3, at=12.5)


@pytest.mark.parametrize("message", [Started(7), Ended(75), FAILED], ids=lambda one: type(one))
def test_a_message_is_one_line_that_can_be_read_back(message: Message) -> None:
    line = encode(message)

    assert decode(line) == message
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")


@pytest.mark.parametrize("character", ["\0", "a", "é", "🏖", "\ud800"])
def test_long_texts_are_cut_to_fit_the_line(character: str) -> None:
    huge = Failed(kind=character * 10**5, text=character * 10**6, traceback="x", code=1, at=0.5)
    line = encode(huge)
    read = decode(line)

    assert len(line) <= LONGEST_LINE
    assert isinstance(read, Failed)
    assert read.code == 1


def test_the_end_of_a_long_traceback_is_kept() -> None:
    read = decode(encode(Failed("E", "t", "begin" + "." * 10**6 + "end", 1, 0.0)))

    assert isinstance(read, Failed)
    assert read.traceback.endswith(".end")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"message": "started"}',
        b'{"message": "started", "pid": "7"}',
        b'{"message": "ended", "code": 0.5}',
        b'{"message": "begun", "pid": 7}',
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps({"message": "failed", "kind": "E", "text": "t", "code": 1, "at": 0.0}).encode(),
    ],
    ids=range(11),
)
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode(line)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_bring_any_other_error(line: bytes) -> None:
    with suppress(ValueError):
        decode(line)
