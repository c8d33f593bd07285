"""convoy run"""

import json
import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convoy.cli.args import Line, home_of, read_line
from convoy.cli.main import call_verb
from convoy.cli.output import say
from convoy.config.command_line import Parser, as_flags
from convoy.config.flags import Given
from convoy.config.resolve import (
    RequestedOptions,
    Resolved,
    resolve,
    resolve_resumed,
    settings_of_run,
)
from convoy.config.schema import option_table
from convoy.config.settings import Dropped, refuse
from convoy.dialects.command import Command, Program, Purpose, identify, split_command, values_after
from convoy.dialects.interpret import (
    DATA_BENCH,
    Interpretation,
    flags_of,
    help_of,
    interpret,
    read_launch,
    words_of_run,
)
from convoy.errors import ConfigError, ExitCode
from convoy.plan.plan import plan_run
from convoy.plan.printed import plan_as_json
from convoy.text import printable

if TYPE_CHECKING:
    from convoy.bench.benchmarks_yml import Variant

SAYS = """Run a command line of the IPU applications as it is written, behind `--`:
  convoy run -- python3 train.py --config resnet50 --imagenet-data-path DATA
Options in front of the `--` are convoy's own and win over the words of the command."""

_DRY = "--dry-run"
_BEHIND = "the command stands behind `--`, as in `convoy run -- python3 train.py --config resnet50`"

Description = dict[str, Any]


def main(words: list[str]) -> int:
    # The runner's own users put it at the end of their line.
    rest = [word for word in words if word != _DRY]
    place = rest.index("--") if "--" in rest else len(rest)
    line = read_line("run [options] -- COMMAND…", rest[:place], SAYS, _add_own)
    if not rest[place + 1 :]:
        raise ConfigError(_BEHIND)
    command = split_command(rest[place + 1 :], os.environ)
    is_dry = _DRY in words
    if (runner := identify(command, {})).purpose is Purpose.BENCHMARK:
        return _benchmarks(command, runner, line, is_dry)
    meaning = interpret(command, os.environ, line.own.dialect, line.given, line.problems)
    if meaning.wants_help:
        print(help_of(meaning.program), end="")
        return ExitCode.DONE
    arguments, resolved = _arguments(meaning)
    described = _describe(meaning, arguments)
    if is_dry:
        print(json.dumps(described | {"plan": _plan(meaning, resolved)}, indent=1))
        return ExitCode.DONE
    say(_as_text(described))
    os.environ.update(meaning.environment)
    verb, *action = meaning.verb.split()  # `data bench` is an action of a verb
    return call_verb(verb, [*action, *arguments])


def _target(meaning: Interpretation) -> tuple[Path | None, Path | None]:
    """The run or checkpoint that the verb works on, and the run that it is or lies in."""
    if meaning.verb in ("train", DATA_BENCH) or meaning.target is None:
        return None, None
    target = Path(meaning.target)
    return target, home_of(target) if target.exists() else None


def _arguments(meaning: Interpretation) -> tuple[list[str], Resolved | None]:
    """The words of the canonical command behind its verb, and the options they resolve to; those
    of a run or checkpoint are its own."""
    (target, home), asked = _target(meaning), meaning.asked
    if target is not None and (home or not asked.named):
        refuse(asked.problems)
        return [str(target), *flags_of(asked.command_line)], None
    resolved = resolve(asked)
    words = words_of_run(meaning.config, resolved, asked.environment)
    if meaning.verb == DATA_BENCH and "--epoch" not in words:  # its usual value is another
        words += as_flags(option_table()["epoch"], resolved.config.length.epoch)
    return words if target is None else [str(target), *words], resolved


def _describe(meaning: Interpretation, arguments: list[str]) -> Description:
    _, home = _target(meaning)
    unused = values_after("--config", meaning.program.words) if home else []
    reason = "a run has its own configuration"
    dropped = [*meaning.dropped, *(Dropped(f"--config {name}", reason) for name in unused)]
    return {
        "dialect": meaning.program.dialect,
        "program": meaning.program.name,
        "command": shlex.join(["convoy", *meaning.verb.split(), *arguments]),
        "became": [{"word": each.word, "became": each.to} for each in meaning.mapped],
        "dropped": [asdict(each) for each in dropped],
        "environment": dict(meaning.environment),
    }


def _plan(meaning: Interpretation, resolved: Resolved | None) -> Description | None:
    """What a run is comes from its folder; without it, from what the command says of it."""
    _, home = _target(meaning)
    before = settings_of_run(home / "config.yaml") if home is not None else {}
    if home is not None and meaning.verb == "resume":
        # What is said now may change how a run goes on, but not how it was trained.
        resolved = resolve_resumed(before, meaning.asked.command_line, [], override=False)
    elif home is not None:
        resolved = resolve(RequestedOptions(named=before, environment={}))
    if resolved is None:
        return None
    return plan_as_json(plan_run(resolved.config), resolved.settings)


def _as_text(described: Description) -> list[str]:
    """What each word became, what was left out, and the command as it could be typed."""
    variables = (f"{name}={shlex.quote(text)}" for name, text in described["environment"].items())
    became: dict[str, list[str]] = {}
    for one in described["became"]:
        became.setdefault(one["word"], []).append(one["became"])
    return [
        *(printable(f"{word} → {' '.join(flags)}") for word, flags in became.items()),
        *(f"{printable(one['word'])} left out: {one['reason']}" for one in described["dropped"]),
        " ".join([*variables, described["command"]]),
        "",
    ]


def _benchmarks(command: Command, runner: Program, line: Line, is_dry: bool) -> int:
    from convoy.bench.selection import select

    launch = read_launch(command, os.environ)
    refuse([*launch.problems, *line.problems])
    chosen = select(list(runner.words), {**os.environ, **launch.environment})
    if not is_dry:
        raise ConfigError(
            f"running benchmarks is not available in this version; add {_DRY} to see what "
            f"{len(chosen.variants)} of them resolve to"
        )
    described = {
        "dialect": runner.dialect,
        "program": runner.name,
        "notes": list(chosen.notes),
        "dropped": [asdict(each) for each in chosen.dropped],
        "benchmarks": [_variant(variant, line.given) for variant in chosen.variants],
    }
    print(json.dumps(described, indent=1))
    return ExitCode.DONE


def _variant(variant: "Variant", overrides: Given) -> Description:
    """One command of a benchmark; what is wrong with it is told in its place."""
    head = {"name": variant.name, "benchmark": variant.benchmark.name}
    variables = [f"{name}={text}" for name, text in variant.environment.items()]
    try:
        command = split_command([*variables, *variant.words], os.environ)
        meaning = interpret(command, os.environ, overrides=overrides)
        arguments, resolved = _arguments(meaning)
        described = _describe(meaning, arguments) | {"plan": _plan(meaning, resolved)}
    except ConfigError as error:
        return {**head, "words": list(variant.words), "problem": str(error)}
    return {**head, **described, "problem": None}


def _add_own(parser: Parser) -> None:
    parser.add_argument(_DRY, action="store_true", help="print what it would be as JSON, and stop")
    parser.add_argument(
        "--dialect", metavar="NAME", help="whose command it is: pytorch, tensorflow or popart"
    )
