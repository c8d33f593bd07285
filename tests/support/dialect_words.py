"""Words of a dialect, as tests read them: alone, over a configuration, below a launcher."""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

from convoy.config.command_line import (
    ConfigArgumentParser,
    ParsedFlags,
    add_flags,
    expand_prefixes,
    parse_flags,
    unknown_argument_problems,
)
from convoy.config.flags import Dialect
from convoy.config.named_configs import read_named_config
from convoy.config.resolve import resolve
from convoy.config.schema import RequestedOptions, RunConfig, Setting, setting_values
from convoy.dialects import DIALECTS, find_in_other_dialects
from convoy.dialects.command import split_command
from convoy.dialects.interpret import Interpretation, canonical_args, interpret
from convoy.dialects.popart import popart_benchmark
from convoy.dialects.tensorflow import tensorflow_validation
from convoy.plan.learning_rate import LearningRatePlan
from convoy.plan.loop import plan_loop
from convoy.plan.plan import default_num_samples, plan_batch

VARIANTS = {
    **DIALECTS,
    "tensorflow validation": tensorflow_validation,
    "popart benchmark": popart_benchmark,
}


@cache
def parser_of(dialect: str) -> ConfigArgumentParser:
    made = ConfigArgumentParser(prog=dialect, allow_abbrev=False, add_help=False)
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
    own, extra = parser.parse_known_args(expand_prefixes(line.split(), parser))
    found = parse_flags(
        own.flag_occurrences, spoken, _set_by("config", under), _set_by("launcher", above)
    )
    return ParsedFlags(
        found.settings,
        [
            *unknown_argument_problems(
                extra, parser, partial(find_in_other_dialects, current=spoken)
            ),
            *found.problems,
        ],
        found.dropped,
        found.mapped,
        found.target,
    )


def _set_by(source: str, values: Mapping[str, Any] | None) -> dict[str, Setting]:
    return {name: Setting(value, source) for name, value in (values or {}).items()}


def option_values(
    dialect: str, line: str, under: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The canonical values of words that are all right."""
    found = read(dialect, line, under)
    assert found.problems == []
    return setting_values(found.settings)


def problems(dialect: str, line: str, under: Mapping[str, Any] | None = None) -> list[str]:
    return [str(problem) for problem in read(dialect, line, under).problems]


def config(dialect: str, line: str) -> RunConfig:
    """What a run would be: what was said, and what the dialect takes for granted."""
    spoken: Dialect = VARIANTS[dialect]()
    given = read(dialect, line).settings
    assert problems(dialect, line) == []
    unsaid = spoken.default_settings(setting_values(given))
    return resolve(RequestedOptions(given, environment={}, dialect_defaults=unsaid)).config


def rates(dialect: str, line: str) -> LearningRatePlan:
    """The learning rate of a run."""
    asked = config(dialect, line)
    return plan_loop(asked, plan_batch(asked), default_num_samples(asked)).learning_rate


def interpret_command(line: str, environment: Mapping[str, str] | None = None) -> Interpretation:
    """A whole command, as `convoy run` reads it."""
    variables = environment or {}
    return interpret(split_command(line.split(), variables), variables)


def run(line: str, environment: Mapping[str, str] | None = None) -> RunConfig:
    """What a whole command asks for, which the canonical command it becomes asks for as well."""
    spoken = interpret_command(line, environment)
    resolved = resolve(spoken.request)
    words = canonical_args(spoken.config, resolved, spoken.request.environment)
    name = words[1] if words[:1] == ["--config"] else None
    again = read("convoy", " ".join(words[2 if name else 0 :]))
    assert again.problems == []
    named = read_named_config(name, None)[0]
    assert resolve(
        RequestedOptions(again.settings, named, environment=environment or {})
    ).config == (resolved.config)
    return resolved.config
