"""A voice never hurts: not without a stream, not with a broken one, not with odd letters."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from convoy.report.voice import Voice, one_line

TALKER = """
import sys
from convoy.report.voice import Voice
voice = Voice(sys.stdout)
for n in range(2000):
    voice.say(f"line {n} " + "x" * 100)
voice.close()
sys.stderr.write("survived")
"""


def test_what_is_said_is_there_at_once(tmp_path: Path):
    with (tmp_path / "out").open("w") as stream:
        Voice(stream).say("hello")
        seen = (tmp_path / "out").read_text()

    assert seen == "hello\n"


def test_without_a_stream_it_is_silent():
    voice = Voice(None)
    voice.say("hello")
    voice.close()

    assert not voice.heard
    assert not voice.isatty()


def test_a_closed_stream_silences_it():
    stream = io.StringIO()
    voice = Voice(stream)
    stream.close()
    voice.say("hello")

    assert not voice.heard
    assert not voice.isatty()


def test_letters_that_the_stream_cannot_spell_are_replaced():
    content = io.BytesIO()
    voice = Voice(io.TextIOWrapper(content, encoding="ascii"))
    voice.say("größe …")

    assert content.getvalue() == b"gr??e ?\n"


def test_a_broken_pipe_silences_it():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        voice = Voice(stream)
        voice.say("hello")
        voice.say("again")

    assert not voice.heard


def test_a_full_disk_is_no_reason_to_fall_silent():
    with Path("/dev/full").open("w") as stream:
        voice = Voice(stream)
        voice.say("hello")
        heard = voice.heard
        voice.close()  # from here on nothing may fail when the stream is closed

    assert heard


@pytest.mark.processes
@pytest.mark.parametrize("out", ["| head -c 10 >/dev/null", ">&-", ">/dev/full"])
def test_a_program_whose_stdout_breaks_ends_well(out: str):
    command = f'set -o pipefail; "$0" -c "$1" {out}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, TALKER], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "survived")


def test_one_line_has_neither_breaks_nor_controls():
    assert one_line("a\nb\tc\x1b[0m é…") == "a\\nb\\tc\\x1b[0m é…"
