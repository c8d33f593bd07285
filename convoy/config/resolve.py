"""From what was asked to one RunConfig: layer the sources, hear every rule, keep every source."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from convoy.config.catalog import DATA, MODELS
from convoy.config.layers import Setting, from_source, layer
from convoy.config.problems import Problem, refuse
from convoy.config.rules import broken_rules
from convoy.config.schema import RunConfig, build_config, option_table
from convoy.config.values import WrongType

Settings = dict[str, Setting]


@dataclass(frozen=True)
class Asked:
    """Everything a user said, before it is layered."""

    command_line: Settings = field(default_factory=dict)
    named: Settings = field(default_factory=dict)  # a named configuration, or a run to resume
    problems: list[Problem] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)


@dataclass(frozen=True)
class Resolved:
    """The configuration, and who set each value of it."""

    config: RunConfig
    settings: Settings


def resolve(asked: Asked) -> Resolved:
    """Defaults < model and data < environment < named configuration < command line."""
    environment, problems = _from_environment(asked.environment)
    said = layer(environment, asked.named, asked.command_line)
    settings = layer(_defaults(), _brought(said), said)
    settings = _one_length(settings)
    config = build_config({name: setting.value for name, setting in settings.items()})
    refuse([*asked.problems, *problems, *broken_rules(config)])
    return Resolved(config, settings)


def _defaults() -> Settings:
    values = {row.name: row.default for row in option_table().values()}
    return from_source("default", values)


def _brought(said: Settings) -> Settings:
    """What the chosen model and data set bring; an unknown name brings nothing."""
    rows = option_table()
    model = said["model"].value if "model" in said else rows["model"].default
    data = said["data"].value if "data" in said else rows["data"].default
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
            settings[row.name] = Setting(row.kind.read([word]), f"environment {row.declared.env}")
        except WrongType as wrong:
            problems.append(Problem(f"environment {row.declared.env}", str(wrong)))
    return settings, problems


def _one_length(settings: Settings) -> Settings:
    """`--updates` given over a default `epoch` replaces it, and the reverse."""
    epoch, updates = settings["epoch"], settings["updates"]
    if epoch.value is None or updates.value is None or _rank(epoch) == _rank(updates):
        return settings
    weaker = "epoch" if _rank(epoch) < _rank(updates) else "updates"
    stronger = epoch if weaker == "updates" else updates
    return settings | {weaker: Setting(None, stronger.source)}


def _rank(setting: Setting) -> int:
    if setting.source == "command line":
        return 2
    return 0 if setting.source.startswith(("default", "model ", "data ")) else 1
