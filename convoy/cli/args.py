"""Reading a command line: what the verbs share, and paths to runs and checkpoints."""

import re
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from textwrap import wrap

from convoy.config.command_line import Parser, add_flags, read_flags, spell_out, unknown_words
from convoy.config.flags import Dialect, Given, canonical
from convoy.config.named import read_named
from convoy.config.resolve import RequestedOptions, settings_of_run
from convoy.config.settings import Problem, layer, refuse, values_of
from convoy.errors import CheckpointError, ConfigError
from convoy.files import FINE_TUNE
from convoy.registry import suggest
from convoy.text import shown

_NAME = re.compile("[a-z]+")


class _Formatter(RawDescriptionHelpFormatter):
    """Wide enough that most options stay on one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=100)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(text, width, break_on_hyphens=False)  # `--no-augment` stays whole


@dataclass(frozen=True)
class Line:
    """A command line, split: the verb's own words and the options of a run."""

    own: Namespace
    given: Given
    problems: list[Problem]

    def asked(
        self,
        misfits: Iterable[Problem] = (),
        without: Collection[str] = (),
        run: Given | None = None,
    ) -> RequestedOptions:
        """What it asks for, with its named configuration or on top of the settings of a run.

        `misfits` are further problems; `without` are options that the verb takes in its own way.
        """
        given = {name: setting for name, setting in self.given.items() if name not in without}
        if run:
            problems = [*self.problems, *misfits]
            if self.own.config or self.own.config_path:
                text = "cannot be given: a run has its own configuration"
                problems.append(Problem("--config", text))
            return RequestedOptions(given, run, problems)
        dialect = _dialect(self.own.dialect)
        try:
            named, problems = read_named(
                self.own.config, self.own.config_path, dialect, partial(_elsewhere, dialect)
            )
        except ConfigError as error:  # the rules would speak of values it has not set
            refuse([*self.problems, Problem("", str(error))])
            raise
        unsaid = dialect.settings(values_of(layer(named, self.given)))
        problems = [*self.problems, *problems, *misfits]
        return RequestedOptions(given, named, problems, dialect=unsaid)


def read_line(verb: str, words: list[str], says: str, add_own: Callable[[Parser], None]) -> Line:
    """Split the words of a verb that takes the options of a run."""
    parser = _parser(verb, says)
    parser.usage = f"convoy {verb} [options]"
    parser.epilog = "`convoy options` lists these and all others, with those of the IPU programs."
    add_own(parser)
    dialect = canonical()
    add_flags(parser, dialect)
    own, extra = parser.parse_known_args(spell_out(words, parser))
    read = read_flags(own.typed, dialect)
    unknown = unknown_words(extra, parser, partial(_elsewhere, dialect))
    return Line(own, read.given, [*unknown, *read.problems])


def read_plain(
    verb: str, words: list[str], says: str, add_own: Callable[[Parser], None]
) -> Namespace:
    """Split the words of a verb with a few options of its own."""
    parser = _parser(verb, says)
    add_own(parser)
    own, extra = parser.parse_known_args(spell_out(words, parser))
    refuse(unknown_words(extra, parser))
    return own


def add_config(parser: Parser) -> None:
    """The way to a named configuration, for verbs that begin something new."""
    parser.add_argument("--config", metavar="NAME", help="a named configuration")
    parser.add_argument("--config-path", metavar="FILE", help="a configuration file of your own")
    parser.add_argument(
        "--dialect",
        metavar="NAME",
        default=canonical().name,
        help="whose words that file uses: convoy, pytorch, tensorflow or popart",
    )


def too_small(own: Namespace, *names: str, least: int = 1) -> Iterator[Problem]:
    """Those of a verb's own numbers that are below the least; one that is unset is not."""
    for name in names:
        value = vars(own)[name]
        if value is not None and value < least:
            yield Problem(f"--{name.replace('_', '-')}", f"must be at least {least}, got {value}")


def _dialect(name: str) -> Dialect:
    if name == canonical().name:
        return canonical()
    from convoy.dialects import DIALECTS

    if name not in DIALECTS:
        raise ConfigError(f"--dialect {shown(name)} is unknown; {suggest(name, DIALECTS)}")
    return DIALECTS[name]()


def _elsewhere(here: Dialect, flag: str) -> str | None:
    """What the other dialects make of a flag; few commands need their tables."""
    from convoy.dialects import elsewhere

    return elsewhere(flag, here)


def _parser(verb: str, says: str) -> Parser:
    """Prefixes are spelled out before argparse sees them: it would stop at the first doubt."""
    names = takewhile(_NAME.fullmatch, verb.split())  # behind a verb and its action stand others
    return Parser(
        prog=" ".join(["convoy", *names]),
        description=says,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )


def find_target(path: Path) -> tuple[list[Path], Given]:
    """Checkpoints, and the settings of the run they belong to. A run means all of its checkpoints,
    averages behind those they are of, fine-tuned ones last; a checkpoint means only itself."""
    if not path.exists():
        raise ConfigError(f"{path} does not exist")
    home = home_of(path)
    if home == path:
        paths = _below(path / "checkpoints") + _below(path / FINE_TUNE / "checkpoints")
        if not paths:
            raise CheckpointError(f"no checkpoint in {path / 'checkpoints'}")
    else:
        paths = [] if (path / "MANIFEST.json").exists() else _below(path)
    return paths or [path], settings_of_run(home / "config.yaml") if home else {}


def home_of(path: Path) -> Path | None:
    """The run that a path is, or lies in."""
    places = (path, *path.resolve().parents)
    return next((one for one in places if (one / "config.yaml").is_file()), None)


def _below(folder: Path) -> list[Path]:
    """The checkpoints of a folder, averages after those of the training."""
    averages = sorted(one for one in (folder / "averaged").glob("*") if one.is_dir())
    paths: list[Path] = []
    for place in (folder, *averages):
        updates = (one.name.removeprefix("update-") for one in place.glob("update-*"))
        paths += [
            place / f"update-{update}" for update in sorted(filter(str.isdigit, updates), key=int)
        ]
    return paths
