"""From what was asked to one RunConfig: layer the sources, hear every rule, keep every source."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from convoy.config.catalog import DATA, MODELS
from convoy.config.layers import Setting, from_source, layer, values_of
from convoy.config.problems import Problem, refuse
from convoy.config.rules import broken_rules
from convoy.config.schema import RunConfig, build_config, option_table
from convoy.config.values import WrongType

Settings = dict[str, Setting]

# Options that say the same thing in two ways: the one of the higher source wins.
RIVALS = (
    ("epoch", "updates"),
    ("lr", "base_learning_rate_exponent"),
    ("lr_scheduler_freq", "lr_drops"),
    ("lr_epoch_decay", "lr_share_decay"),
    ("poly_lr_end_ratio", "abs_end_learning_rate"),
    ("rmsprop_decay", "rmsprop_base_decay_exp"),
    ("logs_per_epoch", "log_freq"),
)


@dataclass(frozen=True)
class Asked:
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


def resolve(asked: Asked) -> Resolved:
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
    """All layers as one; where a higher layer sets a rival, that of a lower one is unset."""
    settings = layer(*layers)
    for rivals in RIVALS:
        top = next((one for one in reversed(layers) if _set_in(one, rivals)), {})
        given = _set_in(top, rivals)
        for name in rivals:
            row = option_table()[name]
            unset = None if row.kind.optional else row.default
            if given and name not in given and settings[name].value != unset:
                settings[name] = Setting(unset, top[given[0]].source)
    return settings


def _set_in(one: Settings, names: tuple[str, ...]) -> list[str]:
    return [name for name in names if name in one and one[name].value not in (None, ())]
