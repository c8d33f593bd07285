"""Files that are refused before parsing: special files, large files, invalid bytes."""

import os
from pathlib import Path

import pytest

from convoy.config.yaml_reader import MAX_BYTES, decode_text, read_limited, yaml_error
from convoy.errors import ConfigError
from convoy.text import quote_shortened


def error_message(source: str | bytes) -> str:
    data = source.encode() if isinstance(source, str) else source
    with pytest.raises(ConfigError) as error:
        decode_text(data, "run.yaml")
    return str(error.value)


def test_a_small_file_is_read_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"a: 1\r\n")

    assert read_limited(path) == b"a: 1\r\n"


def test_a_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(ConfigError) as error:
        read_limited(path)

    assert str(error.value) == f"configuration file {path} does not exist"


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a directory, not a configuration file"):
        read_limited(tmp_path)


def test_a_named_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")

    with pytest.raises(ConfigError, match="is a named pipe"):
        read_limited(tmp_path / "pipe.yaml")


def test_a_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="is a device"):
        read_limited(Path("/dev/zero"))


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "loop.yaml"
    path.symlink_to(path)

    with pytest.raises(ConfigError, match="cannot be read"):
        read_limited(path)


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "file/inside"])
def test_an_impossible_path_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be read") as error:
        read_limited(tmp_path / name)

    assert str(error.value).isprintable()


def test_a_large_file_is_refused_without_reading_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)  # a sparse file needs no disk space
    monkeypatch.delattr(Path, "open")

    with pytest.raises(ConfigError, match=r"104,857,600 bytes.*262,144"):
        read_limited(path)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_a_file_of_unknown_size_is_read_only_to_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("convoy.config.yaml_reader.MAX_BYTES", 100)

    with pytest.raises(ConfigError, match="at least 101 bytes"):
        read_limited(Path("/proc/self/smaps"))


def test_a_file_may_have_exactly_the_maximum_size(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("#" * MAX_BYTES)

    assert len(read_limited(path)) == MAX_BYTES
    path.write_text("é" * (MAX_BYTES // 2 + 1))
    with pytest.raises(ConfigError, match="too large"):
        read_limited(path)


def test_one_byte_order_mark_is_removed() -> None:
    assert decode_text(b"\xef\xbb\xbfa: 1", "x") == "a: 1"
    assert "U+FEFF" in error_message("\ufeff\ufeffa: 1")


@pytest.mark.parametrize(
    ("data", "line", "byte"),
    [
        (b"a: 1\nb: \xff\n", 2, "0xff"),
        (b"\xff\xfea\x00", 1, "0xff"),
        (b"\xef\xbb\xbf\n\n\xc3", 3, "0xc3"),
        (b"a: \xed\xa0\x80", 1, "0xed"),
    ],
)
def test_bytes_that_are_not_utf8_are_refused_with_their_line(
    data: bytes, line: int, byte: str
) -> None:
    assert error_message(data) == (
        f"run.yaml, line {line}: the byte {byte} is not UTF-8; save the file as UTF-8"
    )


@pytest.mark.parametrize(
    "character",
    ["\0", "\x07", "\x0b", "\x0c", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u2029", "\uffff"],
)
def test_a_control_character_is_refused_with_its_line(character: str) -> None:
    assert error_message(f"a: 1\n# {character}\n").startswith(
        f"run.yaml, line 2: the control character U+{ord(character):04X} "
    )


def test_a_lone_carriage_return_is_refused_but_crlf_is_not() -> None:
    assert decode_text(b"a: 1\r\nb: 2\r\n", "x") == "a: 1\r\nb: 2\r\n"
    assert "line 1: the control character U+000D" in error_message("a: 1\rb: 2")


@pytest.mark.parametrize("text", ["a:\n\tb: 1", "a:\n  \tb: 1", "a: 1\n\t", "a: 1\n \t# note"])
def test_a_tab_in_the_indentation_is_refused_with_its_line(text: str) -> None:
    assert error_message(text) == "run.yaml, line 2: the line is indented with a tab; use spaces"


def test_a_tab_after_the_content_is_accepted() -> None:
    assert decode_text(b"a: 1\t# note", "x") == "a: 1\t# note"


def test_a_file_name_cannot_break_the_message_into_lines() -> None:
    assert str(yaml_error("a\nb\x1b", 3, "bad")) == r"'a\nb\x1b', line 3: bad"


def test_a_long_text_is_shortened_in_messages() -> None:
    assert quote_shortened("x" * 60) == "'" + "x" * 60 + "'"
    assert quote_shortened("x" * 61) == "'" + "x" * 60 + "'…"
