"""CIFAR files: records of valid files, and error messages for invalid ones."""

import os
from pathlib import Path

import numpy as np
import pytest
from support.cifar_files import records, write_cifar, write_cifar10, write_cifar100

from convoy.data.source import Split
from convoy.data.sources.cifar import CIFAR10, CIFAR100, CifarFormat, open_cifar
from convoy.data.sources.pixel_source import PixelSource
from convoy.errors import ConfigError, DataError, ExitCode

both_formats = pytest.mark.parametrize(
    "layout", [CIFAR10, CIFAR100], ids=lambda layout: layout.name
)


def error_message(layout: CifarFormat, folder: Path, split: Split = "validation") -> str:
    """Return the message of the DataError."""
    with pytest.raises(DataError) as caught:
        open_cifar(layout, folder, split)
    assert caught.value.code == ExitCode.DATA
    return str(caught.value)


@both_formats
def test_records_are_in_the_order_of_the_files(layout: CifarFormat, tmp_path: Path) -> None:
    folder = write_cifar(layout, tmp_path, count=1003)  # more than one read
    source: PixelSource = open_cifar(layout, tmp_path, "train")
    raw = [np.fromfile(folder / name, np.uint8) for name in layout.files["train"]]
    rows = np.concatenate(raw).reshape(-1, layout.record_bytes)
    ids = np.arange(len(source))

    assert len(source) == 1003 * len(layout.files["train"])
    assert np.array_equal(source.labels(ids), rows[:, layout.record_bytes - 3073])
    assert np.array_equal(
        source.pixels(ids).transpose(0, 3, 1, 2).reshape(-1, 3072), rows[:, -3072:]
    )


