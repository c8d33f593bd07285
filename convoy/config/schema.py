"""RunConfig and its settings. Flags, YAML keys, help and docs are generated from its sections.

A setting is an option value with its source. Sources are merged by precedence, and the result can
be written as YAML or hashed. Problems are collected and reported together.
"""

import hashlib
import json
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from convoy.config.option import Option, OptionTypeError, format_value, section_options
from convoy.config.sections.data import DATA, DataConfig, MixingConfig
from convoy.config.sections.network import MODELS, FamilyConfig, NetworkConfig
from convoy.config.sections.outputs import (
    AverageConfig,
    CheckpointConfig,
    ReportConfig,
    ValidationConfig,
)
from convoy.config.sections.parallel import (
    CompilerConfig,
    DeviceConfig,
    MemoryConfig,
    PipelineConfig,
    ReplicaConfig,
)
from convoy.config.sections.precision import PrecisionConfig
from convoy.config.sections.training import (
    BatchConfig,
    FineTuneConfig,
    LearningRateConfig,
    LengthConfig,
    LossConfig,
    OptimizerConfig,
)
from convoy.errors import ConfigError
from convoy.text import printable

COMMAND_LINE = "command line"  # the source of values from flags
KEYWORD = "keyword argument"  # the source of values from Python
ENVIRONMENT = "environment"  # start of the source of values from environment variables
EXPLICIT_SOURCES = (COMMAND_LINE, KEYWORD)  # sources of values that are given for this run


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The requested configuration of a run."""

    network: NetworkConfig = field(default_factory=NetworkConfig)
    family: FamilyConfig = field(default_factory=FamilyConfig)
    data: DataConfig = field(default_factory=DataConfig)
    mixing: MixingConfig = field(default_factory=MixingConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    length: LengthConfig = field(default_factory=LengthConfig)
    learning_rate: LearningRateConfig = field(default_factory=LearningRateConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    fine_tune: FineTuneConfig = field(default_factory=FineTuneConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    replica: ReplicaConfig = field(default_factory=ReplicaConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    compiler: CompilerConfig = field(default_factory=CompilerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    average: AverageConfig = field(default_factory=AverageConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    report: ReportConfig = field(default_factory=ReportConfig)


SECTIONS: dict[str, Any] = {section.name: section.default_factory for section in fields(RunConfig)}


@cache
def option_table() -> dict[str, Option]:
    """Every option by name, in the order of the sections."""
    rows = [row for name, section in SECTIONS.items() for row in section_options(name, section)]
    table = {row.name: row for row in rows}
    assert len(table) == len(rows), "two sections have an option of the same name"
    return table


@cache
def exclusive_pairs() -> tuple[tuple[str, str], ...]:
    """Pairs of options that set the same thing: the one from the higher source applies."""
    return tuple((row.name, row.excludes.other) for row in option_table().values() if row.excludes)


def build_config(values: dict[str, Any]) -> RunConfig:
    """Build a RunConfig from flat option values; missing options keep their defaults."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for name, value in values.items():
        sections[option_table()[name].section][name] = value
    return RunConfig(**{name: SECTIONS[name](**values) for name, values in sections.items()})


def flatten_config(config: RunConfig) -> dict[str, Any]:
    """The option values of a configuration by name."""
    return {row.name: vars(vars(config)[row.section])[row.name] for row in option_table().values()}


@dataclass(frozen=True)
class Setting:
    """A value and its source."""

    value: Any
    source: str


def reads_no_files(settings: Mapping[str, Setting]) -> bool:
    """Whether --data-dir is given for this run, but the dataset has no files."""
    folder, name = settings.get("data_dir"), settings["data"].value
    if folder is None or folder.value is None or folder.source.startswith(ENVIRONMENT):
        return False
    return name in DATA and not DATA[name].on_disk


def settings_from(source: str, values: Mapping[str, Any]) -> dict[str, Setting]:
    return {name: Setting(value, source) for name, value in values.items()}


def setting_values(settings: Mapping[str, Setting]) -> dict[str, Any]:
    return {name: setting.value for name, setting in settings.items()}


@dataclass(frozen=True)
class Problem:
    """A problem with the configuration, in the user's terms."""

    subject: str  # a flag as typed, or a key with its file and line
    message: str

    def __str__(self) -> str:
        return f"{self.subject} {self.message}" if self.subject else self.message


def limit_problems(
    settings: Mapping[str, Setting], subject: Callable[[str, Setting], str]
) -> Iterator[Problem]:
    """Problems with values of the right type; `subject` returns the name to report."""
    for name, setting in settings.items():
        if (text := option_table()[name].problem(setting.value)) is not None:
            yield Problem(subject(name, setting), text)


@dataclass(frozen=True)
class DroppedWord:
    """An argument without an effect, as typed, and the reason."""

    word: str
    reason: str


