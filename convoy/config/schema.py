"""RunConfig: everything a user can ask for. Flags, YAML keys, help and docs come from here."""

from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from convoy.config.option import Option, options_of
from convoy.config.sections.batch import BatchConfig, FineTuneConfig, LengthConfig
from convoy.config.sections.checkpoint import AverageConfig, CheckpointConfig
from convoy.config.sections.data import DataConfig, MixingConfig
from convoy.config.sections.device import CompilerConfig, DeviceConfig
from convoy.config.sections.learning_rate import LearningRateConfig
from convoy.config.sections.network import FamilyConfig, NetworkConfig
from convoy.config.sections.optimizer import LossConfig, OptimizerConfig
from convoy.config.sections.parallel import MemoryConfig, PipelineConfig, ReplicaConfig
from convoy.config.sections.precision import PrecisionConfig
from convoy.config.sections.report import ReportConfig, ValidationConfig


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One run, as it was asked for."""

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


SECTIONS: dict[str, Any] = {one.name: one.default_factory for one in fields(RunConfig)}


@cache
def option_table() -> dict[str, Option]:
    """Every option by name, in the order of the sections."""
    rows = [row for name, section in SECTIONS.items() for row in options_of(name, section)]
    table = {row.name: row for row in rows}
    assert len(table) == len(rows), "an option name stands in two sections"
    return table


@cache
def mutually_exclusive() -> tuple[tuple[str, str], ...]:
    """Pairs of options that say the same in two ways: the one of the higher source wins."""
    return tuple(
        (row.name, row.declared.excludes.other)
        for row in option_table().values()
        if row.declared.excludes is not None
    )


def build_config(values: dict[str, Any]) -> RunConfig:
    """A RunConfig from flat option values; what is not given keeps its default."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for name, value in values.items():
        sections[option_table()[name].section][name] = value
    return RunConfig(**{name: SECTIONS[name](**given) for name, given in sections.items()})


def flat_values(config: RunConfig) -> dict[str, Any]:
    """The option values of a configuration, by name."""
    return {row.name: vars(vars(config)[row.section])[row.name] for row in option_table().values()}
