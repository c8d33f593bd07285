"""The live display on a pseudo-terminal: values, width, cursor, and a closed terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path

import pytest

RUN_SCRIPT = """
import sys
from convoy.events import Averaged, Began, Ended, Noticed, Reported, Saved, Updated, Validated
from convoy.report.live import LiveProgress
now = 0.0
progress = LiveProgress(sys.stdout, lambda: now)
progress.write(Began(0, 1250, 250, 64))
for update in range(1, 321):
    now += 0.02
    progress.write(Updated(update, 0.0775))
    progress.write(Reported(update, update / 250, 0.412, 0.861, 0.0905, 412.0, 1.0))
    if update == 250:
        progress.write(Validated(update, 1.0, 0.842, 0.99, 0.501, 100, 1.0, 100.0))
        progress.write(Saved(update, "runs/x/update-250", 0.1))
        progress.write(Noticed("skip", "a [bold]bad[/bold] \\x1b[31mrecord", update))
        progress.write(Averaged(update, "runs/x/averaged", "mean", 2, "ab"))
        {extra}
{end}
"""
END_SCRIPT = """
progress.write(Ended(320, "preempted"))
progress.close()
"""
SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\r|\n|[^\x1b\r\n]+")


@dataclass(frozen=True)
class Screen:
    """The output of a process on its terminal, and its exit code."""

    output: str
    code: int

    @property
    def texts(self) -> list[str]:
        """All rows that were drawn, of every frame."""
        uncolored = re.sub(r"\x1b\[[0-9;]*m", "", self.output)
        return [text.rstrip() for text in re.split(r"\x1b\[[0-9;?]*[A-Z]|\r|\n", uncolored)]

    @property
    def rows(self) -> list[str]:
        """The final rows of a terminal that supports line breaks, cursor up and erase line."""
        rows, row, column = [""], 0, 0
        for sequence in SEQUENCE.finditer(self.output):
            if sequence[0] == "\r":
                column = 0
            elif sequence[0] == "\n":
                row += 1
                rows += [""] * (row == len(rows))
            elif sequence[2] == "A":
                row -= int(sequence[1])
            elif sequence[2] == "K":
                rows[row] = ""
            elif sequence[2] is None:
                rows[row] = rows[row][:column].ljust(column) + sequence[0]
                column += len(sequence[0])
        return [text.rstrip() for text in rows]


def resize(terminal: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def run_in_terminal(
    extra: str = "pass", end: str = END_SCRIPT, columns: int = 100, **environment: str
) -> Screen:
    """Run the script with all three streams on a new terminal."""
    controller, terminal = pty.openpty()
    resize(controller, columns)
    script = RUN_SCRIPT.replace("{extra}", extra).replace("{end}", end)
    inherited = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**inherited, "TERM": "xterm-256color", **environment},
    )
    os.close(terminal)
    output = b""
    while chunk := read_chunk(controller):
        output += chunk
    os.close(controller)
    return Screen(output.decode(), process.wait())


def read_chunk(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux raises EIO when the last writer has closed
        return b""


pytestmark = pytest.mark.processes


def test_the_final_screen_is_one_frame_with_every_value():
    screen = run_in_terminal("print('a print'); sys.stderr.write('a warning\\n')")

    assert screen.code == 0
    assert re.fullmatch(r"epoch 2/5  [━╸╺]+  320/1250  25 %  ETA 1:12", screen.rows[5])
    assert [*screen.rows[:5], *screen.rows[6:]] == [
        "starting 1250 updates of 64 images, 250 updates per epoch",
        "notice  a [bold]bad[/bold] \\x1b[31mrecord (update 250)",
        "average  runs/x/averaged  mean of 2 checkpoints",
        "a print",
        "a warning",
        "loss 0.412  accuracy 86.1 %  lr 0.0905  412 images/s",
        "validation  update 250  top-1 84.2 %  top-5 99.0 %  loss 0.501",
        "stopped after update 320: preempted",
        "",
    ]


def test_the_cursor_is_hidden_once_and_restored():
    output = run_in_terminal().output

    assert output.count("\x1b[?25l") == 1
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")


def test_the_cursor_is_restored_after_a_crash():
    screen = run_in_terminal(end="raise SystemExit(3)")

    assert screen.code == 3
    assert screen.output.rindex("\x1b[?25h") > screen.output.rindex("\x1b[?25l")


def test_the_frame_rate_is_limited():
    frames = run_in_terminal().output.count("epoch ")

    assert 40 < frames < 72  # ten per second for 6.4 s, and one for each event


def test_control_characters_in_events_do_not_reach_the_terminal():
    assert "\x1b[31m" not in run_in_terminal().output


@pytest.mark.parametrize("columns", [20, 40, 78, 300])
def test_no_line_is_wider_than_the_terminal_or_the_maximum_width(columns: int):
    texts = run_in_terminal(columns=columns).texts
    frames = [text for text in texts if text.startswith(("epoch", "loss", "validation"))]

    assert frames
    assert max(map(len, frames)) <= min(columns, 78)


def test_a_smaller_window_gets_a_smaller_frame():
    shrink = (
        "import fcntl, struct, termios;"
        "fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack('HHHH', 24, 50, 0, 0))"
    )
    screen = run_in_terminal(shrink)
    frames = [text for text in screen.texts if text.startswith("epoch")]

    assert screen.code == 0
    assert len(frames[0]) > 50
    assert len(frames[-1]) <= 50


def test_no_color_disables_colors():
    colored, plain = run_in_terminal().output, run_in_terminal(NO_COLOR="1").output

    assert "\x1b[38;5;" in colored
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", plain)


def test_a_closed_terminal_does_not_end_the_run(tmp_path: Path):
    controller, terminal = pty.openpty()
    script = RUN_SCRIPT.replace("{extra}", "input()").replace("{end}", END_SCRIPT)
    script += f"\nopen({str(tmp_path / 'end')!r}, 'w').write('reached')"
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=terminal,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(terminal)
    os.read(controller, 1)
    os.close(controller)
    process.communicate(b"\n")

    assert process.returncode == 0
    assert (tmp_path / "end").read_text() == "reached"