def raise_problems(problems: Iterable[Problem]) -> None:
    """Raise one error that lists every problem; pass if there is none."""
    listed = list(dict.fromkeys(str(problem) for problem in problems))
    if listed:
        raise ConfigError("\n".join(listed))


Settings = dict[str, Setting]


@dataclass(frozen=True)
class RequestedOptions:
    """All settings a user has given, before sources are merged."""

    command_line: Settings = field(default_factory=dict)
    named_config: Settings = field(default_factory=dict)  # or the settings of a run to resume
    problems: list[Problem] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    # Of the emulated application, and the dataset that was recognized in --data-dir.
    dialect_defaults: Settings = field(default_factory=dict)


def merge_sources(request: RequestedOptions) -> tuple[Settings, list[Problem]]:
    """Defaults < model and data < dialect < environment < named configuration < command line."""
    environment, problems = _from_environment(request.environment)
    defaults = settings_from("default", {name: row.default for name, row in option_table().items()})
    layers = [request.dialect_defaults, environment, request.named_config, request.command_line]
    chosen = ChainMap(*reversed(layers), defaults)
    model, data = chosen["model"].value, chosen["data"].value  # unknown names have no defaults
    implied = settings_from(f"model {model}", MODELS[model].defaults if model in MODELS else {})
    implied |= settings_from(f"data {data}", DATA[data].defaults if data in DATA else {})
    return _unset_excluded([defaults, implied, *layers]), problems


def _from_environment(environment: Mapping[str, str]) -> tuple[Settings, list[Problem]]:
    settings: Settings = {}
    problems: list[Problem] = []
    for row in option_table().values():
        if word := environment.get(row.env_var or ""):
            source = f"{ENVIRONMENT} {row.env_var}"
            try:
                settings[row.name] = Setting(row.value_type.parse([word]), source)
            except OptionTypeError as error:
                problems.append(Problem(source, str(error)))
    return settings, [*problems, *limit_problems(settings, lambda _, setting: setting.source)]


def _unset_excluded(layers: list[Settings]) -> Settings:
    """Merge all layers; if a higher layer sets one option of a pair, the other is unset."""
    settings = dict(ChainMap(*reversed(layers)))
    for pair in exclusive_pairs():
        for top in reversed(layers):
            chosen = [name for name in pair if name in top and top[name].value not in (None, ())]
            if chosen:
                break
        for name in pair:
            unset = option_table()[name].unset_value
            if chosen and name not in chosen and settings[name].value != unset:
                settings[name] = Setting(unset, top[chosen[0]].source)
    return settings


def settings_as_yaml(settings: Mapping[str, Setting]) -> str:
    """YAML with one line per option. JSON values are valid YAML."""
    lines = ["# Configuration of this run. `convoy resume` reads it."]
    for name, setting in settings.items():
        value = json.dumps(setting.value, ensure_ascii=False)
        lines.append(f"{name}: {value}  # {printable(setting.source)}")
    return "\n".join(lines) + "\n"


def training_values(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """Every value that the weights depend on, alone or with others, as JSON types."""
    table = option_table()
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in setting_values(settings).items()
        if table[name].scaled_by_replicas or not table[name].changeable_on_resume
    }


def config_digest(settings: Mapping[str, Setting]) -> str:
    """SHA-256 of every value that the weights depend on."""
    table, values = option_table(), training_values(settings)
    fixed = {name: values[name] for name in values if not table[name].changeable_on_resume}
    content = json.dumps(fixed | _replica_products(settings), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def training_changes(
    old_settings: Mapping[str, Setting], new_settings: Mapping[str, Setting]
) -> list[str]:
    """`--lr was 0.1, now 0.2` for each changed option that the weights depend on."""
    table = option_table()
    changes = [
        f"{table[name].shown_flag} was {format_value(old_settings[name].value)}, "
        f"now {format_value(setting.value)}"
        for name, setting in new_settings.items()
        if not table[name].changeable_on_resume
        and name in old_settings
        and old_settings[name].value != setting.value
    ]
    old, new = _replica_products(old_settings), _replica_products(new_settings)
    changed = [name for name in old if name in new and old[name] != new[name]]
    return changes + [f"{name} was {old[name]}, now {new[name]}" for name in changed]


def _replica_products(settings: Mapping[str, Setting]) -> dict[str, int]:
    """The products that must stay the same: replicas may change if accumulation changes too.

    Only the number of micro-batches per update matters, not how replicas share them; with
    `bn_span`, the number of replicas matters as well.
    """
    table, values = option_table(), setting_values(settings)
    counts = {name: int(value) for name, value in values.items() if table[name].scaled_by_replicas}
    replicas = counts.pop("replicas", 0)
    if not values.get("half_res_training"):  # there is no fine-tuning phase
        counts.pop("fine_tune_gradient_accumulation", None)
    if not replicas or not counts:
        return {}
    products = {
        f"{table[name].shown_flag} × --replicas": counts[name] * replicas for name in counts
    }
    if values.get("bn_span", 1) > 1:
        products["--replicas (with --bn-span)"] = replicas
    return products
