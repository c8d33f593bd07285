"""Unpacking archives: nothing outside the folder is written, and damage is reported."""

import gzip
import tarfile
from pathlib import Path

import pytest
from support.cifar_files import member, tar_gz

from convoy.data.download import unpack
from convoy.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An otherwise empty folder, so that searching for files outside the target is fast."""
    folder = tmp_path / "downloads"
    folder.mkdir()
    return folder


def unpack_in(packed: bytes, folder: Path) -> Path:
    archive = folder / "set.tar.gz"
    archive.write_bytes(packed)
    unpack(archive, folder / "into")
    return folder / "into"


def error_message(packed: bytes, folder: Path) -> str:
    """Return the error, and check that nothing was written outside the folder."""
    before = set(folder.parent.rglob("*"))
    with pytest.raises(DataError) as caught:
        unpack_in(packed, folder)
    new_paths = set(folder.parent.rglob("*")) - before - {folder / "set.tar.gz", folder / "into"}
    assert all(path.is_relative_to(folder / "into") for path in new_paths)
    assert str(folder / "set.tar.gz") in str(caught.value)
    return str(caught.value)


def test_files_and_folders_are_unpacked(folder: Path) -> None:
    packed = tar_gz(
        (member("./", kind=tarfile.DIRTYPE), b""),
        (member("set/", kind=tarfile.DIRTYPE), b""),
        (member("set/one.bin", b"one"), b"one"),
        (member("set/deep/two.bin", b"two"), b"two"),
    )
    target = unpack_in(packed, folder)

    assert (target / "set/one.bin").read_bytes() == b"one"
    assert (target / "set/deep/two.bin").read_bytes() == b"two"


@pytest.mark.parametrize("name", ["../evil", "set/../../evil", "a/./../../evil"])
def test_a_path_outside_the_target_is_refused(name: str, folder: Path) -> None:
    assert "outside the destination" in error_message(
        tar_gz((member(name, b"evil"), b"evil")), folder
    )


def test_an_absolute_path_is_unpacked_below_the_target(folder: Path) -> None:
    victim = folder / "victim"
    victim.write_bytes(b"mine")
    target = unpack_in(tar_gz((member(str(victim), b"evil"), b"evil")), folder)

    assert victim.read_bytes() == b"mine"
    assert (target / str(victim).removeprefix("/")).read_bytes() == b"evil"


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]
)
def test_members_that_are_not_regular_files_are_refused(kind: bytes, folder: Path) -> None:
    header = member("set/thing", kind=kind)
    header.linkname = "/etc/passwd"

    assert "'set/thing' is " in error_message(tar_gz((header, b"")), folder)


def test_a_file_behind_a_link_is_not_written(folder: Path) -> None:
    outside = folder / "outside"
    outside.mkdir()
    link = member("set/link", kind=tarfile.SYMTYPE)
    link.linkname = str(outside)
    error_message(tar_gz((link, b""), (member("set/link/evil", b"evil"), b"evil")), folder)

    assert list(outside.iterdir()) == []


def test_files_that_are_not_archives_are_reported_as_damaged(folder: Path) -> None:
    for number, packed in enumerate((b"", b"<html></html>", gzip.compress(b"no tar" * 999))):
        subfolder = folder / str(number)
        subfolder.mkdir()

        assert "damaged, or not a .tar.gz" in error_message(packed, subfolder)


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_a_truncated_archive_is_reported_as_damaged(fraction: float, folder: Path) -> None:
    content = bytes(number * number % 251 for number in range(100_000))
    packed = tar_gz((member("set/one", content), content))

    assert "damaged" in error_message(packed[: int(len(packed) * fraction)], folder)
