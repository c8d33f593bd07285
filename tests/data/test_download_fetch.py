"""Fetching a dataset: new, resumed, from a manual download, and every kind of failure."""

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
from support.cifar_files import describe, member, pack, tar_gz, write_cifar10
from support.file_server import cut, ranged, serving, status

from convoy.data.download import ARCHIVES, Archive, fetch, missing_or_changed_files
from convoy.data.sources.cifar import CIFAR10, CIFAR100, CifarFormat, open_cifar
from convoy.errors import BusyError, ConfigError, DataError, ExitCode, StorageError


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("convoy.data.download.RETRY_PAUSES", (0.0,))


@pytest.fixture
def cifar_folder(tmp_path: Path) -> Path:
    """A complete dataset, outside of the target folder."""
    return write_cifar10(tmp_path / "original")


@pytest.fixture
def packed(cifar_folder: Path) -> bytes:
    return pack(cifar_folder)


@pytest.fixture
def target_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def fetch_archive(archive: Archive, target_folder: Path) -> Path:
    return fetch(archive, target_folder, lambda *_: None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def unreachable_archive(packed: bytes, cifar_folder: Path) -> Archive:
    """An archive that cannot be downloaded, so that any attempt fails."""
    return describe(packed, cifar_folder, "http://data.invalid/set.tar.gz")


def test_a_dataset_is_fetched_into_a_new_folder(
    cifar_folder: Path, packed: bytes, tmp_path: Path
) -> None:
    target_folder = tmp_path / "new" / "folder"
    with serving(ranged(packed)) as server:
        folder = fetch_archive(describe(packed, cifar_folder, server.url), target_folder)

    assert folder == target_folder / "cifar-10-batches-bin"
    assert names(target_folder) == ["cifar-10-batches-bin"]
    assert len(open_cifar(CIFAR10, target_folder, "train")) == 100


def test_a_partial_download_is_resumed(
    cifar_folder: Path, packed: bytes, target_folder: Path
) -> None:
    with serving(cut(packed, 5000), status(404), ranged(packed)) as server:
        archive = describe(packed, cifar_folder, server.url)
        with pytest.raises(DataError, match="404"):
            fetch_archive(archive, target_folder)
        left_files = names(target_folder)
        fetch_archive(archive, target_folder)

    assert left_files == ["set.tar.gz.part"]
    assert [requested for _, requested in server.requests] == [None, "bytes=5000-", "bytes=5000-"]
    assert names(target_folder) == ["cifar-10-batches-bin"]


def test_a_complete_folder_is_left_unchanged(cifar_folder: Path, packed: bytes) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in cifar_folder.iterdir()}

    assert (
        fetch_archive(unreachable_archive(packed, cifar_folder), cifar_folder.parent)
        == cifar_folder
    )
    assert fetch_archive(unreachable_archive(packed, cifar_folder), cifar_folder) == cifar_folder
    assert {path.name: path.stat().st_mtime_ns for path in cifar_folder.iterdir()} == before


def test_an_incomplete_folder_is_completed_and_keeps_other_files(
    cifar_folder: Path, packed: bytes, target_folder: Path
) -> None:
    folder = target_folder / cifar_folder.name
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "data_batch_1.bin").write_bytes(b"cut short")
    with serving(ranged(packed)) as server:
        fetch_archive(describe(packed, cifar_folder, server.url), target_folder)

    assert (folder / "notes.txt").read_text() == "mine"
    assert missing_or_changed_files(describe(packed, cifar_folder, ""), folder) == []


def test_missing_truncated_and_changed_files_are_listed(cifar_folder: Path, packed: bytes) -> None:
    archive = describe(packed, cifar_folder, "")
    size = (cifar_folder / "data_batch_3.bin").stat().st_size
    (cifar_folder / "data_batch_1.bin").unlink()
    os.truncate(cifar_folder / "data_batch_2.bin", 10)
    (cifar_folder / "data_batch_3.bin").write_bytes(bytes(size))
    found = sorted(missing_or_changed_files(archive, cifar_folder))

    assert found[0] == "data_batch_1.bin is missing"
    assert found[1] == f"data_batch_2.bin has 10 bytes, not {size}"
    assert found[2].startswith("data_batch_3.bin has the MD5 ")
    assert len(found) == 3


