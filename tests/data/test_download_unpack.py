"""Archives unpacked: nothing outside the folder is touched, and damage is named."""

import gzip
import tarfile
from pathlib import Path

import pytest
from cifar_files import member, tar_gz

from convoy.data.download import unpack
from convoy.errors import DataError


def try_out(packed: bytes, folder: Path) -> Path:
    archive = folder / "set.tar.gz"
    archive.write_bytes(packed)
    unpack(archive, folder / "into")
    return folder / "into"


def complaint(packed: bytes, folder: Path) -> str:
    """Why it is refused; that nothing appeared beside the folder is checked here."""
    before = set(folder.parent.rglob("*"))
    with pytest.raises(DataError) as caught:
        try_out(packed, folder)
    grown = set(folder.parent.rglob("*")) - before - {folder / "set.tar.gz", folder / "into"}
    assert all(path.is_relative_to(folder / "into") for path in grown)
    assert str(folder / "set.tar.gz") in str(caught.value)
    return str(caught.value)


def test_files_and_their_folders_are_written(tmp_path: Path) -> None:
    packed = tar_gz(
        (member("./", kind=tarfile.DIRTYPE), b""),
        (member("set/", kind=tarfile.DIRTYPE), b""),
        (member("set/one.bin", b"one"), b"one"),
        (member("set/deep/two.bin", b"two"), b"two"),
    )
    into = try_out(packed, tmp_path)

    assert (into / "set/one.bin").read_bytes() == b"one"
    assert (into / "set/deep/two.bin").read_bytes() == b"two"


@pytest.mark.parametrize("name", ["../evil", "set/../../evil", "a/./../../evil"])
def test_a_path_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    assert "outside the destination" in complaint(
        tar_gz((member(name, b"evil"), b"evil")), tmp_path
    )


def test_an_absolute_path_leaves_its_target_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    into = try_out(tar_gz((member(str(victim), b"evil"), b"evil")), tmp_path)

    assert victim.read_bytes() == b"mine"
    assert (into / str(victim).removeprefix("/")).read_bytes() == b"evil"


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE]
)
def test_whatever_is_no_plain_file_is_refused(kind: bytes, tmp_path: Path) -> None:
    header = member("set/thing", kind=kind)
    header.linkname = "/etc/passwd"

    assert "'set/thing' is " in complaint(tar_gz((header, b"")), tmp_path)


def test_a_file_behind_a_link_is_never_written(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = member("set/door", kind=tarfile.SYMTYPE)
    link.linkname = str(outside)
    complaint(tar_gz((link, b""), (member("set/door/evil", b"evil"), b"evil")), tmp_path)

    assert list(outside.iterdir()) == []


def test_what_is_no_archive_is_called_damaged(tmp_path: Path) -> None:
    for number, packed in enumerate((b"", b"<html></html>", gzip.compress(b"no tar" * 999))):
        folder = tmp_path / str(number)
        folder.mkdir()

        assert "damaged, or no .tar.gz" in complaint(packed, folder)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_cut_archive_is_called_damaged(share: float, tmp_path: Path) -> None:
    content = bytes(number * number % 251 for number in range(100_000))
    packed = tar_gz((member("set/one", content), content))

    assert "damaged" in complaint(packed[: int(len(packed) * share)], tmp_path)
