"""Words of a dialect, as tests read them: alone, over a configuration, below a launcher."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from convoy.config.command_line import Around, Parser, Read, add_flags, read_flags
from convoy.config.commands.canonical_words import words_of_run
from convoy.config.commands.reading import read_command
from convoy.config.commands.spoken import Spoken, interpret
from convoy.config.dialects.all import DIALECTS
from convoy.config.dialects.dialect import Dialect
from convoy.config.dialects.popart import popart_benchmark
from convoy.config.dialects.tensorflow import tensorflow_validation
from convoy.config.layers import Setting, values_of
from convoy.config.named import read_named
from convoy.config.resolve import Asked, resolve
from convoy.config.schema import RunConfig
from convoy.config.spelling import spell_out, unknown_words
from convoy.plan.learning_rate import LearningRatePlan
from convoy.plan.plan import plan_outline

VARIANTS = {
    **DIALECTS,
    "tensorflow validation": tensorflow_validation,
    "popart benchmark": popart_benchmark,
}


@cache
def parser_of(dialect: str) -> Parser:
    made = Parser(prog=dialect, allow_abbrev=False, add_help=False)
    add_flags(made, VARIANTS[dialect]())
    return made


def read(
    dialect: str,
    line: str,
    under: Mapping[str, Any] | None = None,
    above: Mapping[str, Any] | None = None,
) -> Read:
    """What comes of words over a configuration and below a launcher, both given as values."""
    parser, spoken = parser_of(dialect), VARIANTS[dialect]()
    own, extra = parser.parse_known_args(spell_out(line.split(), parser))
    around = Around(_set_by("config", under), _set_by("launcher", above))
    found = read_flags(own.typed, spoken, around)
    return Read(
        found.given,
        [*unknown_words(extra, parser, spoken), *found.problems],
        found.dropped,
        found.became,
        found.target,
    )


def _set_by(source: str, values: Mapping[str, Any] | None) -> dict[str, Setting]:
    return {name: Setting(value, source) for name, value in (values or {}).items()}


def said(dialect: str, line: str, under: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The canonical values of words that are all right."""
    found = read(dialect, line, under)
    assert found.problems == []
    return values_of(found.given)


def problems(dialect: str, line: str, under: Mapping[str, Any] | None = None) -> list[str]:
    return [str(problem) for problem in read(dialect, line, under).problems]


def config(dialect: str, line: str) -> RunConfig:
    """What a run would be: what was said, and what the dialect takes for granted."""
    spoken: Dialect = VARIANTS[dialect]()
    given = read(dialect, line).given
    assert problems(dialect, line) == []
    unsaid = spoken.settings(values_of(given))
    return resolve(Asked(given, environment={}, dialect=unsaid)).config


def rates(dialect: str, line: str) -> LearningRatePlan:
    """The learning rate of a run."""
    return plan_outline(config(dialect, line)).loop.learning_rate


def meant(line: str, environment: Mapping[str, str] | None = None) -> Spoken:
    """A whole command, as `convoy run` reads it."""
    variables = environment or {}
    return interpret(read_command(line.split(), variables), {}, variables)


def run(line: str, environment: Mapping[str, str] | None = None) -> RunConfig:
    """What a whole command asks for, which the canonical command it becomes asks for as well."""
    spoken = meant(line, environment)
    resolved = resolve(spoken.asked)
    words = words_of_run(spoken.config, resolved, spoken.asked.environment)
    name = words[1] if words[:1] == ["--config"] else None
    again = read("convoy", " ".join(words[2 if name else 0 :]))
    assert again.problems == []
    named = read_named(name, None)[0]
    assert resolve(Asked(again.given, named, environment=environment or {})).config == (
        resolved.config
    )
    return resolved.config