def test_a_manually_downloaded_archive_is_used_and_kept(
    cifar_folder: Path, packed: bytes, target_folder: Path
) -> None:
    (target_folder / "set.tar.gz").write_bytes(packed)
    fetch_archive(unreachable_archive(packed, cifar_folder), target_folder)

    assert names(target_folder) == ["cifar-10-batches-bin", "set.tar.gz"]


def test_a_wrong_manually_downloaded_archive_is_refused_and_kept(
    cifar_folder: Path, packed: bytes, target_folder: Path
) -> None:
    (target_folder / "set.tar.gz").write_bytes(b"wrong")
    with pytest.raises(DataError, match="to download it"):
        fetch_archive(unreachable_archive(packed, cifar_folder), target_folder)

    assert (target_folder / "set.tar.gz").read_bytes() == b"wrong"


def test_a_wrong_checksum_is_reported_with_the_expected_checksum(
    cifar_folder: Path, packed: bytes, target_folder: Path
) -> None:
    changed = packed[:-1] + bytes([packed[-1] ^ 1])
    with serving(ranged(changed)) as server, pytest.raises(DataError) as caught:
        fetch_archive(describe(packed, cifar_folder, server.url), target_folder)
    message = str(caught.value)

    assert all(hashlib.md5(raw).hexdigest() in message for raw in (changed, packed))
    assert names(target_folder) == []
    assert len(server.requests) == 1


def test_a_partial_file_of_another_archive_is_downloaded_again_once(
    cifar_folder: Path, packed: bytes, target_folder: Path
) -> None:
    (target_folder / "set.tar.gz.part").write_bytes(b"x" * 5000)
    with serving(ranged(packed)) as server:
        fetch_archive(describe(packed, cifar_folder, server.url), target_folder)

    assert [requested for _, requested in server.requests] == ["bytes=5000-", None]
    assert len(open_cifar(CIFAR10, target_folder, "validation")) == 20


def test_an_archive_with_a_path_outside_leaves_nothing(
    cifar_folder: Path, target_folder: Path
) -> None:
    evil = tar_gz((member("../../evil", b"evil"), b"evil"))
    with serving(ranged(evil)) as server, pytest.raises(DataError, match="outside the destination"):
        fetch_archive(describe(evil, cifar_folder, server.url), target_folder)

    assert names(target_folder) == ["set.tar.gz.part"]
    assert not list(target_folder.parent.rglob("evil"))


def test_an_archive_without_an_expected_file_leaves_nothing(
    cifar_folder: Path, packed: bytes, target_folder: Path
) -> None:
    with serving(ranged(packed)) as server:
        archive = describe(packed, cifar_folder, server.url)
        more = replace(archive, files={**archive.files, "more.bin": (3, None)})
        with pytest.raises(DataError, match=r"more\.bin is missing"):
            fetch_archive(more, target_folder)

    assert not (target_folder / cifar_folder.name).exists()


def test_leftovers_of_a_killed_run_are_removed(
    cifar_folder: Path, packed: bytes, target_folder: Path
) -> None:
    scratch = target_folder / ".cifar-10-batches-bin.unpacking"
    scratch.mkdir()
    (scratch / "half").write_bytes(b"half")
    (target_folder / "set.tar.gz.part").write_bytes(packed)
    fetch_archive(unreachable_archive(packed, cifar_folder), target_folder)

    assert names(target_folder) == ["cifar-10-batches-bin"]


