"""What the verbs share of reading a command line."""

from argparse import Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from dataclasses import dataclass

from convoy.config.command_line import (
    Parser,
    add_flags,
    read_flags,
    split_switches,
    unknown_words,
)
from convoy.config.dialects.canonical import canonical
from convoy.config.dialects.dialect import Given
from convoy.config.named import read_named
from convoy.config.problems import Problem, refuse
from convoy.config.resolve import Asked


class _Formatter(RawDescriptionHelpFormatter):
    """Wide enough that most options stay on one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=100)


@dataclass(frozen=True)
class Line:
    """A command line, split: the verb's own words and the options of a run."""

    own: Namespace
    given: Given
    problems: list[Problem]

    def asked(self) -> Asked:
        """What it asks for, with its named configuration."""
        named, problems = read_named(self.own.config, self.own.config_path)
        return Asked(self.given, named, [*self.problems, *problems])


def read_line(
    verb: str, words: list[str], says: str, add_own: Callable[[Parser], None] | None = None
) -> Line:
    """Split the words of a verb that takes the options of a run."""
    usage = f"convoy {verb} [options]"
    parser = Parser(
        prog=f"convoy {verb}", usage=usage, description=says, formatter_class=_Formatter
    )
    if add_own is not None:
        add_own(parser)
    parser.add_argument("--config", metavar="NAME", help="a named configuration")
    parser.add_argument("--config-path", metavar="FILE", help="a configuration file of your own")
    dialect = canonical()
    add_flags(parser, dialect)
    own, extra = parser.parse_known_args(split_switches(words, dialect))
    given, problems = read_flags(own.typed, dialect)
    return Line(own, given, [*unknown_words(extra, parser), *problems])


def read_plain(
    verb: str, words: list[str], says: str, add_own: Callable[[Parser], None]
) -> Namespace:
    """Split the words of a verb with a few options of its own."""
    parser = Parser(prog=f"convoy {verb}", description=says, formatter_class=_Formatter)
    add_own(parser)
    own, extra = parser.parse_known_args(words)
    refuse(unknown_words(extra, parser))
    return own
