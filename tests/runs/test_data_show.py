"""`convoy data show`, end to end."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from support.cifar_files import write_cifar10
from support.photo_files import write_folder
from support.run_convoy import CommandResult, convoy

SMALL = ("--model=resnet8", "--data=shapes", "--image-size=64", "--samples=64", "--threads=1")
SIDE, GAP, LINE = 64, 4, 16


def show(*words: str | Path) -> CommandResult:
    return convoy("data", "show", "--micro-batch-size=8", *words)


def sheet_images(path: Path, rows: int, columns: int) -> npt.NDArray[np.uint8]:
    """The images of a training sheet: (rows, columns, side, side, 3)."""
    sheet = np.asarray(Image.open(path))
    top, left = LINE + GAP, sheet.shape[1] - columns * (SIDE + GAP)
    grid = sheet[top:, left:].reshape(rows, SIDE + GAP, columns, SIDE + GAP, 3)
    return grid.transpose(0, 2, 1, 3, 4)[:, :, :SIDE, :SIDE]


@pytest.fixture
def cifar(tmp_path: Path) -> tuple[str, ...]:
    write_cifar10(tmp_path / "data", 20)
    return ("--data=cifar10", f"--data-dir={tmp_path / 'data'}", "--model=resnet8", "--threads=1")


def test_a_sheet_has_a_row_for_each_sample_and_a_column_for_each_epoch(tmp_path: Path) -> None:
    sheet = tmp_path / "new" / "sheet.png"
    result = show(*SMALL, "--output", sheet, "--rows=3", "--columns=2")

    assert (result.code, result.err) == (0, "")
    assert result.out == f"{sheet}: 3 samples of shapes, train split, 2 epochs\n"
    images = sheet_images(sheet, 3, 2)
    assert np.array_equal(images[:, 0], images[:, 1])  # shapes has no augmentation
    assert not np.array_equal(images[0], images[1])
    assert [item.name for item in sheet.parent.iterdir()] == ["sheet.png"]


def test_augmentation_differs_from_epoch_to_epoch(tmp_path: Path, cifar: tuple[str, ...]) -> None:
    result = show(*cifar, "--output", tmp_path / "a.png", "--rows=4", "--columns=3")
    assert result.code == 0, result.err
    first, second, _ = sheet_images(tmp_path / "a.png", 4, 3).transpose(1, 0, 2, 3, 4)

    assert not np.array_equal(first, second)


def test_a_later_epoch_can_be_the_first_one_shown(tmp_path: Path, cifar: tuple[str, ...]) -> None:
    # All samples are in one micro-batch, so that every epoch shows the same ones.
    words = (*cifar, "--rows=1", "--columns=2")
    show(*words, "--output", tmp_path / "a.png")
    show(*words, "--output", tmp_path / "b.png", "--epoch=2")
    a, b = sheet_images(tmp_path / "a.png", 1, 2), sheet_images(tmp_path / "b.png", 1, 2)

    assert not np.array_equal(a, b)


def test_the_validation_split_is_shown_with_its_labels(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    result = show(*SMALL, "--output", sheet, "--rows=2", "--columns=3", "--split=validation")

    assert result.out == f"{sheet}: 6 samples of shapes, validation split\n"
    with Image.open(sheet) as picture:
        assert picture.size == (GAP + 3 * (SIDE + GAP), GAP + 2 * (SIDE + GAP + LINE))


def test_few_samples_make_a_small_sheet(tmp_path: Path) -> None:
    words = ("--samples=8", "--rows=50", "--columns=1")
    result = show(*SMALL, *words, "--output", tmp_path / "a.png")

    assert ": 8 samples of shapes, train split, 1 epoch\n" in result.out


def test_an_existing_file_is_not_overwritten_without_overwrite(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.png"
    sheet.write_text("existing")
    result = show(*SMALL, "--output", sheet)

    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"convoy: {sheet} already exists")
    assert "another --output" in result.err and "add --overwrite" in result.err
    assert result.err.count("\n") == 1
    assert sheet.read_text() == "existing"
    assert show(*SMALL, "--output", sheet, "--overwrite").code == 0
    assert sheet.read_bytes().startswith(b"\x89PNG")


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    words = ("--rows=0", "--columns=-1", "--epoch=1.5", "--output", tmp_path / "x.jpg")
    result = show(*SMALL, *words)

    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines() == [
        "convoy: --rows must be at least 1, got 0",
        "convoy: --columns must be at least 1, got -1",
        "convoy: --epochs must be an integer here, got 1.5",
        f"convoy: --output {tmp_path / 'x.jpg'} is not a valid output file; "
        "its name must end in .png",
    ]


def test_a_folder_is_not_an_output_file(tmp_path: Path) -> None:
    (tmp_path / "a.png").mkdir()
    result = show(*SMALL, "--output", tmp_path / "a.png")

    assert result.code == 2
    assert f"--output {tmp_path / 'a.png'} is a folder" in result.err


def test_an_unwritable_path_is_reported_with_code_6() -> None:
    result = show(*SMALL, "--output", "/proc/none/sheet.png")

    assert (result.code, result.out) == (6, "")
    assert len(result.err.splitlines()) == 1 and "cannot write /proc/none/sheet.png" in result.err


def test_photos_are_shown_with_the_crops_of_each_epoch(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", train=12)
    words = ("--data=imagenet", f"--data-dir={tmp_path / 'photos'}", "--image-size=64")
    result = show(
        *words, "--model=resnet8", "--rows=3", "--columns=2", "--output", tmp_path / "a.png"
    )
    assert result.code == 0, result.err
    first, second = sheet_images(tmp_path / "a.png", 3, 2).transpose(1, 0, 2, 3, 4)

    assert not np.array_equal(first, second)


def mixed_images(path: Path, *words: str) -> npt.NDArray[np.uint8]:
    """The images of a sheet with two labels beneath each: (rows, columns, side, side, 3)."""
    result = show(*SMALL, "--rows=4", "--columns=2", *words, "--output", path)
    assert result.code == 0, result.err
    sheet = np.asarray(Image.open(path))[LINE + GAP :, GAP:]
    grid = sheet.reshape(4, SIDE + GAP + LINE, 2, SIDE + GAP, 3)
    return grid.transpose(0, 2, 1, 3, 4)[:, :, :SIDE, :SIDE]


def test_a_cutmix_box_is_from_the_image_two_positions_before(tmp_path: Path) -> None:
    """Positions wrap around in a micro-batch of four."""
    words = ("--cutmix-lambda-low=0.3", "--cutmix-lambda-high=0.6", "--micro-batch-size=4")
    plain_words = ("--micro-batch-size=4", "--rows=4", "--columns=1")
    result = show(*SMALL, *plain_words, "--output", tmp_path / "a.png")
    assert result.code == 0
    plain = sheet_images(tmp_path / "a.png", 4, 1)[:, 0]
    cut = mixed_images(tmp_path / "b.png", *words)[:, 0]
    unchanged, pasted = (cut == plain).all(3), (cut == np.roll(plain, 2, 0)).all(3)

    assert (unchanged | pasted).all()
    assert not unchanged.all() and not pasted.all()


def test_the_same_mix_is_shown_for_every_mixing_device(tmp_path: Path) -> None:
    words = ("--mixup-alpha=0.4",)
    device = mixed_images(tmp_path / "a.png", *words, "--eight-bit-io")
    host = mixed_images(tmp_path / "b.png", *words, "--hostside-image-mixing")

    assert np.array_equal(device, host)
