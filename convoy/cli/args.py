"""Command line parsing that the verbs share."""

import os
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from textwrap import wrap

from convoy.api.requests import UserOptions, find_in_other_dialects
from convoy.config.command_line import (
    ConfigArgumentParser,
    RunHelp,
    add_flags,
    expand_prefixes,
    parse_flags,
    positional_arguments,
    unknown_argument_problems,
)
from convoy.config.flags import canonical
from convoy.config.schema import COMMAND_LINE, Problem, Setting, raise_problems

TARGET_HELP = "folder of a run or of a checkpoint"
_CONFIG_ARGUMENTS = ("config", "config_path", "dialect")
# The options of a run that `convoy train --help` shows; `--help-all` shows all of them.
MODEL_AND_DATA = {"model and data": ("model", "pretrained", "data", "data_dir", "image_size")}
_LENGTH_AND_BATCH = {
    "training length and batch size": ("epoch", "micro_batch_size", "gradient_accumulation", "seed")
}
OPTIMIZER_OPTIONS = {
    "optimizer and regularization": (
        *("optimizer", "lr", "lr_schedule", "warmup_epoch", "weight_decay"),
        *("label_smoothing", "mixup_alpha"),
    ),
}
_DEVICES = ("device", "replicas", "shards", "pipeline_schedule", "precision")
PLAN_HELP = RunHelp(
    {**MODEL_AND_DATA, **_LENGTH_AND_BATCH, **OPTIMIZER_OPTIONS, "devices": _DEVICES}
)
TRAIN_HELP = RunHelp({**(PLAN_HELP.common or {}), "output": ("checkpoint_output_path",)})


class _WideHelpFormatter(RawDescriptionHelpFormatter):
    """Wide enough that most options stay on one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=100)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width, break_on_hyphens=False)  # `--no-augment` stays whole


@dataclass(frozen=True)
class ParsedCommand(UserOptions):
    """A parsed command line: the options of a run and the arguments of the verb."""

    args: Namespace = field(default_factory=Namespace)


def make_parser(verb: str, description: str, usage: str | None = None) -> ConfigArgumentParser:
    return ConfigArgumentParser(
        prog=f"convoy {verb}",
        description=description,
        usage=usage,
        formatter_class=_WideHelpFormatter,
    )


def parse_command(parser: ConfigArgumentParser, argv: list[str]) -> Namespace:
    """Parse the command line of a verb without the options of a run."""
    args, extra = parser.parse_known_args(expand_prefixes(argv, parser))
    raise_problems(unknown_argument_problems(extra, parser))
    return args


def parse_run_command(
    parser: ConfigArgumentParser,
    argv: list[str],
    run_help: RunHelp = TRAIN_HELP,
    takes_folder: bool = False,
) -> ParsedCommand:
    """Parse the command line of a verb that takes the options of a run.

    With `takes_folder`, a positional argument is the folder of the dataset.
    """
    parser.usage = parser.usage or f"{parser.prog} [options]"
    hints = ["`--help-all` lists all options of a run, `convoy options WORD` searches them."]
    if run_help.default_source:
        hints.insert(0, f"Options that are not given keep the values of {run_help.default_source}.")
    parser.epilog = "\n".join([*filter(None, [parser.epilog]), *hints])
    parser.add_argument("--help-all", action="help", help="show all options of a run and exit")
    dialect = canonical()
    add_flags(parser, dialect, replace(run_help, common=None) if "--help-all" in argv else run_help)
    args, extra = parser.parse_known_args(expand_prefixes(argv, parser))
    parsed = parse_flags(args.flag_occurrences, dialect)
    folders = positional_arguments(extra)
    if takes_folder and len(folders) == 1 and "data_dir" not in parsed.settings:
        (folder,) = folders
        if folder and os.path.isdir(folder):  # noqa: PTH112 - False for an invalid name
            extra.remove(folder)
            parsed.settings["data_dir"] = Setting(folder, COMMAND_LINE)
    unknown = unknown_argument_problems(extra, parser, partial(find_in_other_dialects, dialect))
    named = {name: vars(args)[name] for name in _CONFIG_ARGUMENTS if name in args}
    return ParsedCommand(parsed.settings, [*unknown, *parsed.problems], **named, args=args)


def add_config_arguments(parser: ConfigArgumentParser) -> None:
    """Add the options that select a named configuration or a file."""
    parser.add_argument(
        "--config", metavar="NAME", help="named configuration (`convoy configs` lists them)"
    )
    parser.add_argument("--config-path", metavar="FILE", help="YAML file with options")
    parser.add_argument(
        "--dialect",
        metavar="NAME",
        default=canonical().name,
        help="option names used in FILE: those of convoy, or of Graphcore's pytorch, tensorflow or "
        "popart examples [convoy]",
    )


def too_small_problems(args: Namespace, *names: str, minimum: int = 1) -> Iterator[Problem]:
    """Report numbers below the minimum; None is allowed."""
    for name in names:
        value = vars(args)[name]
        if value is not None and value < minimum:
            yield Problem(f"--{name.replace('_', '-')}", f"must be at least {minimum}, got {value}")
