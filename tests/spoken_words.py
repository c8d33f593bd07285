"""Words of a dialect, as tests read them: alone, over a configuration, below a launcher."""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from convoy.config.command_line import (
    ParsedFlags,
    Parser,
    add_flags,
    read_flags,
    spell_out,
    unknown_words,
)
from convoy.config.flags import Dialect
from convoy.config.named import read_named
from convoy.config.resolve import RequestedOptions, resolve
from convoy.config.schema import RunConfig
from convoy.config.settings import Setting, values_of
from convoy.dialects import DIALECTS, elsewhere
from convoy.dialects.command import split_command
from convoy.dialects.interpret import Interpretation, interpret, words_of_run
from convoy.dialects.popart import popart_benchmark
from convoy.dialects.tensorflow import tensorflow_validation
from convoy.plan.learning_rate import LearningRatePlan
from convoy.plan.loop import plan_loop
from convoy.plan.plan import plan_batch, usual_samples

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
) -> ParsedFlags:
    """What comes of words over a configuration and below a launcher, both given as values."""
    parser, spoken = parser_of(dialect), VARIANTS[dialect]()
    own, extra = parser.parse_known_args(spell_out(line.split(), parser))
    found = read_flags(own.typed, spoken, _set_by("config", under), _set_by("launcher", above))
    return ParsedFlags(
        found.given,
        [*unknown_words(extra, parser, partial(elsewhere, here=spoken)), *found.problems],
        found.dropped,
        found.mapped,
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
    return resolve(RequestedOptions(given, environment={}, dialect=unsaid)).config


def rates(dialect: str, line: str) -> LearningRatePlan:
    """The learning rate of a run."""
    asked = config(dialect, line)
    return plan_loop(asked, plan_batch(asked), usual_samples(asked)).learning_rate


def meant(line: str, environment: Mapping[str, str] | None = None) -> Interpretation:
    """A whole command, as `convoy run` reads it."""
    variables = environment or {}
    return interpret(split_command(line.split(), variables), variables)


def run(line: str, environment: Mapping[str, str] | None = None) -> RunConfig:
    """What a whole command asks for, which the canonical command it becomes asks for as well."""
    spoken = meant(line, environment)
    resolved = resolve(spoken.asked)
    words = words_of_run(spoken.config, resolved, spoken.asked.environment)
    name = words[1] if words[:1] == ["--config"] else None
    again = read("convoy", " ".join(words[2 if name else 0 :]))
    assert again.problems == []
    named = read_named(name, None)[0]
    assert resolve(RequestedOptions(again.given, named, environment=environment or {})).config == (
        resolved.config
    )
    return resolved.config
