"""Parse the arguments of a dialect, optionally with a named configuration or a launcher."""

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
from convoy.planning.learning_rate import LearningRatePlan
from convoy.planning.loop import plan_loop
from convoy.planning.plan import default_num_samples, plan_batch

VARIANTS = {
    **DIALECTS,
    "tensorflow validation": tensorflow_validation,
    "popart benchmark": popart_benchmark,
}


@cache
def parser_of(dialect: str) -> ConfigArgumentParser:
    parser = ConfigArgumentParser(prog=dialect, allow_abbrev=False, add_help=False)
    add_flags(parser, VARIANTS[dialect]())
    return parser


def read(
    dialect: str,
    line: str,
    base: Mapping[str, Any] | None = None,
    launcher: Mapping[str, Any] | None = None,
) -> ParsedFlags:
    """Parse a line; `base` has the values of a configuration, `launcher` those of a launcher."""
    parser, current = parser_of(dialect), VARIANTS[dialect]()
    args, extra = parser.parse_known_args(expand_prefixes(line.split(), parser))
    found = parse_flags(
        args.flag_occurrences, current, _set_by("config", base), _set_by("launcher", launcher)
    )
    return ParsedFlags(
        found.settings,
        [
            *unknown_argument_problems(
                extra, parser, partial(find_in_other_dialects, current=current)
            ),
            *found.problems,
        ],
        found.dropped,
        found.mapped,
        found.target,
    )


def _set_by(source: str, values: Mapping[str, Any] | None) -> dict[str, Setting]:
    return {name: Setting(value, source) for name, value in (values or {}).items()}


def option_values(dialect: str, line: str, base: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the canonical values of a valid line."""
    found = read(dialect, line, base)
    assert found.problems == []
    return setting_values(found.settings)


def problems(dialect: str, line: str, base: Mapping[str, Any] | None = None) -> list[str]:
    return [str(problem) for problem in read(dialect, line, base).problems]


def config(dialect: str, line: str) -> RunConfig:
    """Return the configuration of a run: the given options, and the defaults of the dialect."""
    current: Dialect = VARIANTS[dialect]()
    settings = read(dialect, line).settings
    assert problems(dialect, line) == []
    defaults = current.default_settings(setting_values(settings))
    return resolve(RequestedOptions(settings, environment={}, dialect_defaults=defaults)).config


def rates(dialect: str, line: str) -> LearningRatePlan:
    """Return the learning rate plan of a run."""
    values = config(dialect, line)
    return plan_loop(values, plan_batch(values), default_num_samples(values)).learning_rate


def interpret_command(line: str, environment: Mapping[str, str] | None = None) -> Interpretation:
    """Interpret a complete command, as `convoy run` does."""
    variables = environment or {}
    return interpret(split_command(line.split(), variables), variables)


def run(line: str, environment: Mapping[str, str] | None = None) -> RunConfig:
    """Resolve a complete command; its canonical command must resolve to the same options."""
    interpretation = interpret_command(line, environment)
    request = interpretation.request
    resolved = resolve(request)
    words = canonical_args(interpretation.config, resolved, request.environment)
    name = words[1] if words[:1] == ["--config"] else None
    again = read("convoy", " ".join(words[2 if name else 0 :]))
    assert again.problems == []
    named = read_named_config(name, None)[0]
    repeated = RequestedOptions(again.settings, named, environment=environment or {})
    assert resolve(repeated).config == resolved.config
    return resolved.config
