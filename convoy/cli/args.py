"""Parse a command line: what the verbs share."""

import re
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from textwrap import wrap

from convoy.api.requests import GivenOptions, find_in_other_dialects
from convoy.config.command_line import (
    ConfigArgumentParser,
    add_flags,
    expand_prefixes,
    parse_flags,
    unknown_argument_problems,
)
from convoy.config.flags import canonical
from convoy.config.schema import Problem, raise_problems

_NAME = re.compile("[a-z]+")
CONFIG_ARGUMENTS = ("config", "config_path", "dialect")
# What `--help` shows of the options of a run; `--help-all` shows all of them.
COMMON_OPTIONS = {
    "model and data": ("model", "pretrained", "data", "data_dir", "image_size"),
    "length and batch": ("epoch", "micro_batch_size", "gradient_accumulation", "seed"),
    "optimizer and regularization": (
        *("optimizer", "lr", "lr_schedule", "warmup_epoch", "weight_decay"),
        *("label_smoothing", "mixup_alpha"),
    ),
    "devices": ("device", "replicas", "shards", "pipeline_schedule", "precision"),
    "output": ("checkpoint_output_path",),
}


class _WideHelpFormatter(RawDescriptionHelpFormatter):
    """Wide enough that most options stay on one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=100)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width, break_on_hyphens=False)  # `--no-augment` stays whole


@dataclass(frozen=True)
class ParsedCommand(GivenOptions):
    """A parsed command line: the options of a run and the verb's own arguments."""

    args: Namespace = field(default_factory=Namespace)


def parse_run_command(
    verb: str, words: list[str], says: str, add_own: Callable[[ConfigArgumentParser], None]
) -> ParsedCommand:
    """Split the words of a verb that takes the options of a run."""
    parser = _make_parser(verb, says)
    parser.usage = f"convoy {verb} [options]"
    parser.epilog = "`--help-all` lists all options, `convoy options WORD` searches them."
    add_own(parser)
    parser.add_argument("--help-all", action="help", help="show all options and exit")
    dialect = canonical()
    add_flags(parser, dialect, None if "--help-all" in words else COMMON_OPTIONS)
    args, extra = parser.parse_known_args(expand_prefixes(words, parser))
    read = parse_flags(args.flag_occurrences, dialect)
    unknown = unknown_argument_problems(extra, parser, partial(find_in_other_dialects, dialect))
    named = {name: vars(args)[name] for name in CONFIG_ARGUMENTS if name in args}
    return ParsedCommand(read.settings, [*unknown, *read.problems], **named, args=args)


def parse_command(
    verb: str, words: list[str], says: str, add_own: Callable[[ConfigArgumentParser], None]
) -> Namespace:
    """Split the words of a verb with a few options of its own."""
    parser = _make_parser(verb, says)
    add_own(parser)
    args, extra = parser.parse_known_args(expand_prefixes(words, parser))
    raise_problems(unknown_argument_problems(extra, parser))
    return args


def add_config_arguments(parser: ConfigArgumentParser) -> None:
    """Named configurations and files, for verbs that start something new."""
    parser.add_argument("--config", metavar="NAME", help="named configuration; `convoy configs`")
    parser.add_argument("--config-path", metavar="FILE", help="your own configuration file")
    parser.add_argument(
        "--dialect",
        metavar="NAME",
        default=canonical().name,
        help="dialect of that file: convoy, pytorch, tensorflow or popart",
    )


def too_small_problems(args: Namespace, *names: str, minimum: int = 1) -> Iterator[Problem]:
    """Report numbers below the minimum; None is allowed."""
    for name in names:
        value = vars(args)[name]
        if value is not None and value < minimum:
            yield Problem(f"--{name.replace('_', '-')}", f"must be at least {minimum}, got {value}")


def _make_parser(verb: str, says: str) -> ConfigArgumentParser:
    """Prefixes are spelled out before argparse sees them: it would stop at the first doubt."""
    names = takewhile(_NAME.fullmatch, verb.split())  # behind a verb and its action stand others
    return ConfigArgumentParser(
        prog=" ".join(["convoy", *names]),
        description=says,
        formatter_class=_WideHelpFormatter,
        allow_abbrev=False,
    )
