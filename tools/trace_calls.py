"""Count the functions of convoy that run in each phase of a training run.

    python tools/trace_calls.py                       a table of all phases
    python tools/trace_calls.py --list "one update"   the functions of a phase, in order

Trains a tiny network in one process and dry-runs a command line of another program. For each phase
it counts the functions, files and packages entered, all calls, and the calls that enter another
package than the previous call. Comprehensions and lambdas belong to their function; only the main
thread is traced.
"""

import argparse
import re
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stdout
from inspect import CO_OPTIMIZED
from io import StringIO
from itertools import pairwise, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import NamedTuple

import convoy
from convoy.cli.main import main as convoy_main

ROOT = Path(convoy.__file__).parent
START = "command line to first update"
# Pattern of `module:function` for each phase, and which of the matching calls is shown.
UPDATE = r"engine\.trainer:Trainer\._?update"
PHASES = {
    "one update": (UPDATE, 3),  # the first update also loads and allocates
    "a validation": (r"run\.\w+:(\w+\.)?_?(measure|validate)", 1),
    "a checkpoint": (r"run\.\w+:(\w+\.)?_?(save|save_checkpoint)", 1),
}
CALLED_ONCE = r"planning\.\w+:plan_run|config\.\w+:(build_config|resolve)"  # or few times

TRAIN = """train --model=resnet8 --data=shapes --image-size=12 --samples=96 --micro-batch-size=8
    --gradient-accumulation=2 --epoch=2 --lr=0.02 --threads=1 --dataloader-worker=0
    --validation-mode=during --logs-per-epoch=0 --progress=plain"""
DRY_RUN = """run --dry-run -- python train.py --model resnet --model-size 50 --dataset imagenet
    --data-dir DATA --batch-size 8"""
COMMANDS = {"train": TRAIN.split(), "run --dry-run": DRY_RUN.split()}


class Call(NamedTuple):
    """A function or class body of convoy that was entered."""

    name: str  # module:name
    depth: int
    is_function: bool


class Recorder:
    """A profile function that records all calls into convoy."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._depth = 0
        self._names: dict[CodeType, str | None] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if code not in self._names:
            self._names[code] = name_of(code)
        name = self._names[code]
        if name and event == "call":
            self.calls.append(Call(name, self._depth, bool(code.co_flags & CO_OPTIMIZED)))
            self._depth += 1
        elif name and event == "return":
            self._depth -= 1


def name_of(code: CodeType) -> str | None:
    """The name of a function of convoy; None for comprehensions, lambdas and other code."""
    path = Path(code.co_filename)
    if not path.is_relative_to(ROOT) or code.co_name.startswith("<"):
        return None
    return f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}:{code.co_qualname}"


def trace(words: list[str]) -> list[Call]:
    """The calls of one command."""
    recorder, output = Recorder(), StringIO()
    with redirect_stdout(output):
        sys.setprofile(recorder)
        code = convoy_main(words)
        sys.setprofile(None)
    if code != 0:
        sys.exit(f"convoy {' '.join(words)} ended with code {code}\n{output.getvalue()}")
    return recorder.calls


def find(calls: list[Call], pattern: str, number: int) -> list[Call]:
    """The n-th call that matches, with everything that it calls."""
    matches = [index for index, call in enumerate(calls) if re.fullmatch(pattern, call.name)]
    if len(matches) < number:
        sys.exit(f"no call {number} of a function that matches {pattern}; adapt PHASES")
    first, *later = calls[matches[number - 1] :]
    return [first, *takewhile(lambda call: call.depth > first.depth, later)]


def split_into_phases(command: str, calls: list[Call]) -> dict[str, list[Call]]:
    if command != "train":
        return {command: calls}
    first = next(i for i, call in enumerate(calls) if re.fullmatch(UPDATE, call.name))
    return {START: calls[:first]} | {name: find(calls, *phase) for name, phase in PHASES.items()}


def row(phase: str, calls: list[Call]) -> str:
    """A row of the table; class bodies run at import and count as calls, not as functions."""
    functions = {call.name for call in calls if call.is_function}
    modules = {name.partition(":")[0] for name in functions}
    packages = {package_of(name) for name in functions}
    changes = sum(package_of(a.name) != package_of(b.name) for a, b in pairwise(calls))
    counts = (len(functions), len(modules), len(packages), changes, len(calls))
    return f"| {phase} | {' | '.join(map(str, counts))} |"


def package_of(name: str) -> str:
    return re.split("[.:]", name)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("command", nargs="?", choices=COMMANDS)
    parser.add_argument("--list", metavar="PHASE", help="show the functions of this phase")
    options = parser.parse_args()
    if options.command is None:  # a new process for each: imports are executed only once
        arguments = ["--list", options.list] if options.list else []
        for command in COMMANDS:
            subprocess.run([sys.executable, __file__, command, *arguments], check=True)
        return
    with TemporaryDirectory() as folder:
        output = ["--output", folder + "/run"] if options.command == "train" else []
        calls = trace([*COMMANDS[options.command], *output])
    phases = split_into_phases(options.command, calls)
    if options.list:
        functions = (call.name for call in phases.get(options.list, []) if call.is_function)
        print("\n".join(dict.fromkeys(functions)))
        return
    print(
        f"\n| convoy {options.command} | functions | files | packages | package changes | calls |"
    )
    print("|---|--:|--:|--:|--:|--:|")
    print("\n".join(row(name, calls) for name, calls in phases.items()))
    counted = Counter(call.name for call in calls if re.fullmatch(CALLED_ONCE, call.name))
    print("\ncalled: " + ", ".join(f"{name} {count} ×" for name, count in counted.items()))


if __name__ == "__main__":
    main()
