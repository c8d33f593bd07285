"""docs/faq.md: each command prints the message that follows it on the page."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TINY = "--model resnet8 --samples 64 --micro-batch-size 8 --validation-mode none --threads 1"
SETTINGS = {
    "TINY": f"{TINY} --progress plain",
    "TOOLS": str(ROOT / "tools"),
    "OMP_NUM_THREADS": "1",
}
# What depends on the machine, the time or the CPU type.
VARYING = re.compile(r"[\d.]+ GB are free|[0-9a-f]{12}…|process \d+ on \S+ since [^;]+")
ENTRY = re.compile(r"<!-- message exit=(\d+)\n(.*?)-->\n```text\n(.*?)```", re.S)


@dataclass(frozen=True)
class Entry:
    """An entry of the page: a command in a comment, and the message below it."""

    code: int
    script: str
    message: str


ENTRIES = [
    Entry(int(code), script, message)
    for code, script, message in ENTRY.findall((ROOT / "docs" / "faq.md").read_text())
]


def normalize(message: str) -> list[str]:
    """The lines without varying parts; loader workers report bad records in any order."""
    return sorted(VARYING.sub("*", message).splitlines())


def test_the_page_has_more_than_twenty_messages() -> None:
    assert len(ENTRIES) > 20
    assert all(entry.message.startswith("convoy: ") for entry in ENTRIES)


@pytest.mark.evidence
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: str(entry.message[:60]))
def test_a_command_of_the_page_prints_its_message(entry: Entry, tmp_path: Path) -> None:
    if "mount" in entry.script and os.geteuid() != 0:
        pytest.skip("only root may mount a small disk")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    result = subprocess.run(
        ["bash", "-c", entry.script],
        cwd=tmp_path,
        env={**os.environ, **SETTINGS, "PATH": path},
        capture_output=True,
        text=True,
    )
    errors = [line for line in result.stderr.splitlines() if line.startswith("convoy:")]
    shown = [line.replace(str(tmp_path), "/data") for line in errors]

    assert result.returncode == entry.code, result.stderr
    assert normalize("\n".join(shown)) == normalize(entry.message)
