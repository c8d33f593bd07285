"""convoy data verify: output and exit codes."""

import json
import signal
from pathlib import Path

import pytest
from support.run_convoy import Process, SlowFileOperations, convoy, wait_until
from support.small_photos import converted, write_photos

from convoy.errors import ExitCode


def test_valid_data_exits_with_0_and_one_line_per_split(tmp_path: Path) -> None:
    result = convoy("data", "verify", write_photos(tmp_path / "photos"))

    assert result.code == 0
    assert [line.partition(",")[0] for line in result.out.splitlines()] == [
        "train: 12 records in 12 files",
        "validation: 3 records in 3 files",
    ]


def test_every_invalid_record_is_listed_with_exit_code_3(tmp_path: Path) -> None:
    data = converted(write_photos(tmp_path / "photos"), tmp_path / "to", "tfrecord")
    for number in (0, 2):
        path = data / f"train-{number:05}-of-00004"
        raw = bytearray(path.read_bytes())
        raw[50] ^= 1
        path.write_bytes(raw)
    result = convoy("data", "verify", data)
    lines = result.out.splitlines()

    assert result.code == ExitCode.DATA
    assert [line.startswith(f"{data}/train-") for line in lines[:-2]] == [True] * 4
    assert lines[2] == (
        f"{data}/train-00000-of-00004: byte 0, record 0: the checksum of its bytes is wrong"
    )
    assert lines[-2].endswith("2 bad records and 2 other problems")


def test_the_result_is_one_json_object_on_request(tmp_path: Path) -> None:
    data = write_photos(tmp_path / "photos")
    (data / "train" / "n01" / "n01_train_0.JPEG").write_bytes(b"?")
    result = convoy("data", "verify", data, "--json", "--split=train")
    verification = json.loads(result.out)

    assert result.code == ExitCode.DATA
    assert verification["good"] is False
    assert verification["splits"].keys() == {"train"}
    assert verification["splits"]["train"]["records"] == 12
    assert [record["offset"] for record in verification["splits"]["train"]["bad"]] == [None]


def test_without_decoding_only_headers_are_checked(tmp_path: Path) -> None:
    data = write_photos(tmp_path / "photos")
    path = data / "train" / "n01" / "n01_train_0.JPEG"
    path.write_bytes(path.read_bytes()[:-300])

    assert convoy("data", "verify", data).code == ExitCode.DATA
    assert convoy("data", "verify", data, "--no-decode").code == 0


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    assert convoy("data", "verify", tmp_path, "--workers=0").code == ExitCode.CONFIG
    assert convoy("data", "verify", tmp_path / "nowhere").code == ExitCode.CONFIG


@pytest.mark.processes
def test_an_interrupt_exits_with_130_and_no_traceback(tmp_path: Path) -> None:
    data = write_photos(tmp_path / "photos", {"a": 1500, "b": 1500})
    line = ["data", "verify", data, "--workers=2", "--debug"]
    process = Process(line, tmp_path, slowed=SlowFileOperations("open", ".JPEG", num_fast=1500))
    wait_until(lambda: "reading: " in _error_output(tmp_path) or not process.alive)
    process.send(signal.SIGINT)
    result = process.wait()

    assert result.code == ExitCode.INTERRUPTED
    assert "Traceback" not in result.err


def _error_output(folder: Path) -> str:
    path = folder / "err.txt"
    return path.read_text() if path.exists() else ""
