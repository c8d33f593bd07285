"""The file of object boxes: lookup by file name, and errors for bad rows."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.data.records.folder import BOX_FILE_NAME, BoxTable, read_boxes
from convoy.errors import ConfigError, DataError

FRACTIONS = st.floats(min_value=0, max_value=1, width=32)
ROWS = st.lists(
    st.tuples(st.sampled_from("abcdefg"), FRACTIONS, FRACTIONS, FRACTIONS, FRACTIONS), max_size=20
)


def write_and_read(folder: Path, text: str | bytes) -> BoxTable:
    path = folder / BOX_FILE_NAME
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_boxes(path)


def error_message(folder: Path, text: str | bytes) -> str:
    with pytest.raises(ConfigError) as caught:
        write_and_read(folder, text)
    assert str(folder / BOX_FILE_NAME) in str(caught.value)
    return str(caught.value)


def test_a_file_has_the_boxes_of_all_its_rows_in_order(tmp_path: Path) -> None:
    boxes = write_and_read(
        tmp_path, "a.JPEG,0.1,0.2,0.3,0.4\nb.JPEG,0,0,1,1\na.JPEG,0.05,0.06,0.07,0.08\n"
    )
    expected = np.array([[0.1, 0.2, 0.3, 0.4], [0.05, 0.06, 0.07, 0.08]], np.float32)

    assert np.array_equal(boxes.boxes_for(b"a.JPEG"), expected)
    assert boxes.boxes_for(b"a.JPEG").dtype == np.float32
    assert boxes.boxes_for(b"b.JPEG").tolist() == [[0, 0, 1, 1]]
    assert len(boxes.names) == 3


@pytest.mark.parametrize("name", [b"", b"a", b"a.JPE", b"a.JPEG.JPEG", b"c.JPEG"])
def test_a_file_without_a_row_has_no_boxes(name: bytes, tmp_path: Path) -> None:
    assert write_and_read(tmp_path, "a.JPEG,0,0,1,1\nb.JPEG,0,0,1,1\n").boxes_for(name).shape == (
        0,
        4,
    )


def test_names_with_equal_checksums_are_distinguished(tmp_path: Path) -> None:
    """`plumless` and `buckeroo` have the same CRC32."""
    boxes = write_and_read(
        tmp_path, "plumless,0,0,1,1\nbuckeroo,0,0,0.5,0.5\nplumless,0,0,0.25,0.25\n"
    )

    assert boxes.boxes_for(b"buckeroo").tolist() == [[0, 0, 0.5, 0.5]]
    assert boxes.boxes_for(b"plumless").tolist() == [[0, 0, 1, 1], [0, 0, 0.25, 0.25]]


@given(ROWS)
def test_every_box_with_an_area_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, float, float, float, float]]
) -> None:
    ordered = [
        (name, min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)) for name, x1, y1, x2, y2 in rows
    ]
    text = "".join(f"{name},{x1!r},{y1!r},{x2!r},{y2!r}\n" for name, x1, y1, x2, y2 in ordered)
    boxes = write_and_read(tmp_path_factory.mktemp("rows"), text)

    for image in "abcdefgh":
        assert boxes.boxes_for(image.encode()).tolist() == [
            [x1, y1, x2, y2]
            for name, x1, y1, x2, y2 in ordered
            if name == image and x1 < x2 and y1 < y2
        ]


def test_boxes_without_an_area_are_dropped(tmp_path: Path) -> None:
    boxes = write_and_read(tmp_path, "a,0.5,0,0.5,1\na,0,0.25,1,0.5\na,1.0,0,1.005,1\n")

    assert boxes.boxes_for(b"a").tolist() == [[0, 0.25, 1, 0.5]]


@pytest.mark.parametrize(
    "text",
    [
        "file,x1,y1,x2,y2\na,0,0,1,1\n",
        "\ufeffa,0,0,1,1\n",
        "a,0,0,1,1",
        "a,0,0,1,1\r\n\r\n",
        "\n\na, 0, 0, 1, 1\n\n",
    ],
    ids=["header", "byte order mark", "no newline", "carriage returns", "blank lines"],
)
def test_headers_blank_lines_and_line_endings_are_accepted(text: str, tmp_path: Path) -> None:
    boxes = write_and_read(tmp_path, text)

    assert len(boxes.names) == 1
    assert boxes.boxes_for(b"a").tolist() == [[0, 0, 1, 1]]


@pytest.mark.parametrize("text", ["", "\n", "file,x1,y1,x2,y2\n"])
def test_a_file_without_rows_is_an_empty_table(text: str, tmp_path: Path) -> None:
    boxes = write_and_read(tmp_path, text)

    assert len(boxes.names) == 0
    assert boxes.boxes_for(b"a").shape == (0, 4)


def test_boxes_slightly_beyond_the_edge_are_clipped(tmp_path: Path) -> None:
    assert write_and_read(tmp_path, "a,-0.001,0,1.001,1\n").boxes_for(b"a").tolist() == [
        [0, 0, 1, 1]
    ]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("b,0,0,1", "line 2: 'b,0,0,1' is not a name with four numbers"),
        ("b,0,0,1,1,1", "is not a name with four numbers"),
        ("b,0,0,1,wide", "is not a name with four numbers"),
        ("b,0,0,nan,1", "line 2: 0, 0, nan, 1: must be fractions of width and height, 0 … 1"),
        ("b,0,0,inf,1", "must be fractions"),
        ("b,0,0,1e300,1", "must be fractions"),
        ("b,10,20,200,300", "10, 20, 200, 300: must be fractions of width and height, 0 … 1"),
        ("b,-0.1,0,1,1", "must be fractions"),
        ("b,0.5,0,0.25,1", "line 2: 0.5, 0, 0.25, 1: must be x1 ≤ x2 and y1 ≤ y2"),
        ("b,0,0.5,1,0.25", "must be x1 ≤ x2 and y1 ≤ y2"),
    ],
)
def test_a_bad_row_is_reported_with_its_line(row: str, reason: str, tmp_path: Path) -> None:
    assert reason in error_message(tmp_path, f"a,0,0,1,1\n{row}\nc,0,0,1,1\n")


def test_a_header_after_the_first_line_is_a_bad_row(tmp_path: Path) -> None:
    assert "line 3:" in error_message(tmp_path, "a,0,0,1,1\n\nfile,x1,y1,x2,y2\n")


def test_all_bad_rows_are_counted_and_the_first_five_listed(tmp_path: Path) -> None:
    rows = ["a,0,0,1,1", "b,0,0,9,9", *["nothing"] * 7, "c,1,0,0,0"]
    message = error_message(tmp_path, "\n".join(rows))

    assert [f"line {line}:" in message for line in range(1, 11)] == [False] + [True] * 5 + [
        False
    ] * 4
    assert "; and 4 more." in message


def test_control_characters_in_a_row_are_escaped(tmp_path: Path) -> None:
    message = error_message(tmp_path, b"a,0,0,1,1\n\x1b[31m\xff,0\n")

    assert message.isprintable()
    assert "\\x1b[31m\ufffd,0" in message


def test_a_box_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / BOX_FILE_NAME
    with path.open("wb") as file:
        file.truncate(2**40)

    with pytest.raises(ConfigError, match=f"{2**40} bytes"):
        read_boxes(path)


def test_a_folder_in_place_of_the_box_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_boxes(tmp_path)


def test_real_boxes_are_read(photos: Path) -> None:
    boxes = read_boxes(photos / BOX_FILE_NAME)
    expected = np.array([[0.0720, 0.2906, 0.6720, 0.7565]], np.float32)

    assert len(boxes.names) == 204
    assert np.array_equal(boxes.boxes_for(b"ILSVRC2012_val_00000651.JPEG"), expected)
