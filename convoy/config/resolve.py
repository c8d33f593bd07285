"""From what was asked to one RunConfig: layer the sources, check every rule, keep every source."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convoy.config.catalog import DATA, MODELS
from convoy.config.named import read_settings
from convoy.config.option import WrongType
from convoy.config.rules import broken_rules
from convoy.config.schema import RunConfig, build_config, mutually_exclusive, option_table
from convoy.config.settings import (
    Problem,
    Setting,
    changed,
    from_source,
    layer,
    refuse,
    values_of,
)
from convoy.errors import ConfigError

Settings = dict[str, Setting]


@dataclass(frozen=True)
class RequestedOptions:
    """Everything a user said, before it is layered."""

    command_line: Settings = field(default_factory=dict)
    named: Settings = field(default_factory=dict)  # a named configuration, or a run to resume
    problems: list[Problem] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    dialect: Settings = field(default_factory=dict)  # what its users rely on unsaid


@dataclass(frozen=True)
class Resolved:
    """The configuration, and who set each value of it."""

    config: RunConfig
    settings: Settings

    @classmethod
    def of(cls, settings: Settings) -> "Resolved":
        """From settings that were resolved before."""
        return cls(build_config(values_of(settings)), settings)

    def changed(self, values: Mapping[str, Any], source: str) -> "Resolved":
        """The same configuration with other values."""
        return Resolved.of({**self.settings, **from_source(source, values)})


def resolve(asked: RequestedOptions) -> Resolved:
    """Defaults < model and data < dialect < environment < named configuration < command line."""
    environment, problems = _from_environment(asked.environment)
    said = [asked.dialect, environment, asked.named, asked.command_line]
    defaults = _defaults()
    layers = [defaults, _brought(layer(defaults, *said)), *said]
    settings = _one_of_each(layers)
    resolved = Resolved.of(settings)
    refuse([*asked.problems, *problems, *broken_rules(resolved.config)])
    return resolved


def _defaults() -> Settings:
    values = {row.name: row.default for row in option_table().values()}
    return from_source("default", values)


def _brought(chosen: Settings) -> Settings:
    """What the chosen model and data set bring; an unknown name brings nothing."""
    model, data = chosen["model"].value, chosen["data"].value
    return layer(
        from_source(f"model {model}", MODELS[model].defaults if model in MODELS else {}),
        from_source(f"data {data}", DATA[data].defaults if data in DATA else {}),
    )


def _from_environment(environment: Mapping[str, str]) -> tuple[Settings, list[Problem]]:
    settings: Settings = {}
    problems: list[Problem] = []
    for row in option_table().values():
        word = environment.get(row.declared.env) if row.declared.env else None
        if not word:
            continue
        try:
            setting = Setting(row.kind.read([word]), f"environment {row.declared.env}")
        except WrongType as wrong:
            problems.append(Problem(f"environment {row.declared.env}", str(wrong)))
            continue
        settings[row.name] = setting
        if (text := row.problem(setting.value)) is not None:
            problems.append(Problem(setting.source, text))
    return settings, problems


def _one_of_each(layers: list[Settings]) -> Settings:
    """All layers as one; where a higher layer sets one of a pair, the other is unset."""
    settings = layer(*layers)
    for pair in mutually_exclusive():
        top = next((one for one in reversed(layers) if _set_in(one, pair)), {})
        given = _set_in(top, pair)
        for name in pair:
            unset = option_table()[name].unset
            if given and name not in given and settings[name].value != unset:
                settings[name] = Setting(unset, top[given[0]].source)
    return settings


def _set_in(one: Settings, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name in one and one[name].value not in (None, ())]


def settings_of_run(config: Path) -> dict[str, Setting]:
    """What a run's `config.yaml` says."""
    if not config.is_file():
        raise ConfigError(f"{config.parent} holds no run: there is no {config.name}")
    settings, problems = read_settings(config)
    refuse(problems)
    table = option_table()
    return {name: one for name, one in settings.items() if not table[name].declared.momentary}


def resolve_resumed(
    before: dict[str, Setting],
    given: dict[str, Setting],
    problems: list[Problem],
    override: bool,
) -> Resolved:
    """The run's own values under those given now; a change of the training must be meant."""
    problems = [
        *problems,
        *(
            Problem(row.flag, f"cannot be given: {row.declared.fixed}")
            for row in option_table().values()
            if row.declared.fixed and row.name in given
        ),
    ]
    resolved = resolve(RequestedOptions(given, before, problems, environment={}))
    differences = changed(before, resolved.settings)
    if differences and not override:
        raise ConfigError(
            f"this would be another training: {'; '.join(differences)}; "
            "leave it out, or add --override to go on with the change"
        )
    return resolved
