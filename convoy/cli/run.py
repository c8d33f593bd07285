"""convoy run"""

import os
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convoy.api.requests import find_run_folder
from convoy.cli.args import ParsedCommand, make_parser, parse_run_command
from convoy.cli.main import call_verb
from convoy.cli.output import print_json, print_lines
from convoy.config.command_line import RunHelp
from convoy.config.resolve import ResolvedConfig, read_run_settings, resolve, resolve_resumed
from convoy.config.schema import (
    DroppedWord,
    Settings,
    option_table,
    raise_problems,
    reads_no_files,
)
from convoy.dialects.command import (
    Command,
    Program,
    Purpose,
    identify_program,
    split_command,
    values_after,
)
from convoy.dialects.interpret import (
    DATA_BENCH,
    Interpretation,
    canonical_args,
    interpret,
    read_launch,
    settings_to_args,
)
from convoy.errors import ConfigError, ExitCode
from convoy.planning.plan import plan_run
from convoy.planning.render import plan_as_json
from convoy.text import printable

if TYPE_CHECKING:
    from convoy.bench.benchmarks_yml import Variant

DESCRIPTION = """Run a command of Graphcore's IPU examples unchanged, after `--`:
  convoy run -- python3 train.py --config resnet50 --imagenet-data-path DATA
Options before the `--` are convoy options and override those of the command."""
_RUN_HELP = RunHelp(
    {
        "data and training length": ("data", "data_dir", "epoch", "updates"),
        "batch": ("micro_batch_size", "gradient_accumulation"),
        "devices": ("device", "replicas", "shards", "pipeline_schedule", "precision"),
        "output": ("checkpoint_output_path",),
    },
    default_source="the command",
)

_DRY_RUN_FLAG = "--dry-run"
Description = dict[str, Any]


def main(argv: list[str]) -> int:
    # Users of the benchmark runner write it at the end of the line.
    rest = [word for word in argv if word != _DRY_RUN_FLAG]
    separator = rest.index("--") if "--" in rest else len(rest)
    parser = make_parser("run", DESCRIPTION, "convoy run [options] -- COMMAND…")
    dry_run_help = "print the equivalent convoy command and its plan as JSON, and exit"
    parser.add_argument(_DRY_RUN_FLAG, action="store_true", help=dry_run_help)
    dialect_help = "Graphcore example that the command belongs to: pytorch, tensorflow or popart"
    parser.add_argument("--dialect", metavar="NAME", help=dialect_help)
    line = parse_run_command(parser, rest[:separator], _RUN_HELP)
    if not rest[separator + 1 :]:
        example = "convoy run -- python3 train.py --config resnet50"
        raise ConfigError(f"write the command after `--`, as in `{example}`")
    command = split_command(rest[separator + 1 :], os.environ)
    is_dry = _DRY_RUN_FLAG in argv
    if (runner := identify_program(command, {})).purpose is Purpose.BENCHMARK:
        return _run_benchmarks(command, runner, line, is_dry)
    interpretation = interpret(command, os.environ, line.args.dialect, line.settings, line.problems)
    if interpretation.help:
        print(interpretation.help, end="")
        return ExitCode.DONE
    arguments, resolved = _canonical_arguments(interpretation)
    described = _describe(interpretation, arguments, resolved)
    if is_dry:
        print_json(described | {"plan": _plan(interpretation, resolved)})
        return ExitCode.DONE
    print_lines(_format_description(described))
    os.environ.update(interpretation.environment)
    verb, *action = interpretation.verb.split()  # `data bench` is an action of a verb
    return call_verb(verb, [*action, *arguments])


def _find_target(interpretation: Interpretation) -> tuple[Path | None, Path | None]:
    """Return the run or checkpoint that the verb works on, and the run folder it belongs to."""
    if interpretation.verb in ("train", DATA_BENCH) or interpretation.target is None:
        return None, None
    target = Path(interpretation.target)
    return target, find_run_folder(target) if target.exists() else None


