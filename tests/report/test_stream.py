"""Writing to a safe stream raises no error, whatever the stream and the text."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from convoy.report.stream import SafeStream

WRITER_SCRIPT = """
import sys
from convoy.report.stream import SafeStream
safe = SafeStream(sys.stdout)
for n in range(2000):
    safe.print(f"line {n} " + "x" * 100)
safe.close()
sys.stderr.write("finished")
"""


def test_printed_text_is_flushed_at_once(tmp_path: Path):
    with (tmp_path / "out").open("w") as stream:
        SafeStream(stream).print("hello")
        content = (tmp_path / "out").read_text()

    assert content == "hello\n"


def is_open(safe: SafeStream) -> bool:
    return safe._stream is not None


def test_without_a_stream_nothing_is_written():
    safe = SafeStream(None)
    safe.print("hello")
    safe.close()

    assert not is_open(safe)
    assert not safe.isatty()


def test_a_closed_stream_is_ignored():
    stream = io.StringIO()
    safe = SafeStream(stream)
    stream.close()
    safe.print("hello")

    assert not is_open(safe)
    assert not safe.isatty()


def test_characters_missing_in_the_encoding_are_replaced():
    content = io.BytesIO()
    safe = SafeStream(io.TextIOWrapper(content, encoding="ascii"))
    safe.print("größe …")

    assert content.getvalue() == b"gr??e ?\n"


def test_nothing_is_written_after_a_broken_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        safe = SafeStream(stream)
        safe.print("hello")
        safe.print("again")

    assert not is_open(safe)


def test_writing_continues_after_a_full_disk():
    with Path("/dev/full").open("w") as stream:
        safe = SafeStream(stream)
        safe.print("hello")
        was_open = is_open(safe)
        safe.close()  # otherwise closing the stream would raise

    assert was_open


@pytest.mark.processes
@pytest.mark.parametrize("out", ["| head -c 10 >/dev/null", ">&-", ">/dev/full"])
def test_a_broken_stdout_does_not_change_the_exit_code(out: str):
    command = f'set -o pipefail; "$0" -c "$1" {out}'
    process = subprocess.run(
        ["bash", "-c", command, sys.executable, WRITER_SCRIPT],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (process.returncode, process.stderr) == (0, "finished")
