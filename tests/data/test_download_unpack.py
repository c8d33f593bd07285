"""Archives that mean harm: refused, and nothing outside the folder is touched."""

import gzip
import tarfile
from pathlib import Path

import pytest
from cifar_files import member, tar_gz

from convoy.data.download import unpack
from convoy.errors import DataError

MOST = 2**20


def try_out(packed: bytes, folder: Path) -> Path:
    """Unpack with a limit of one MiB into `folder`/into."""
    archive = folder / "set.tar.gz"
    archive.write_bytes(packed)
    unpack(archive, folder / "into", MOST)
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


@pytest.mark.parametrize(
    "name",
    ["../evil", "set/../../evil", "/evil", "//evil", "..", "set\\..\\evil", "a/./../../evil"],
)
def test_a_path_that_leads_out_is_refused(name: str, tmp_path: Path) -> None:
    said = complaint(tar_gz((member(name, b"evil"), b"evil")), tmp_path)

    assert f"{name!r} leads out of the folder" in said


def test_an_absolute_path_leaves_its_target_alone(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    complaint(tar_gz((member(str(victim), b"evil"), b"evil")), tmp_path)

    assert victim.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "kind",
    [
        *(tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE),
        *(tarfile.BLKTYPE, tarfile.CONTTYPE),
    ],
)
def test_whatever_is_no_plain_file_is_refused(kind: bytes, tmp_path: Path) -> None:
    header = member("set/thing", kind=kind)
    header.linkname = "/etc/passwd"
    said = complaint(tar_gz((header, b"")), tmp_path)

    assert "'set/thing' is a link or another special file" in said


def test_a_file_behind_a_link_is_never_written(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = member("set/door", kind=tarfile.SYMTYPE)
    link.linkname = str(outside)
    complaint(tar_gz((link, b""), (member("set/door/evil", b"evil"), b"evil")), tmp_path)

    assert list(outside.iterdir()) == []


def test_a_huge_file_of_zeros_is_refused_by_its_header(tmp_path: Path) -> None:
    header = member("set/zeros")
    header.size = 10 * 2**30
    packed = gzip.compress(header.tobuf() + bytes(2**16))
    said = complaint(packed, tmp_path)

    assert len(packed) < 10_000
    assert f"has {10 * 2**30} bytes, {MOST} are allowed in all" in said


def test_many_files_of_zeros_stop_at_the_limit(tmp_path: Path) -> None:
    zeros = bytes(MOST // 4)
    packed = tar_gz(*((member(f"set/{number}", zeros), zeros) for number in range(40)))
    said = complaint(packed, tmp_path)
    written = sum(path.stat().st_size for path in (tmp_path / "into").rglob("*") if path.is_file())

    assert f"more than the {MOST} bytes allowed" in said
    assert written <= MOST


def test_a_huge_header_stops_at_the_limit(tmp_path: Path) -> None:
    header = member("set/named", b"")
    header.pax_headers = {"comment": "x" * (4 * MOST)}

    assert f"more than the {MOST} bytes allowed" in complaint(tar_gz((header, b"")), tmp_path)


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    said = complaint(tar_gz(*((member(f"set/{n}"), b"") for n in range(65))), tmp_path)

    assert "more than 64 members" in said


def test_a_name_that_no_file_system_takes_is_refused(tmp_path: Path) -> None:
    assert "a name of 300 characters" in complaint(tar_gz((member("n" * 300), b"")), tmp_path)


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("a", "a/b"), ("a/b", "a")])
def test_two_members_in_one_place_are_refused(first: str, second: str, tmp_path: Path) -> None:
    packed = tar_gz((member(first, b"1"), b"1"), (member(second, b"2"), b"2"))

    assert f"two members named {tmp_path / 'into' / 'a'}" in complaint(packed, tmp_path)


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