def test_planes_become_pixels_row_by_row(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    row = records(CIFAR10, 1)
    row[0, 1 + 1024 + 32 * 3 + 5] = 77  # green, row 3, column 5
    (folder / "test_batch.bin").write_bytes(row.tobytes())

    assert open_cifar(CIFAR10, tmp_path, "validation").pixels(np.array([0]))[0, 3, 5, 1] == 77


def test_cifar100_gives_the_fine_label(tmp_path: Path) -> None:
    write_cifar100(tmp_path, count=100)
    labels = open_cifar(CIFAR100, tmp_path, "validation").labels(np.arange(100))

    assert labels.tolist() == list(range(100))
    assert labels.dtype == np.int64


def test_ids_may_be_unordered_and_repeated(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    source = open_cifar(CIFAR10, tmp_path, "train")
    all_pixels = source.pixels(np.arange(len(source)))
    ids = np.array([99, 0, 0, 57])

    assert np.array_equal(source.pixels(ids), all_pixels[ids])
    assert source.labels(ids).tolist() == [9, 0, 0, 7]


def test_modifying_a_batch_does_not_change_the_source(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    source = open_cifar(CIFAR10, tmp_path, "validation")
    before = source.pixels(np.arange(4)).copy()
    source.pixels(np.arange(4))[:] = 0

    assert np.array_equal(source.pixels(np.arange(4)), before)


@both_formats
def test_the_folder_of_the_files_itself_is_accepted(layout: CifarFormat, tmp_path: Path) -> None:
    folder = write_cifar(layout, tmp_path)

    assert len(open_cifar(layout, folder, "validation")) == 20
    assert len(open_cifar(layout, tmp_path, "validation")) == 20


def test_the_folder_with_more_of_the_files_is_used(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(b"left over")

    assert len(open_cifar(CIFAR10, tmp_path, "validation")) == 20


def test_links_are_followed(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path / "elsewhere")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / folder.name).symlink_to(folder)
    (folder / "test_batch.bin").rename(tmp_path / "moved")
    (folder / "test_batch.bin").symlink_to(tmp_path / "moved")

    assert len(open_cifar(CIFAR10, tmp_path / "here", "validation")) == 20


def test_a_missing_folder_is_a_config_error_that_names_the_options(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        open_cifar(CIFAR10, tmp_path / "absent", "train")
    message = str(caught.value)

    assert all(word in message for word in (str(tmp_path / "absent"), "--data-dir", "DATA_DIR"))


def test_missing_files_are_listed_with_the_download_command(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    (folder / "data_batch_2.bin").unlink()
    (folder / "data_batch_4.bin").unlink()
    message = error_message(CIFAR10, tmp_path, "train")

    assert "missing data_batch_2.bin, data_batch_4.bin;" in message
    assert f"`convoy data fetch cifar10 --data-dir {tmp_path}`" in message


@both_formats
def test_every_missing_file_of_an_empty_folder_is_listed(
    layout: CifarFormat, tmp_path: Path
) -> None:
    message = error_message(layout, tmp_path, "train")

    assert all(name in message for name in layout.files["train"])
    assert f"`convoy data fetch {layout.name} --data-dir {tmp_path}`" in message


def test_files_of_the_other_dataset_are_reported(tmp_path: Path) -> None:
    folder = write_cifar100(tmp_path)

    assert "found files of CIFAR-100" in error_message(CIFAR10, tmp_path)
    assert "found files of CIFAR-100" in error_message(CIFAR10, folder)


def test_the_pickle_format_is_reported(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()

    assert "pickle format" in error_message(CIFAR10, tmp_path)


@both_formats
@pytest.mark.parametrize("extra", [-1, 1, 2, 1000])
def test_a_wrong_size_is_reported_with_file_and_record_size(
    layout: CifarFormat, extra: int, tmp_path: Path
) -> None:
    path = write_cifar(layout, tmp_path) / layout.files["validation"][0]
    size = 20 * layout.record_bytes + extra
    os.truncate(path, size)
    message = error_message(layout, tmp_path)

    assert all(str(part) in message for part in (path, f"{size} bytes", layout.record_bytes))
    assert "looks like" not in message


@both_formats
def test_an_empty_file_is_reported(layout: CifarFormat, tmp_path: Path) -> None:
    path = write_cifar(layout, tmp_path) / layout.files["validation"][0]
    path.write_bytes(b"")
    message = error_message(layout, tmp_path)

    assert f"{path}: 0 bytes" in message
    assert f"{layout.record_bytes} bytes: the file is empty" in message


@pytest.mark.parametrize("label", [10, 200, 255])
@pytest.mark.parametrize("record", [0, 999, 1000, 1499])
def test_an_invalid_label_is_reported_with_its_record(
    record: int, label: int, tmp_path: Path
) -> None:
    path = write_cifar10(tmp_path, count=1500) / "test_batch.bin"
    rows = records(CIFAR10, 1500)
    rows[record, 0] = label
    path.write_bytes(rows.tobytes())
    message = error_message(CIFAR10, tmp_path)

    assert f"record {record} (counted from 0) has label {label}, valid are 0 … 9" in message
    assert all(str(part) in message for part in (path, 1500 * 3073, "3073 bytes"))


@pytest.mark.parametrize(
    ("byte", "label", "reason"),
    [(0, 20, "coarse label 20, valid are 0 … 19"), (1, 200, "label 200, valid are 0 … 99")],
)
def test_both_labels_of_cifar100_are_checked(
    byte: int, label: int, reason: str, tmp_path: Path
) -> None:
    path = write_cifar100(tmp_path) / "test.bin"
    rows = records(CIFAR100, 20)
    rows[7, byte] = label
    path.write_bytes(rows.tobytes())

    assert reason in error_message(CIFAR100, tmp_path)


@both_formats
@pytest.mark.parametrize("count", [1, 20, 1003])
def test_a_file_of_the_other_dataset_is_recognized(
    layout: CifarFormat, count: int, tmp_path: Path
) -> None:
    other = CIFAR100 if layout is CIFAR10 else CIFAR10
    path = write_cifar(layout, tmp_path) / layout.files["validation"][0]
    path.write_bytes(records(other, count).tobytes())
    message = error_message(layout, tmp_path)

    assert f"it looks like a file of {other.title}" in message
    assert all(str(part) in message for part in (path, path.stat().st_size, layout.record_bytes))


@both_formats
def test_a_file_of_the_other_dataset_is_recognized_by_its_labels(
    layout: CifarFormat, tmp_path: Path
) -> None:
    other = CIFAR100 if layout is CIFAR10 else CIFAR10
    path = write_cifar(layout, tmp_path) / layout.files["validation"][0]
    path.write_bytes(records(other, layout.record_bytes).tobytes())
    message = error_message(layout, tmp_path)

    assert path.stat().st_size % layout.record_bytes == 0
    assert "label" in message
    assert f"it looks like a file of {other.title}" in message


def test_one_wrong_label_is_not_a_file_of_the_other_dataset(tmp_path: Path) -> None:
    path = write_cifar10(tmp_path) / "test_batch.bin"
    rows = records(CIFAR10, CIFAR100.record_bytes)
    rows[5, 0] = 200
    path.write_bytes(rows.tobytes())
    message = error_message(CIFAR10, tmp_path)

    assert "record 5 (counted from 0) has label 200" in message
    assert "looks like" not in message


def test_a_valid_file_whose_size_fits_both_formats_is_read(tmp_path: Path) -> None:
    write_cifar(CIFAR10, tmp_path / "ten", count=CIFAR100.record_bytes)
    write_cifar(CIFAR100, tmp_path / "hundred", count=CIFAR10.record_bytes)

    assert len(open_cifar(CIFAR10, tmp_path / "ten", "validation")) == 3074
    assert len(open_cifar(CIFAR100, tmp_path / "hundred", "validation")) == 3073


def test_two_files_with_the_same_images_are_refused(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    (folder / "data_batch_4.bin").write_bytes((folder / "data_batch_2.bin").read_bytes())
    message = error_message(CIFAR10, tmp_path, "train")

    assert "data_batch_2.bin and data_batch_4.bin contain the same images" in message


def test_files_with_the_same_first_image_are_not_duplicates(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    first, second = records(CIFAR10, 20, seed=0), records(CIFAR10, 20, seed=1)
    second[:5] = first[:5]
    (folder / "data_batch_1.bin").write_bytes(first.tobytes())
    (folder / "data_batch_2.bin").write_bytes(second.tobytes())

    assert len(open_cifar(CIFAR10, tmp_path, "train")) == 100


def test_a_pipe_instead_of_a_file_is_refused_without_blocking(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    (folder / "test_batch.bin").unlink()
    os.mkfifo(folder / "test_batch.bin")

    assert "test_batch.bin: not a regular file" in error_message(CIFAR10, tmp_path)


def test_a_device_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    (folder / "test_batch.bin").unlink()
    (folder / "test_batch.bin").symlink_to("/dev/zero")

    assert "test_batch.bin: not a regular file" in error_message(CIFAR10, tmp_path)


def test_a_folder_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    (folder / "test_batch.bin").unlink()
    (folder / "test_batch.bin").mkdir()

    assert "test_batch.bin: not a regular file" in error_message(CIFAR10, tmp_path)


def test_a_symlink_loop_is_reported(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    (folder / "test_batch.bin").unlink()
    (folder / "test_batch.bin").symlink_to("test_batch.bin")

    assert "test_batch.bin: Too many levels" in error_message(CIFAR10, tmp_path)


def test_a_huge_sparse_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = write_cifar10(tmp_path) / "test_batch.bin"
    os.truncate(path, 3073 * 2**30)

    assert f"{3073 * 2**30} bytes" in error_message(CIFAR10, tmp_path)


def test_class_names_are_built_in(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    write_cifar100(tmp_path)
    ten, hundred = open_cifar(CIFAR10, tmp_path, "train"), open_cifar(CIFAR100, tmp_path, "train")

    assert (ten.class_names[0], ten.class_names[9]) == ("airplane", "truck")
    assert (hundred.class_names[0], hundred.class_names[99]) == ("apple", "worm")
    assert (len(ten.class_names), len(set(hundred.class_names))) == (10, 100)
    assert list(hundred.class_names) == sorted(hundred.class_names)


def test_class_names_in_the_dataset_take_precedence(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")

    assert open_cifar(CIFAR10, tmp_path, "train").class_names == tuple("abcdefghij")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb\n", "2 class names (2 unique)"),
        ("a\n" * 10, "10 class names (1 unique)"),
        ("\n".join("abcdefghija"), "11 class names (10 unique)"),
    ],
)
def test_wrong_class_names_are_refused(text: str, message: str, tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    (folder / "batches.meta.txt").write_text(text)

    assert message in error_message(CIFAR10, tmp_path)


def test_a_pipe_instead_of_class_names_is_refused(tmp_path: Path) -> None:
    os.mkfifo(write_cifar10(tmp_path) / "batches.meta.txt")

    assert "batches.meta.txt: not a regular file" in error_message(CIFAR10, tmp_path)


def test_each_dataset_has_its_normalization(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    write_cifar100(tmp_path)

    assert open_cifar(CIFAR10, tmp_path, "train").normalization.mean == (0.4914, 0.4822, 0.4465)
    assert open_cifar(CIFAR100, tmp_path, "train").normalization.std == (0.2673, 0.2564, 0.2762)
