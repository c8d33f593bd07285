"""How long convoy takes to answer: help, tables and plans, beside a Python that does nothing.

Every command is a process of its own. A round runs all of them once, in another order each time;
the first round fills the caches of compiled files and is not counted.
"""

import argparse
import os
import random
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

from interleaved import median_with_interval, options_of

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))
from support.readme_commands import ROWS  # noqa: E402 - it lies elsewhere

HELP, PLAN = 0.3, 0.5  # seconds that an answer may take
# One line of them names no program.
LONGEST = max((row.line for row in ROWS if row.program.endswith(".py")), key=len)


@dataclass(frozen=True)
class Command:
    """Words behind `convoy`, what to call them, and the seconds they may take."""

    name: str
    words: tuple[str, ...]
    limit: float

    @property
    def line(self) -> list[str]:
        return [sys.executable, "-m", "convoy", *self.words]


def _plan_of(config: str) -> Command:
    return Command(f"plan --config {config}", ("plan", "--config", config), PLAN)


COMMANDS = (
    Command("--help", ("--help",), HELP),
    Command("train --help", ("train", "--help"), HELP),
    Command("options", ("options",), PLAN),
    Command("configs", ("configs",), PLAN),
    _plan_of("mk2_resnet50_mlperf_pod256_lars"),
    _plan_of("mk2_efficientnet_b4_g16_256ipus"),
    Command(
        "run --dry-run -- (longest command of the READMEs)",
        ("run", "--dry-run", "--", *shlex.split(LONGEST)),
        PLAN,
    ),
)
NOTHING = "python -c pass"


@dataclass
class Times:
    """What the rounds gave for one command."""

    wall: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)

    def add(self, wall: float, processor: float) -> None:
        self.wall.append(wall)
        self.processor.append(processor)


def measure(line: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall and processor seconds of one process."""
    began = perf_counter()
    with subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, cwd=ROOT
    ) as started:
        _, status, used = os.wait4(started.pid, 0)
        seconds = perf_counter() - began
        started.returncode = os.waitstatus_to_exitcode(status)
        if started.returncode != 0:
            assert started.stderr is not None
            sys.exit(f"{shlex.join(line)}: {started.stderr.read().decode()}")
    return seconds, used.ru_utime + used.ru_stime


def surroundings(caches: str) -> dict[str, str]:
    """Compiled files are kept, as they are for a user, and away from the sources."""
    own = {"PYTHONPYCACHEPREFIX": caches, "PYTHONPATH": str(ROOT), "DATA_DIR": "DATA"}
    kept = {name: one for name, one in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | own


def run_rounds(rounds: int) -> dict[str, Times]:
    lines = {NOTHING: [sys.executable, "-c", "pass"]}
    lines |= {command.name: command.line for command in COMMANDS}
    times = {name: Times() for name in lines}
    chance = random.Random(0)
    with TemporaryDirectory() as caches:
        environment = surroundings(caches)
        for done in range(rounds + 1):
            for name in chance.sample(list(lines), len(lines)):
                wall, processor = measure(lines[name], environment)
                if done:
                    times[name].add(wall, processor)
    return times


def _seconds(values: list[float]) -> str:
    middle, low, high = median_with_interval(values)
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def tell(times: dict[str, Times]) -> None:
    limits = {command.name: command.limit for command in COMMANDS}
    print("| command | wall seconds | processor seconds | limit |")
    print("|---|---|---|---|")
    for name, one in times.items():
        limit = limits.get(name)
        verdict = "" if limit is None or median(one.wall) <= limit else ", above it"
        shown = "–" if limit is None else f"{limit:g}{verdict}"
        print(f"| `{name}` | {_seconds(one.wall)} | {_seconds(one.processor)} | {shown} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = options_of(parser, {"rounds": 1})
    before = os.getloadavg()[0]
    times = run_rounds(options.rounds)
    tell(times)
    print(
        f"{options.rounds} rounds, {os.cpu_count()} cores, Python {sys.version.split()[0]}, "
        f"load {before:.1f} before and {os.getloadavg()[0]:.1f} after"
    )


if __name__ == "__main__":
    main()