def test_insufficient_space_is_detected_before_the_download(
    cifar_folder: Path, packed: bytes, target_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.files.free_bytes", lambda _: 1000)
    archive = unreachable_archive(packed, cifar_folder)
    with pytest.raises(StorageError) as caught:
        fetch_archive(archive, target_folder)
    needed = archive.bytes + 6 * 20 * 3073

    assert f"{needed:,} bytes needed, 1,000 bytes free" in str(caught.value)
    assert "--data-dir" in str(caught.value)
    assert caught.value.code == ExitCode.STORAGE


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Limit the size of files that this process can write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("is_downloaded", [False, True])
def test_a_full_disk_is_a_storage_error_with_needed_and_free_bytes(
    is_downloaded: bool, cifar_folder: Path, packed: bytes, target_folder: Path
) -> None:
    if is_downloaded:
        (target_folder / "set.tar.gz.part").write_bytes(packed)
    with serving(ranged(packed)) as server:
        archive = describe(packed, cifar_folder, server.url)
        with file_size_limit(20_000), pytest.raises(StorageError) as caught:
            fetch_archive(archive, target_folder)
    message = str(caught.value)

    assert f"{archive.bytes + 6 * 20 * 3073:,} bytes needed, " in message
    assert " bytes free; " in message
    assert names(target_folder) == ["set.tar.gz.part"]


def test_a_folder_that_cannot_be_created_is_a_storage_error(
    cifar_folder: Path, packed: bytes
) -> None:
    with pytest.raises(StorageError, match="--data-dir"):
        fetch_archive(unreachable_archive(packed, cifar_folder), Path("/sys/convoy-data"))


def test_a_file_in_place_of_the_folder_is_a_config_error(
    cifar_folder: Path, packed: bytes, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--data-dir"):
        fetch_archive(unreachable_archive(packed, cifar_folder), tmp_path / "file")


@pytest.mark.parametrize("name", ["set.tar.gz", "set.tar.gz.part"])
def test_a_pipe_in_place_of_the_archive_is_refused_without_blocking(
    name: str, cifar_folder: Path, packed: bytes, target_folder: Path
) -> None:
    os.mkfifo(target_folder / name)
    with pytest.raises(StorageError, match=f"{name}: not a regular file"):
        fetch_archive(unreachable_archive(packed, cifar_folder), target_folder)


def test_concurrent_fetches_into_one_folder_are_refused(
    cifar_folder: Path, packed: bytes, target_folder: Path
) -> None:
    handle = os.open(target_folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        with pytest.raises(BusyError, match="another download"):
            fetch_archive(unreachable_archive(packed, cifar_folder), target_folder)
    finally:
        os.close(handle)


def test_an_unknown_name_is_refused_with_near_names() -> None:
    with pytest.raises(ConfigError, match="did you mean cifar10"):
        ARCHIVES["cifar-10"]


@pytest.mark.parametrize("layout", [CIFAR10, CIFAR100])
def test_the_official_archives_contain_the_files_that_are_read(layout: CifarFormat) -> None:
    archive = ARCHIVES[layout.name]

    assert set(archive.files) == {name for files in layout.files.values() for name in files}
    assert archive.folder == layout.folder
    assert archive.unpacked_bytes == 60_000 * layout.record_bytes


def test_files_without_a_published_checksum_are_accepted(cifar_folder: Path) -> None:
    sizes = {path.name: (path.stat().st_size, None) for path in cifar_folder.iterdir()}

    assert (
        missing_or_changed_files(Archive("", 0, "", cifar_folder.name, sizes), cifar_folder) == []
    )


def test_fetched_pixels_match_the_archive(
    cifar_folder: Path, packed: bytes, target_folder: Path
) -> None:
    with serving(ranged(packed)) as server:
        folder = fetch_archive(describe(packed, cifar_folder, server.url), target_folder)
    ids = np.arange(20)
    original, fetched = (
        open_cifar(CIFAR10, cifar_folder, "validation"),
        open_cifar(CIFAR10, folder, "validation"),
    )

    assert np.array_equal(original.pixels(ids), fetched.pixels(ids))
