"""Command line parsing that the verbs share, and paths to runs and checkpoints."""

from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import wrap

from convoy.config.command_line import (
    ConfigArgumentParser,
    add_flags,
    expand_prefixes,
    parse_flags,
    unknown_argument_problems,
)
from convoy.config.flags import Dialect, canonical
from convoy.config.named_configs import read_named_config
from convoy.config.resolve import read_run_settings
from convoy.config.schema import Problem, RequestedOptions, Settings, raise_problems, setting_values
from convoy.errors import CheckpointError, ConfigError
from convoy.files import FINE_TUNE_FOLDER
from convoy.registry import suggest
from convoy.text import quote_shortened

# The options of a run that `--help` shows; `--help-all` shows all of them.
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
class ParsedCommand:
    """A parsed command line: the arguments of the verb and the options of a run."""

    args: Namespace
    settings: Settings
    problems: list[Problem]

    def to_request(
        self,
        extra_problems: Iterable[Problem] = (),
        exclude: Collection[str] = (),
        run_settings: Settings | None = None,
    ) -> RequestedOptions:
        """Combine the command line with its named configuration or the settings of a run.

        `exclude` lists options that the verb handles itself.
        """
        settings = {name: setting for name, setting in self.settings.items() if name not in exclude}
        if run_settings:
            problems = [*self.problems, *extra_problems]
            if self.args.config or self.args.config_path:
                text = "cannot be given: a run has its own configuration"
                problems.append(Problem("--config", text))
            return RequestedOptions(settings, run_settings, problems)
        dialect = _dialect(self.args.dialect)
        try:
            named, problems = read_named_config(
                self.args.config,
                self.args.config_path,
                dialect,
                partial(_find_in_other_dialects, dialect),
            )
        except ConfigError as error:  # the rules would report values that it does not set
            raise_problems([*self.problems, Problem("", str(error))])
            raise
        defaults = dialect.default_settings(setting_values(named | self.settings))
        problems = [*self.problems, *problems, *extra_problems]
        return RequestedOptions(settings, named, problems, dialect_defaults=defaults)


def make_parser(verb: str, description: str, usage: str | None = None) -> ConfigArgumentParser:
    return ConfigArgumentParser(
        prog=f"convoy {verb}",
        description=description,
        usage=usage,
        formatter_class=_WideHelpFormatter,
    )


def parse_command(parser: ConfigArgumentParser, words: list[str]) -> Namespace:
    """Parse the command line of a verb without the options of a run."""
    args, extra = parser.parse_known_args(expand_prefixes(words, parser))
    raise_problems(unknown_argument_problems(extra, parser))
    return args


def parse_run_command(parser: ConfigArgumentParser, words: list[str]) -> ParsedCommand:
    """Parse the command line of a verb that takes the options of a run."""
    parser.usage = parser.usage or f"{parser.prog} [options]"
    hint = "`--help-all` lists all options, `convoy options WORD` searches them."
    parser.epilog = f"{parser.epilog}\n{hint}" if parser.epilog else hint
    parser.add_argument("--help-all", action="help", help="show all options and exit")
    dialect = canonical()
    add_flags(parser, dialect, None if "--help-all" in words else COMMON_OPTIONS)
    args, extra = parser.parse_known_args(expand_prefixes(words, parser))
    parsed = parse_flags(args.flag_occurrences, dialect)
    unknown = unknown_argument_problems(extra, parser, partial(_find_in_other_dialects, dialect))
    return ParsedCommand(args, parsed.settings, [*unknown, *parsed.problems])


def add_config_arguments(parser: ConfigArgumentParser) -> None:
    """Add the options that select a named configuration or a file."""
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


def _dialect(name: str) -> Dialect:
    if name == canonical().name:
        return canonical()
    from convoy.dialects import DIALECTS

    if name not in DIALECTS:
        raise ConfigError(
            f"--dialect {quote_shortened(name)} is unknown; {suggest(name, DIALECTS)}"
        )
    return DIALECTS[name]()


def _find_in_other_dialects(here: Dialect, flag: str) -> str | None:
    """Look up a flag in the other dialects; imported lazily, since few commands need them."""
    from convoy.dialects import find_in_other_dialects

    return find_in_other_dialects(flag, here)


def find_checkpoints(path: Path) -> tuple[list[Path], Settings]:
    """Return the checkpoints at a path, and the settings of the run they belong to.

    For a run, these are all of its checkpoints: averages after those they were computed from,
    fine-tuned ones last.
    """
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    run_folder = find_run_folder(path)
    if run_folder == path:
        phases = (path, path / FINE_TUNE_FOLDER)
        paths = [found for run in phases for found in _list_checkpoints(run / "checkpoints")]
        if not paths:
            raise CheckpointError(f"no checkpoint in {path / 'checkpoints'}")
    else:
        paths = [] if (path / "MANIFEST.json").exists() else _list_checkpoints(path)
    return paths or [path], read_run_settings(run_folder / "config.yaml") if run_folder else {}


def find_run_folder(path: Path) -> Path | None:
    """Return the run folder that a path is or is inside of."""
    folders = (path, *path.resolve().parents)
    return next((folder for folder in folders if (folder / "config.yaml").is_file()), None)


def _list_checkpoints(folder: Path) -> list[Path]:
    """List the checkpoints of a folder, averages after those of the training."""
    paths: list[Path] = []
    for parent in (folder, *sorted((folder / "averaged").glob("*/"))):
        updates = (path.name.removeprefix("update-") for path in parent.glob("update-*"))
        numbers = sorted(filter(str.isdigit, updates), key=int)
        paths += [parent / f"update-{number}" for number in numbers]
    return paths
