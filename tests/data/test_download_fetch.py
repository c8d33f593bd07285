"""Fetching a data set: from nothing, from a part, from a hand-made copy, and what can go wrong."""

import fcntl
import hashlib
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cifar_files import describe, member, pack, tar_gz, write_cifar10
from file_server import cut, ranged, serving, status

from convoy.data.download import ARCHIVES, Archive, ListedFile, differences, fetch
from convoy.data.sources.cifar import CIFAR10, CIFAR100, CifarFormat, cifar10
from convoy.errors import BusyError, ConfigError, DataError, ExitCode, StorageError


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("convoy.data.download.RETRY_PAUSES", (0.0,))


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A right folder, far from the place to fetch into."""
    return write_cifar10(tmp_path / "made")


@pytest.fixture
def packed(made: Path) -> bytes:
    return pack(made)


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def bring(archive: Archive, into: Path) -> Path:
    return fetch("cifar10", into, archive=archive, on_progress=lambda *_: None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def nowhere(packed: bytes, made: Path) -> Archive:
    """An archive that cannot be downloaded, so that any try to do so is seen."""
    return describe(packed, made, "http://data.invalid/set.tar.gz")


def test_a_data_set_comes_from_nothing(made: Path, packed: bytes, tmp_path: Path) -> None:
    into = tmp_path / "new" / "folder"
    with serving(ranged(packed)) as server:
        home = bring(describe(packed, made, server.url), into)

    assert home == into / "cifar-10-batches-bin"
    assert names(into) == ["cifar-10-batches-bin"]
    assert len(cifar10(into, "train")) == 100


def test_a_part_is_gone_on_with(made: Path, packed: bytes, into: Path) -> None:
    with serving(cut(packed, 5000), status(404), ranged(packed)) as server:
        archive = describe(packed, made, server.url)
        with pytest.raises(DataError, match="404"):
            bring(archive, into)
        left = names(into)
        bring(archive, into)

    assert left == ["set.tar.gz.part"]
    assert [asked for _, asked in server.asked] == [None, "bytes=5000-", "bytes=5000-"]
    assert names(into) == ["cifar-10-batches-bin"]


def test_a_complete_folder_is_left_as_it_is(made: Path, packed: bytes) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in made.iterdir()}

    assert bring(nowhere(packed, made), made.parent) == made
    assert bring(nowhere(packed, made), made) == made
    assert {path.name: path.stat().st_mtime_ns for path in made.iterdir()} == before


def test_an_incomplete_folder_is_mended_and_keeps_the_rest(
    made: Path, packed: bytes, into: Path
) -> None:
    home = into / made.name
    home.mkdir()
    (home / "notes.txt").write_text("mine")
    (home / "data_batch_1.bin").write_bytes(b"cut short")
    with serving(ranged(packed)) as server:
        bring(describe(packed, made, server.url), into)

    assert (home / "notes.txt").read_text() == "mine"
    assert differences(describe(packed, made, ""), home) == []


def test_differences_name_what_is_missing_short_and_changed(made: Path, packed: bytes) -> None:
    archive = describe(packed, made, "")
    size = (made / "data_batch_3.bin").stat().st_size
    (made / "data_batch_1.bin").unlink()
    os.truncate(made / "data_batch_2.bin", 10)
    (made / "data_batch_3.bin").write_bytes(bytes(size))
    found = sorted(differences(archive, made))

    assert found[0] == "data_batch_1.bin is missing"
    assert found[1] == f"data_batch_2.bin has 10 bytes, not {size}"
    assert found[2].startswith("data_batch_3.bin has the MD5 ")
    assert len(found) == 3


def test_an_archive_put_there_by_hand_is_used_and_kept(
    made: Path, packed: bytes, into: Path
) -> None:
    (into / "set.tar.gz").write_bytes(packed)
    bring(nowhere(packed, made), into)

    assert names(into) == ["cifar-10-batches-bin", "set.tar.gz"]


def test_a_wrong_archive_put_there_by_hand_is_named_and_kept(
    made: Path, packed: bytes, into: Path
) -> None:
    (into / "set.tar.gz").write_bytes(b"wrong")
    with pytest.raises(DataError, match="to download it"):
        bring(nowhere(packed, made), into)

    assert (into / "set.tar.gz").read_bytes() == b"wrong"


def test_a_wrong_sum_is_named_with_the_right_one(made: Path, packed: bytes, into: Path) -> None:
    changed = packed[:-1] + bytes([packed[-1] ^ 1])
    with serving(ranged(changed)) as server, pytest.raises(DataError) as caught:
        bring(describe(packed, made, server.url), into)
    said = str(caught.value)

    assert all(hashlib.md5(raw).hexdigest() in said for raw in (changed, packed))
    assert names(into) == []
    assert len(server.asked) == 1


def test_a_part_of_another_file_is_begun_anew_once(made: Path, packed: bytes, into: Path) -> None:
    (into / "set.tar.gz.part").write_bytes(b"x" * 5000)
    with serving(ranged(packed)) as server:
        bring(describe(packed, made, server.url), into)

    assert [asked for _, asked in server.asked] == ["bytes=5000-", None]
    assert len(cifar10(into, "validation")) == 20


def test_an_archive_that_leads_out_leaves_nothing(made: Path, into: Path) -> None:
    evil = tar_gz((member("../../evil", b"evil"), b"evil"))
    with serving(ranged(evil)) as server, pytest.raises(DataError, match="outside the destination"):
        bring(describe(evil, made, server.url), into)

    assert names(into) == ["set.tar.gz.part"]
    assert not list(into.parent.rglob("evil"))


def test_an_archive_that_lacks_a_file_leaves_nothing(made: Path, packed: bytes, into: Path) -> None:
    with serving(ranged(packed)) as server:
        archive = describe(packed, made, server.url)
        more = replace(archive, files={**archive.files, "more.bin": ListedFile(3)})
        with pytest.raises(DataError, match=r"more\.bin is missing"):
            bring(more, into)

    assert not (into / made.name).exists()


def test_what_a_killed_run_left_is_swept_away(made: Path, packed: bytes, into: Path) -> None:
    scratch = into / ".cifar-10-batches-bin.unpacking"
    scratch.mkdir()
    (scratch / "half").write_bytes(b"half")
    (into / "set.tar.gz.part").write_bytes(packed)
    bring(nowhere(packed, made), into)

    assert names(into) == ["cifar-10-batches-bin"]


def test_a_disk_that_is_too_small_is_seen_before_the_download(
    made: Path, packed: bytes, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.files.free_bytes", lambda _: 1000)
    archive = nowhere(packed, made)
    with pytest.raises(StorageError) as caught:
        bring(archive, into)
    needed = archive.bytes + 6 * 20 * 3073

    assert f"{needed:,} bytes needed, 1,000 bytes free" in str(caught.value)
    assert "--data-dir" in str(caught.value)
    assert caught.value.code == ExitCode.STORAGE


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow beyond."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("packed_is_here", [False, True])
def test_a_disk_that_fills_up_ends_in_a_storage_error_with_the_numbers(
    packed_is_here: bool, made: Path, packed: bytes, into: Path
) -> None:
    if packed_is_here:
        (into / "set.tar.gz.part").write_bytes(packed)
    with serving(ranged(packed)) as server:
        archive = describe(packed, made, server.url)
        with files_limited_to(20_000), pytest.raises(StorageError) as caught:
            bring(archive, into)
    said = str(caught.value)

    assert f"{archive.bytes + 6 * 20 * 3073:,} bytes needed, " in said
    assert " bytes free; " in said
    assert names(into) == ["set.tar.gz.part"]


def test_a_place_that_cannot_be_written_is_a_storage_error(made: Path, packed: bytes) -> None:
    with pytest.raises(StorageError, match="--data-dir"):
        bring(nowhere(packed, made), Path("/sys/convoy-data"))


def test_a_file_in_place_of_the_folder_is_a_config_error(
    made: Path, packed: bytes, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--data-dir"):
        bring(nowhere(packed, made), tmp_path / "file")


@pytest.mark.parametrize("name", ["set.tar.gz", "set.tar.gz.part"])
def test_a_pipe_in_the_way_is_refused_and_not_waited_for(
    name: str, made: Path, packed: bytes, into: Path
) -> None:
    os.mkfifo(into / name)
    with pytest.raises(StorageError, match=f"{name}: not a regular file"):
        bring(nowhere(packed, made), into)


def test_two_fetches_at_once_do_not_share_a_folder(made: Path, packed: bytes, into: Path) -> None:
    handle = os.open(into, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        with pytest.raises(BusyError, match="another fetch"):
            bring(nowhere(packed, made), into)
    finally:
        os.close(handle)


def test_an_unknown_name_is_answered_with_near_ones(into: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean cifar10"):
        fetch("cifar-10", into, on_progress=lambda *_: None)


@pytest.mark.parametrize("layout", [CIFAR10, CIFAR100])
def test_the_official_archives_hold_the_files_that_are_read(layout: CifarFormat) -> None:
    archive = ARCHIVES[layout.name]

    assert set(archive.files) == {name for files in layout.files.values() for name in files}
    assert archive.folder == layout.folder
    assert archive.unpacked_bytes == 60_000 * layout.record_bytes


def test_sums_without_a_published_value_are_not_asked_for(made: Path) -> None:
    sizes = {path.name: ListedFile(path.stat().st_size) for path in made.iterdir()}

    assert differences(Archive("", 0, "", made.name, sizes), made) == []


def test_fetched_pixels_are_those_that_were_packed(made: Path, packed: bytes, into: Path) -> None:
    with serving(ranged(packed)) as server:
        home = bring(describe(packed, made, server.url), into)
    ids = np.arange(20)
    original, fetched = cifar10(made, "validation"), cifar10(home, "validation")

    assert np.array_equal(original.pixels(ids), fetched.pixels(ids))
