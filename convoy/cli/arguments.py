"""What the verbs share of reading a command line."""

import re
from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from textwrap import wrap

from convoy.config.command_line import Parser, add_flags, read_flags
from convoy.config.dialects.canonical import canonical
from convoy.config.dialects.dialect import Dialect
from convoy.config.dialects.speech import Given
from convoy.config.layers import layer, values_of
from convoy.config.named import read_named
from convoy.config.problems import Problem, refuse
from convoy.config.resolve import Asked
from convoy.config.spelling import spell_out, unknown_words
from convoy.config.user_text import shown
from convoy.errors import ConfigError
from convoy.registry import suggest

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

    def asked(self) -> Asked:
        """What it asks for, with its named configuration."""
        dialect = _dialect(self.own.dialect)
        try:
            named, problems = read_named(self.own.config, self.own.config_path, dialect)
        except ConfigError as error:  # the rules would speak of values it has not set
            refuse([*self.problems, Problem("", str(error))])
            raise
        unsaid = dialect.settings(values_of(layer(named, self.given)))
        return Asked(self.given, named, [*self.problems, *problems], dialect=unsaid)


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
    return Line(own, read.given, [*unknown_words(extra, parser, dialect), *read.problems])


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


def _dialect(name: str) -> Dialect:
    if name == canonical().name:
        return canonical()
    from convoy.config.dialects.all import DIALECTS  # seldom needed

    if name not in DIALECTS:
        raise ConfigError(f"--dialect {shown(name)} is unknown; {suggest(name, DIALECTS)}")
    return DIALECTS[name]()


def _parser(verb: str, says: str) -> Parser:
    """Prefixes are spelled out before argparse sees them: it would stop at the first doubt."""
    names = takewhile(_NAME.fullmatch, verb.split())  # behind a verb and its action stand others
    return Parser(
        prog=" ".join(["convoy", *names]),
        description=says,
        formatter_class=_Formatter,
        allow_abbrev=False,
    )
