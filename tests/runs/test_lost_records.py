"""Shards with lost records: reported at startup and counted."""

import json
import os
import shutil
from pathlib import Path

import pytest
from support.photo_files import write_folder
from support.run_convoy import CommandResult, convoy

WORDS = [
    "--model=resnet8",
    "--data=imagenet",
    "--image-size=24",
    "--micro-batch-size=4",
    "--updates=2",
    "--threads=1",
    "--progress=plain",
]


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """24 training photos in two shards, and 6 validation photos in one."""
    root = write_folder(tmp_path / "photos", train=24, validation=6)
    result = convoy(
        "data", "convert", root, tmp_path / "shards", "--to=tfrecord", "--num-files=2,1"
    )

    assert result.code == 0, result.err
    return tmp_path / "shards"


def train(shards: Path, *words: str) -> CommandResult:
    output = shards.parent / "run"
    shutil.rmtree(output, ignore_errors=True)
    return convoy("train", *WORDS, f"--data-dir={shards}", f"--output={output}", *words)


def summary(shards: Path) -> dict[str, object]:
    return json.loads((shards.parent / "run" / "summary.json").read_text())


def test_bad_records_found_at_startup_end_the_run(shards: Path) -> None:
    path = shards / "train-00001-of-00002"
    os.truncate(path, path.stat().st_size // 2)
    result = train(shards)

    assert result.code == 3
    assert str(path) in result.err and "--bad-records skip" in result.err
    assert not (shards.parent / "run").exists()


def test_every_lost_record_counts(shards: Path) -> None:
    path = shards / "train-00001-of-00002"
    os.truncate(path, path.stat().st_size // 2)
    allowed = train(shards, "--bad-records=skip", "--max-bad-records=12")
    lost = int(str(summary(shards)["bad_records"]))
    refused = train(shards, "--bad-records=skip", f"--max-bad-records={lost - 1}")
    plan = json.loads(convoy("plan", *WORDS, f"--data-dir={shards}", "--json").out)

    assert allowed.code == 0, allowed.err
    assert 2 <= lost <= 12
    assert refused.code == 3 and f"{lost} bad records" in refused.err
    assert plan["updates"]["per_epoch"] == 6  # lost records still count as samples


def test_a_shard_truncated_between_two_records_is_detected_by_its_index(
    shards: Path,
) -> None:
    (shards / "convoy-manifest.json").unlink()
    (shards / ".convoy-convert.journal").unlink(missing_ok=True)
    assert train(shards).code == 0
    path = shards / "train-00000-of-00002"
    content = path.read_bytes()
    first = 16 + int.from_bytes(content[:8], "little")
    path.write_bytes(content[:first])
    result = train(shards)

    assert result.code == 3
    assert "1 record, but 12 when it was indexed; restore the shard, or remove" in result.err


def test_verify_compares_tars_with_the_checksums_of_their_index(tmp_path: Path) -> None:
    root = write_folder(tmp_path / "photos", train=12, validation=3)
    tars = tmp_path / "tars"
    assert convoy("data", "convert", root, tars, "--to=webdataset").code == 0
    (tars / "convoy-manifest.json").unlink()
    (tars / ".convoy-convert.journal").unlink(missing_ok=True)
    assert train(tars).code == 0
    path = tars / "train-000000.tar"
    status, content = path.stat(), bytearray(path.read_bytes())
    content[content.index(b"\xff\xd8\xff") + 700] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    result = convoy("data", "verify", tars, "--no-decode")

    assert result.code == 3
    assert "checksum mismatch" in result.out + result.err


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = train(tmp_path / "file")

    assert (result.code, "not a folder" in result.err) == (2, True)


def test_photos_without_a_folder_cannot_be_downloaded() -> None:
    result = convoy("train", *WORDS)

    assert result.code == 2
    assert "to the imagenet folder" in result.err and "fetch" not in result.err
