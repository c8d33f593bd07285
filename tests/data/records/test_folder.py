"""Images in class folders: their order, skipped files, and errors."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.data.records.folder import BOX_FILE_NAME, ImageFolder, open_folder
from convoy.data.records.ledger import BadRecordError
from convoy.data.records.record import MAX_RECORD_BYTES, Records
from convoy.errors import ConfigError, DataError, ExitCode

NAMES = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8
).filter(lambda name: not name.startswith("."))


def write(root: Path, *files: str) -> Path:
    """Write files whose content is their name."""
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return root


def write_pets(root: Path) -> Path:
    return write(root, "train/cat/2.jpg", "train/cat/1.JPEG", "train/dog/1.png")


def contents(records: Records) -> list[str]:
    return [bytes(records.read(number).encoded).decode() for number in range(len(records))]


def error_message(root: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        open_folder(root, "train")
    assert caught.value.code == ExitCode.CONFIG
    return str(caught.value)


def skipped_files(root: Path) -> list[str]:
    return sorted(open_folder(root, "train").skipped_files)


def test_records_are_sorted_by_class_folder_and_file_name(tmp_path: Path) -> None:
    records: Records = open_folder(write_pets(tmp_path), "train")

    assert contents(records) == ["train/cat/1.JPEG", "train/cat/2.jpg", "train/dog/1.png"]
    assert records.labels.tolist() == [0, 0, 1]
    assert records.class_names == ("cat", "dog")
    assert len(records) == 3
    assert str(records.location(1)) == f"{tmp_path}/train/cat/2.jpg"


@settings(max_examples=50)
@given(st.dictionaries(NAMES, st.sets(NAMES, min_size=1, max_size=4), min_size=2, max_size=4))
def test_arbitrary_names_are_sorted_by_their_bytes(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, set[str]]
) -> None:
    files = sorted(
        (os.fsencode(folder), os.fsencode(f"{name}.jpg"))
        for folder in tree
        for name in tree[folder]
    )
    root = tmp_path_factory.mktemp("tree")
    records = open_folder(
        write(root, *(os.fsdecode(b"train/" + b"/".join(file)) for file in files)), "train"
    )
    folders = sorted(os.fsencode(folder) for folder in tree)

    assert contents(records) == [os.fsdecode(b"train/" + b"/".join(file)) for file in files]
    assert records.labels.tolist() == [folders.index(folder) for folder, _ in files]
    assert len(set(records.class_names)) == len(folders)
    assert all(str(records.location(number)).isprintable() for number in range(len(records)))


def test_names_that_are_not_valid_text_are_read_and_printable(tmp_path: Path) -> None:
    write_pets(tmp_path)
    path = os.fsencode(tmp_path / "train/dog") + b"/\xff\n.jpg"
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY), "wb") as file:
        file.write(b"content")
    records = open_folder(tmp_path, "train")

    assert records.read(3).encoded == b"content"
    assert str(records.location(3)).isprintable()


def test_every_image_suffix_is_accepted_in_any_case(tmp_path: Path) -> None:
    suffixes = ["jpeg", "JPG", "png", "bmp", "GIF", "webp", "tif", "TIFF", "Jpeg"]
    write(write_pets(tmp_path), *(f"train/dog/image.{suffix}" for suffix in suffixes))

    assert len(open_folder(tmp_path, "train")) == 3 + len(suffixes)


def test_folders_inside_a_class_folder_belong_to_the_class(tmp_path: Path) -> None:
    write(
        write_pets(tmp_path), "train/dog/big/old/9.jpg", "train/dog/0.jpg", "train/dog/small/5.jpg"
    )
    records = open_folder(tmp_path, "train")

    assert contents(records)[2:] == [
        *("train/dog/0.jpg", "train/dog/1.png"),
        *("train/dog/big/old/9.jpg", "train/dog/small/5.jpg"),
    ]
    assert records.labels.tolist() == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("name", ["validation", "val"])
def test_the_validation_folder_may_have_either_name(name: str, tmp_path: Path) -> None:
    write(write_pets(tmp_path), f"{name}/cat/7.jpg", f"{name}/dog/8.jpg")

    assert contents(open_folder(tmp_path, "validation")) == [
        f"{name}/cat/7.jpg",
        f"{name}/dog/8.jpg",
    ]


def test_two_folders_for_one_split_are_refused(tmp_path: Path) -> None:
    write(write_pets(tmp_path), "val/cat/7.jpg", "validation/cat/8.jpg")

    assert "both validation/ and val/ exist" in error_message(tmp_path)


def test_two_names_for_the_same_folder_are_accepted(tmp_path: Path) -> None:
    write(write_pets(tmp_path), "val/cat/7.jpg", "val/dog/8.jpg")
    (tmp_path / "validation").symlink_to("val")

    assert len(open_folder(tmp_path, "validation")) == 2


def test_skipped_files_are_listed_with_the_reason(tmp_path: Path) -> None:
    write(write_pets(tmp_path), "train/dog/notes.txt", "train/dog/.DS_Store", "train/dog/._1.jpg")
    write(tmp_path, "train/loose.jpg", "train/.git/1.jpg", "train/cat/.cache/1.jpg")
    (tmp_path / "train/empty").mkdir()
    os.mkfifo(tmp_path / "train/dog/pipe.jpg")

    assert skipped_files(tmp_path) == [
        ".git: hidden",
        "cat/.cache: hidden",
        "dog/.DS_Store: hidden",
        "dog/._1.jpg: hidden",
        "dog/notes.txt: not an image extension",
        "dog/pipe.jpg: not a regular file",
        "empty: a class folder without images",
        "loose.jpg: not in a class folder",
    ]
    assert len(open_folder(tmp_path, "train")) == 3


def test_broken_and_looping_links_are_listed(tmp_path: Path) -> None:
    dog = write_pets(tmp_path) / "train/dog"
    (dog / "gone.jpg").symlink_to("nowhere.jpg")
    (dog / "self.jpg").symlink_to("self.jpg")

    assert skipped_files(tmp_path) == [
        "dog/gone.jpg: a broken link",
        "dog/self.jpg: a link that cannot be followed (Too many levels of symbolic links)",
    ]


@pytest.mark.parametrize("target", [".", "..", "../..", "../cat"])
def test_links_to_folders_that_are_already_included_are_skipped(
    target: str, tmp_path: Path
) -> None:
    (write_pets(tmp_path) / "train/cat/again").symlink_to(target)
    (tmp_path / "train/dog/again").symlink_to(target)

    assert contents(open_folder(tmp_path, "train")) == contents(open_folder(tmp_path, "train"))
    assert len(open_folder(tmp_path, "train")) == 3
    assert "cat/again: a link to a folder that is already included" in skipped_files(tmp_path)


def test_images_behind_a_link_to_another_class_keep_their_class(tmp_path: Path) -> None:
    (write_pets(tmp_path) / "train/cat/dogs").symlink_to("../dog")

    assert open_folder(tmp_path, "train").labels.tolist() == [0, 0, 1]


def test_links_to_images_and_folders_outside_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "far", "more/3.jpg", "4.jpg")
    root = write_pets(tmp_path / "near")
    (root / "train/cow").symlink_to(tmp_path / "far/more")
    (root / "train/dog/4.jpg").symlink_to(tmp_path / "far/4.jpg")

    assert contents(open_folder(root, "train"))[2:] == ["more/3.jpg", "train/dog/1.png", "4.jpg"]


def test_many_skipped_files_are_counted(tmp_path: Path) -> None:
    write(write_pets(tmp_path), *(f"train/dog/{number}.xml" for number in range(1005)))
    messages = open_folder(tmp_path, "train").skipped_files

    assert (len(messages), messages[-1]) == (1001, "and 5 more")


def test_a_missing_split_is_refused_with_the_expected_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder validation/ or val/ in it"):
        open_folder(write_pets(tmp_path), "validation")
    only_validation = write(tmp_path / "other", "val/cat/1.jpg", "val/dog/1.jpg")
    assert "no folder train/ in it" in error_message(only_validation)


def test_a_split_without_class_folders_is_refused(tmp_path: Path) -> None:
    write(write_pets(tmp_path), "val/1.jpg", "val/2.jpg")

    assert f"{tmp_path}/val: no class folders in it" in error_message(tmp_path)


def test_class_folders_without_any_image_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "train/cat/1.txt", "train/dog/1.txt")
    message = error_message(tmp_path)

    assert "no images in its 2 class folders" in message
    assert ".webp" in message


def test_a_single_class_is_refused(tmp_path: Path) -> None:
    assert "only one class folder (cat)" in error_message(write(tmp_path, "train/cat/1.jpg"))


def test_classes_that_exist_in_only_one_split_are_listed(tmp_path: Path) -> None:
    write(write_pets(tmp_path), *(f"train/n{number}/1.jpg" for number in range(7)))
    write(tmp_path, "val/cat/1.jpg", "val/fox/1.jpg")
    message = error_message(tmp_path)

    assert "differ in 9 class folders" in message
    assert "only in train: dog, n0, n1, n2, n3 and 3 more; only in val: fox." in message


def test_only_the_missing_class_is_listed(tmp_path: Path) -> None:
    message = error_message(write(write_pets(tmp_path), "val/cat/1.jpg"))

    assert "only in train: dog. " in message
    assert "only in val" not in message


def test_the_error_for_an_unreadable_folder_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(path: bytes) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    write_pets(tmp_path)
    monkeypatch.setattr(os, "scandir", deny)

    with pytest.raises(DataError, match="train/: cannot be listed: Permission denied"):
        open_folder(tmp_path, "train")


def test_boxes_are_looked_up_by_file_name(tmp_path: Path) -> None:
    write(write_pets(tmp_path), "train/dog/inner/9.jpg")
    (tmp_path / BOX_FILE_NAME).write_text("2.jpg,0,0,0.5,1\n9.jpg,0,0,1,0.5\n2.jpg,0,0,1,1\n")
    records = open_folder(tmp_path, "train")

    assert [len(records.read(number).boxes) for number in range(4)] == [0, 2, 0, 1]
    assert records.boxes(3).tolist() == [[0, 0, 1, 0.5]]


def test_without_a_box_file_there_are_no_boxes(tmp_path: Path) -> None:
    assert open_folder(write_pets(tmp_path), "train").read(0).boxes.shape == (0, 4)


def open_and_read_first(root: Path) -> tuple[ImageFolder, Path]:
    """Open a dataset and read its first file."""
    records = open_folder(write_pets(root), "train")
    records.read(0)
    return records, root / "train/cat/1.JPEG"


def test_a_file_whose_size_changes_is_refused(tmp_path: Path) -> None:
    records, path = open_and_read_first(tmp_path)
    path.write_bytes(b"shorter")

    with pytest.raises(DataError) as caught:
        records.read(0)
    assert not isinstance(caught.value, BadRecordError)
    assert f"{path}: changed during the run: 16 bytes at first, 7 now" in str(caught.value)


def test_a_rewritten_file_of_equal_size_is_refused(tmp_path: Path) -> None:
    records, path = open_and_read_first(tmp_path)
    os.utime(path, ns=(0, 12345))

    with pytest.raises(DataError, match="12345 ns now"):
        records.read(0)


def test_a_file_may_change_before_it_is_first_read(tmp_path: Path) -> None:
    records, _ = open_and_read_first(tmp_path)
    (tmp_path / "train/cat/2.jpg").write_bytes(b"changed before it was read")

    assert records.read(1).encoded == b"changed before it was read"
    assert records.read(0).encoded == b"train/cat/1.JPEG"


def test_a_removed_file_ends_the_run(tmp_path: Path) -> None:
    records, path = open_and_read_first(tmp_path)
    path.unlink()

    with pytest.raises(DataError, match=r"1\.JPEG: cannot be read: No such file") as caught:
        records.read(0)
    assert not isinstance(caught.value, BadRecordError)


@pytest.mark.parametrize(
    ("code", "is_bad_record"),
    [(errno.EACCES, True), (errno.EIO, True), (errno.EMFILE, False), (errno.ENOENT, False)],
)
def test_only_errors_of_the_file_itself_make_it_a_bad_record(
    code: int, is_bad_record: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    records, _ = open_and_read_first(tmp_path)
    monkeypatch.setattr(os, "open", fail)

    with pytest.raises(DataError, match=f"cannot be read: {os.strerror(code)}") as caught:
        records.read(0)
    assert isinstance(caught.value, BadRecordError) == is_bad_record


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (0, f"0 bytes; an image has 1 … {2**26}"),
        (MAX_RECORD_BYTES + 1, f"{2**26 + 1} bytes; an image has"),
        (2**40, f"{2**40} bytes"),
    ],
)
def test_a_file_of_invalid_size_is_a_bad_record(size: int, reason: str, tmp_path: Path) -> None:
    path = write_pets(tmp_path) / "train/cat/1.JPEG"
    os.truncate(path, size)
    records = open_folder(tmp_path, "train")

    with pytest.raises(BadRecordError) as caught:
        records.read(0)
    assert reason in caught.value.reason
    assert caught.value.location.file == str(path)


def test_a_pipe_in_place_of_an_image_does_not_block(tmp_path: Path) -> None:
    path = write_pets(tmp_path) / "train/cat/1.JPEG"
    records = open_folder(tmp_path, "train")
    path.unlink()
    os.mkfifo(path)

    with pytest.raises(BadRecordError, match="not a regular file"):
        records.read(0)


@pytest.mark.processes
@pytest.mark.slow
def test_fifty_thousand_files_need_little_memory(tmp_path: Path) -> None:
    """At 150 bytes per file, ImageNet's 1.28 million files need less than 200 MB."""
    for number in range(50):
        folder = tmp_path / f"train/n{number:08}"
        folder.mkdir(parents=True)
        for image in range(1000):
            (folder / f"n{number:08}_{image}.JPEG").touch()
    script = (
        "import resource; from pathlib import Path; from convoy.data.records.folder import *\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"records = open_folder(Path({str(tmp_path)!r}), 'train')\n"
        "print(len(records), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    count, kibibytes = map(int, result.stdout.split())

    assert count == 50_000
    assert kibibytes * 1024 / count < 150


def test_real_photos_are_all_found(photos: Path) -> None:
    train, validation = open_folder(photos, "train"), open_folder(photos, "validation")

    assert len(train) + len(validation) == 207
    assert train.class_names == validation.class_names
    assert len(train.class_names) == 24
    assert all(bytes(train.read(number).encoded[:2]) == b"\xff\xd8" for number in range(len(train)))
    assert train.skipped_files == ()
