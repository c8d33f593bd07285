"""Host lists and hostfiles."""

from pathlib import Path

import pytest

from convoy.config.option import OptionTypeError
from convoy.dialects.launch_request import parse_hosts, read_hostfile


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("a", {"a": 1}),
        ("a,b,c", {"a": 1, "b": 1, "c": 1}),
        ("a, b,", {"a": 1, "b": 1}),
        ("a:4,b:2", {"a": 4, "b": 2}),
        ("a,a,b", {"a": 2, "b": 1}),
        ("10.0.0.1,10.0.0.2", {"10.0.0.1": 1, "10.0.0.2": 1}),
        ("n[0-2,7],m", {"n0": 1, "n1": 1, "n2": 1, "n7": 1, "m": 1}),
        ("n[08-10].x:2", {"n08.x": 2, "n09.x": 2, "n10.x": 2}),
        ("r[0-1]n[0-1]", {"r0n0": 1, "r0n1": 1, "r1n0": 1, "r1n1": 1}),
    ],
)
def test_hosts_are_counted_with_their_slots(text: str, slots: dict[str, int]) -> None:
    assert dict(parse_hosts(text)) == slots


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "lists no host, got ''"),
        (",", "lists no host"),
        (":2", "'' is not a valid host"),
        ("a:x", "expects an integer, got 'x'"),
        ("a:-1", "expects an integer, got '-1'"),
        ("a:0", "has slots for 0 processes, expected 1 to 65,536"),
        ("a:65537", "has slots for 65,537 processes"),
        ("n[0-99999]", "lists more than 65,536 hosts"),
        ("n[0-9999][0-9999][0-9999]", "lists more than 65,536 hosts"),
        ("n[3-1]", "lists no host"),
        ("n[a]", "'n[a]' is not a valid host"),
        ("n[1-2-3]", "expects an integer, got '2-3'"),
        ("n[-]", "expects an integer, got ''"),
    ],
)
def test_an_invalid_list_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptionTypeError) as error:
        parse_hosts(text)

    assert str(error.value).startswith(message)


def test_a_hostfile_has_a_line_for_each_host(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# comment\na slots=4\n\nb max_slots=8 slots = 2 # comment\nc\nd:3\n")

    assert dict(read_hostfile(str(path))) == {"a": 4, "b": 2, "c": 1, "d": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# none\n", "lists no host: "),
        ("a slots=many", "expects an integer, got 'many'"),
        ("a slots=0", "has slots for 0 processes"),
        ("a\x1b", "cannot be read: "),
    ],
)
def test_an_invalid_hostfile_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)

    with pytest.raises(OptionTypeError) as error:
        read_hostfile(str(path))

    assert str(error.value).startswith(message)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(OptionTypeError, match=r"cannot be read: .* file .*/hosts does not exist$"):
        read_hostfile(str(tmp_path / "hosts"))
