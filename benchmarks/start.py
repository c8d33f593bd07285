"""Run time of short commands: help, tables and plans, next to an empty Python program.

Every command runs in a new process. Each round runs all commands once, in random order; the first
round fills the cache of compiled files and is not counted.
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

from interleaved import median_with_interval, parse_options

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))
from support.readme_commands import ROWS  # noqa: E402 - needs the path above

HELP, PLAN = 0.3, 0.5  # limits in seconds
# The longest command line of a README that names a program.
LONGEST = max((row.line for row in ROWS if row.program.endswith(".py")), key=len)


@dataclass(frozen=True)
class Command:
    """A command line of convoy, its name in the table, and its limit in seconds."""

    name: str
    words: tuple[str, ...]
    limit: float

    @property
    def line(self) -> list[str]:
        return [sys.executable, "-m", "convoy", *self.words]


def _plan_command(config: str) -> Command:
    return Command(f"plan --config {config}", ("plan", "--config", config), PLAN)


COMMANDS = (
    Command("--help", ("--help",), HELP),
    Command("train --help", ("train", "--help"), HELP),
    Command("options", ("options",), PLAN),
    Command("configs", ("configs",), PLAN),
    _plan_command("mk2_resnet50_mlperf_pod256_lars"),
    _plan_command("mk2_efficientnet_b4_g16_256ipus"),
    Command(
        "run --dry-run -- (longest command of the READMEs)",
        ("run", "--dry-run", "--", *shlex.split(LONGEST)),
        PLAN,
    ),
)
EMPTY_PROGRAM = "python -c pass"


@dataclass
class Times:
    """Seconds of one command, by round."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def add(self, wall: float, cpu: float) -> None:
        self.wall.append(wall)
        self.cpu.append(cpu)


def measure(line: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of one process."""
    start = perf_counter()
    with subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, cwd=ROOT
    ) as process:
        _, status, usage = os.wait4(process.pid, 0)
        seconds = perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            assert process.stderr is not None
            sys.exit(f"{shlex.join(line)}: {process.stderr.read().decode()}")
    return seconds, usage.ru_utime + usage.ru_stime


def command_environment(caches: str) -> dict[str, str]:
    """Cache compiled files, as for a user, but outside the source tree."""
    changes = {"PYTHONPYCACHEPREFIX": caches, "PYTHONPATH": str(ROOT), "DATA_DIR": "DATA"}
    environment = {**os.environ, **changes}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def run_rounds(rounds: int) -> dict[str, Times]:
    lines = {EMPTY_PROGRAM: [sys.executable, "-c", "pass"]}
    lines |= {command.name: command.line for command in COMMANDS}
    times = {name: Times() for name in lines}
    rng = random.Random(0)
    with TemporaryDirectory() as caches:
        environment = command_environment(caches)
        for round_number in range(rounds + 1):
            for name in rng.sample(list(lines), len(lines)):
                wall, cpu = measure(lines[name], environment)
                if round_number > 0:
                    times[name].add(wall, cpu)
    return times


def _seconds(values: list[float]) -> str:
    middle, low, high = median_with_interval(values)
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def print_table(times: dict[str, Times]) -> None:
    limits = {command.name: command.limit for command in COMMANDS}
    print("| command | wall seconds | CPU seconds | limit |")
    print("|---|---|---|---|")
    for name, seconds in times.items():
        limit, cell = limits.get(name), "–"
        if limit is not None:
            cell = f"{limit:g}" + (", exceeded" if median(seconds.wall) > limit else "")
        print(f"| `{name}` | {_seconds(seconds.wall)} | {_seconds(seconds.cpu)} | {cell} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parse_options(parser, {"rounds": 1})
    load_before = os.getloadavg()[0]
    times = run_rounds(options.rounds)
    print_table(times)
    print(
        f"{options.rounds} rounds, {os.cpu_count()} cores, Python {sys.version.split()[0]}, "
        f"load {load_before:.1f} before and {os.getloadavg()[0]:.1f} after"
    )


if __name__ == "__main__":
    main()
