"""convoy run"""

import json
import os
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convoy.cli.arguments import read_line
from convoy.cli.run_or_checkpoint import home_of
from convoy.cli.saying import say
from convoy.config.command_line import Parser, as_flags
from convoy.config.commands.canonical_words import words_of_run, words_of_target
from convoy.config.commands.programs import Purpose, behind, identify
from convoy.config.commands.reading import Reading, read_command
from convoy.config.commands.spoken import Spoken, help_of, interpret
from convoy.config.dialects.speech import Given
from convoy.config.problems import Dropped, refuse
from convoy.config.resolve import Asked, Resolved, resolve
from convoy.config.resume import resolve_resumed, settings_of_run
from convoy.config.schema import option_table
from convoy.config.user_text import printable
from convoy.errors import ConfigError, ExitCode
from convoy.plan.as_json import plan_as_json
from convoy.plan.plan import plan_run

if TYPE_CHECKING:
    from convoy.bench.definition import Variant

SAYS = """Run a command line of the IPU applications as it is written, behind `--`:
  convoy run -- python3 train.py --config resnet50 --imagenet-data-path DATA
Options in front of the `--` are convoy's own and win over the words of the command."""

_DRY = "--dry-run"
_BENCH = "data bench"
_BEHIND = "the command stands behind `--`, as in `convoy run -- python3 train.py --config resnet50`"

Meaning = dict[str, Any]


def main(words: list[str]) -> int:
    """Say what the command became, and carry it out."""
    # The runner's own users put it at the end of their line.
    rest = [word for word in words if word != _DRY]
    own, typed = _halves(rest)
    line = read_line("run [options] -- COMMAND…", own, SAYS, _add_own)
    if not typed:
        raise ConfigError(_BEHIND)
    reading = read_command(typed, os.environ)
    reading.problems.extend(line.problems)
    is_dry = _DRY in words
    if _is_runner(reading):
        return _benchmarks(reading, line.given, is_dry)
    spoken = interpret(reading, line.given, os.environ, line.own.dialect)
    if spoken.wants_help:
        print(help_of(spoken.program), end="")
        return ExitCode.DONE
    arguments = _words(spoken)
    meaning = _meaning(spoken, arguments)
    if is_dry:
        print(json.dumps(meaning | {"plan": _plan(spoken)}, indent=1))
        return ExitCode.DONE
    say(_as_text(meaning))
    os.environ.update(spoken.environment)
    return int(import_module(f"convoy.cli.{spoken.verb.replace(' ', '_')}").main(arguments))


def _halves(words: list[str]) -> tuple[list[str], list[str]]:
    """Our own words, and those of the command."""
    if "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def _is_runner(reading: Reading) -> bool:
    return identify(reading.command, {}).purpose is Purpose.BENCHMARK


def _words(spoken: Spoken) -> list[str]:
    """The words of the canonical command behind its verb."""
    target = _target(spoken)
    if target is not None and (_home(target) or not spoken.asked.named):
        refuse(spoken.asked.problems)
        return words_of_target(str(target), spoken.asked.command_line)
    resolved = resolve(spoken.asked)
    words = words_of_run(spoken.config, resolved, spoken.asked.environment)
    if spoken.verb == _BENCH and "--epoch" not in words:  # our usual one would go without saying
        words += as_flags(option_table()["epoch"], resolved.config.length.epoch)
    return words if target is None else [str(target), *words]


def _meaning(spoken: Spoken, words: list[str]) -> Meaning:
    """All there is to say of a command but its plan."""
    dropped = [*spoken.dropped, *_spare_config(spoken)]
    return {
        "dialect": spoken.program.dialect,
        "program": spoken.program.name,
        "command": shlex.join(["convoy", *spoken.verb.split(), *words]),
        "became": [{"word": one.word, "became": one.what} for one in spoken.became],
        "dropped": [{"word": one.word, "reason": one.reason} for one in dropped],
        "environment": dict(spoken.environment),
    }


def _target(spoken: Spoken) -> Path | None:
    """The run or checkpoint that the verb works on."""
    begins = spoken.verb in ("train", _BENCH)
    return None if begins or spoken.target is None else Path(spoken.target)


def _home(target: Path) -> Path | None:
    return home_of(target) if target.exists() else None


def _spare_config(spoken: Spoken) -> Iterator[Dropped]:
    target = _target(spoken)
    if target is not None and _home(target):
        for name in behind("--config", spoken.program.words):
            yield Dropped(f"--config {name}", "a run has its own configuration")


def _plan(spoken: Spoken) -> Meaning | None:
    """What a run is comes from its folder; without it, from what the command says of it."""
    target = _target(spoken)
    home = _home(target) if target is not None else None
    if home is not None:
        resolved = _of_run(spoken, settings_of_run(home / "config.yaml"))
    elif target is None or spoken.asked.named:
        resolved = resolve(spoken.asked)
    else:
        return None
    return plan_as_json(plan_run(resolved.config), resolved.settings)


def _of_run(spoken: Spoken, before: Given) -> Resolved:
    """What is said now may change how a run goes on, but not how it was trained."""
    if spoken.verb == "resume":
        return resolve_resumed(before, spoken.asked.command_line, [], override=False)
    return resolve(Asked(named=before, environment={}))


def _as_text(meaning: Meaning) -> list[str]:
    """What each word became, what was left out, and the command as it could be typed."""
    variables = (f"{name}={shlex.quote(text)}" for name, text in meaning["environment"].items())
    became: dict[str, list[str]] = {}
    for one in meaning["became"]:
        became.setdefault(one["word"], []).append(one["became"])
    return [
        *(printable(f"{word} → {' '.join(flags)}") for word, flags in became.items()),
        *(f"{printable(one['word'])} left out: {one['reason']}" for one in meaning["dropped"]),
        " ".join([*variables, meaning["command"]]),
        "",
    ]


def _benchmarks(reading: Reading, extra: Given, is_dry: bool) -> int:
    """Every variant of a file of benchmarks, resolved."""
    from convoy.bench.select import select  # most commands are no benchmarks

    program = identify(reading.command, {})
    refuse(reading.problems)
    chosen = select(list(program.words), {**os.environ, **reading.launch.environment})
    if not is_dry:
        raise ConfigError(
            f"running benchmarks is not available in this version; add {_DRY} to see what "
            f"{len(chosen.variants)} of them resolve to"
        )
    meaning = {
        "dialect": program.dialect,
        "program": program.name,
        "notes": list(chosen.notes),
        "dropped": [{"word": one.word, "reason": one.reason} for one in chosen.dropped],
        "benchmarks": [_variant(one, extra) for one in chosen.variants],
    }
    print(json.dumps(meaning, indent=1))
    return ExitCode.DONE


def _variant(variant: "Variant", extra: Given) -> Meaning:
    """One command of a benchmark; what is wrong with it is told in its place."""
    head = {"name": variant.name, "benchmark": variant.benchmark.name}
    variables = [f"{name}={text}" for name, text in variant.environment.items()]
    try:
        reading = read_command([*variables, *variant.words], os.environ)
        spoken = interpret(reading, extra, os.environ)
        meaning = _meaning(spoken, _words(spoken)) | {"plan": _plan(spoken)}
    except ConfigError as error:
        return {**head, "words": list(variant.words), "problem": str(error)}
    return {**head, **meaning, "problem": None}


def _add_own(parser: Parser) -> None:
    parser.add_argument(_DRY, action="store_true", help="print what it would be as JSON, and stop")
    parser.add_argument(
        "--dialect", metavar="NAME", help="whose command it is: pytorch, tensorflow or popart"
    )