def _canonical_arguments(interpretation: Interpretation) -> tuple[list[str], ResolvedConfig | None]:
    """Return the arguments of the canonical command, and the options they resolve to.

    The options are None if a run or checkpoint brings its own.
    """
    (target, run_folder), request = _find_target(interpretation), interpretation.request
    if target is not None and (run_folder or not request.named_config):
        raise_problems(request.problems)
        return [str(target), *settings_to_args(request.command_line)], None
    resolved = resolve(request)
    argv = canonical_args(interpretation.config, resolved, request.environment)
    if interpretation.verb == DATA_BENCH and "--epoch" not in argv:  # it has another default there
        argv += option_table()["epoch"].to_cli_args(resolved.config.length.epoch)
    return argv if target is None else [str(target), *argv], resolved


def _describe(
    interpretation: Interpretation, arguments: list[str], resolved: ResolvedConfig | None
) -> Description:
    _, run_folder = _find_target(interpretation)
    unused = values_after("--config", interpretation.program.words) if run_folder else []
    reason = "a run has its own configuration"
    dropped = [DroppedWord(f"--config {name}", reason) for name in unused]
    if resolved and reads_no_files(resolved.settings):
        data, folder = resolved.config.data.data, resolved.config.data.data_dir
        dropped.append(DroppedWord(f"--data-dir {folder}", f"{data} data has no files"))
    return {
        "dialect": interpretation.program.dialect,
        "program": interpretation.program.name,
        "command": shlex.join(["convoy", *interpretation.verb.split(), *arguments]),
        "mapped": [asdict(mapping) for mapping in interpretation.mapped],
        "dropped": [asdict(word) for word in (*interpretation.dropped, *dropped)],
        "environment": dict(interpretation.environment),
    }


def _plan(interpretation: Interpretation, resolved: ResolvedConfig | None) -> Description | None:
    """Return the plan of the run in its folder; without one, of the options of the command."""
    _, run_folder = _find_target(interpretation)
    if run_folder is not None:
        run_settings = read_run_settings(run_folder / "config.yaml")
        # To resume, the command may change how a run continues, but not how it was trained.
        changes = interpretation.request.command_line if interpretation.verb == "resume" else {}
        resolved = resolve_resumed(run_settings, changes, [], override=False)
    return plan_as_json(plan_run(resolved.config), resolved.settings) if resolved else None


def _format_description(described: Description) -> list[str]:
    """Format what each argument is mapped to, what is dropped, and the convoy command."""
    variables = (f"{name}={shlex.quote(text)}" for name, text in described["environment"].items())
    mapped: dict[str, list[str]] = {}
    for mapping in described["mapped"]:
        mapped.setdefault(mapping["word"], []).append(mapping["mapped_to"])
    return [
        *(printable(f"{word} → {' '.join(flags)}") for word, flags in mapped.items()),
        *(f"{printable(word['word'])} dropped: {word['reason']}" for word in described["dropped"]),
        " ".join([*variables, described["command"]]),
        "",
    ]


def _run_benchmarks(command: Command, runner: Program, line: ParsedCommand, is_dry: bool) -> int:
    from convoy.bench.selection import select_benchmarks

    launch = read_launch(command, os.environ)
    raise_problems([*launch.problems, *line.problems])
    selection = select_benchmarks(list(runner.words), {**os.environ, **launch.environment})
    if not is_dry:
        raise ConfigError(
            f"running benchmarks is not available in this version; add {_DRY_RUN_FLAG} to see what "
            f"{len(selection.variants)} of them resolve to"
        )
    description = {
        "dialect": runner.dialect,
        "program": runner.name,
        "notes": list(selection.notes),
        "dropped": [asdict(word) for word in selection.dropped],
        "benchmarks": [_describe_variant(variant, line.settings) for variant in selection.variants],
    }
    print_json(description)
    return ExitCode.DONE


def _describe_variant(variant: "Variant", overrides: Settings) -> Description:
    """Describe one command of a benchmark, or its problem."""
    head = {"name": variant.name, "benchmark": variant.benchmark.name}
    variables = [f"{name}={text}" for name, text in variant.environment.items()]
    try:
        command = split_command([*variables, *variant.words], os.environ)
        interpretation = interpret(command, os.environ, overrides=overrides)
        arguments, resolved = _canonical_arguments(interpretation)
        described = _describe(interpretation, arguments, resolved)
        described |= {"plan": _plan(interpretation, resolved)}
    except ConfigError as error:
        return {**head, "words": list(variant.words), "problem": str(error)}
    return {**head, **described, "problem": None}
