"""Resolve the requested options to one consistent RunConfig.

All rules between options are checked before any error is raised. No option is ignored silently: a
plan shows options without an effect and values that this version does not support; a run reports
the former and rejects the latter.
"""

import math
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from convoy.config.named_configs import read_settings
from convoy.config.option import Option, format_value
from convoy.config.schema import (
    EXPLICIT_SOURCES,
    Problem,
    RequestedOptions,
    RunConfig,
    Setting,
    Settings,
    build_config,
    flatten_config,
    merge_sources,
    option_table,
    raise_problems,
    setting_values,
    settings_from,
    training_changes,
)
from convoy.config.sections.data import DATA, DataEntry
from convoy.config.sections.network import MODELS
from convoy.errors import ConfigError
from convoy.registry import suggest
from convoy.text import pluralize

_FILE_SOURCE = re.compile(r", line \d+$")  # end of the source of a value from a file
_SHIPPED_SOURCE = re.compile(r"config (\S+), line \d+")  # source of a value from a shipped config


@dataclass(frozen=True)
class ResolvedConfig:
    """The settings with their sources, and the RunConfig of their values."""

    settings: Settings

    @cached_property
    def config(self) -> RunConfig:
        return build_config(setting_values(self.settings))

    def with_values(self, values: Mapping[str, Any], source: str) -> "ResolvedConfig":
        """Return a copy with these values replaced."""
        return ResolvedConfig(self.settings | settings_from(source, values))


def resolve(request: RequestedOptions) -> ResolvedConfig:
    """Choose one value for each option, or raise an error that lists all problems."""
    settings, problems = merge_sources(request)
    resolved = ResolvedConfig(settings)
    raise_problems([*request.problems, *problems, *check_rules(resolved.config)])
    return resolved


def read_run_settings(config: Path) -> Settings:
    """Read the `config.yaml` of a run."""
    if not config.is_file():
        if not config.parent.exists():
            raise ConfigError(f"{config.parent} does not exist")
        raise ConfigError(f"{config.parent} is not a run folder: {config.name} is missing")
    settings, problems = read_settings(config)
    raise_problems(problems)
    table = option_table()
    return {name: setting for name, setting in settings.items() if not table[name].not_resumed}


def resolve_resumed(
    run_settings: Settings, changes: Settings, problems: list[Problem], override: bool
) -> ResolvedConfig:
    """The settings of a run with changes; a change to the training results needs `override`."""
    fixed = [
        Problem(row.shown_flag, f"cannot be set: {row.fixed_reason}")
        for row in option_table().values()
        if row.fixed_reason and row.name in changes
    ]
    resolved = resolve(RequestedOptions(changes, run_settings, [*problems, *fixed], environment={}))
    differences = training_changes(run_settings, resolved.settings)
    if differences and not override:
        raise ConfigError(
            f"this would change the training results: {'; '.join(differences)}; "
            "remove the change, or add --override to resume with it"
        )
    return resolved


Rule = Callable[[RunConfig], Iterable[str]]  # yields a message for each violation
DTYPE_RULES_FLAG = "--accumulator-dtype-rules"
MEAN_REDUCE_FLAG = "--gradient-mean-reduce-re"


def simple_rule(is_violated: Callable[[RunConfig], Any], message: str) -> Rule:
    """A rule with one condition; the message may use values such as `{run.data.data}`."""
    return lambda run: [message.format(run=run)] if is_violated(run) else []


def loss_scale_is_a_doubling(run: RunConfig) -> Iterator[str]:
    """Doubling must reach --loss-scaling exactly."""
    first, last = run.loss.initial_loss_scaling, run.loss.loss_scaling
    if first is None or run.loss.auto_loss_scaling or not 0 < first < math.inf or not last > 0:
        return  # no doubling, or a limit is already reported
    flags = f"--initial-loss-scaling {first:g}", f"--loss-scaling {last:g}"
    fraction, exponent = math.frexp(last / first)
    below = math.ldexp(first, exponent - 1)
    if first > last:
        yield f"{flags[0]} is greater than {flags[1]}, which it must reach by doubling"
    elif fraction != 0.5:
        yield f"{flags[1]} cannot be reached by doubling {flags[0]}; use {below:g} or {2 * below:g}"


def split_dtype_rule(text: str) -> tuple[str, str]:
    """Split `fc.*=float32` into pattern and dtype; a missing part is empty."""
    pattern, _, word = text.rpartition("=")
    return pattern, word


def accumulator_rules_are_valid(run: RunConfig) -> Iterator[str]:
    known = option_table()["accumulator_dtype"].limit.choices
    for text in run.memory.accumulator_dtype_rules:
        pattern, word = split_dtype_rule(text)
        subject = f"{DTYPE_RULES_FLAG} {text!r}"
        if not pattern:
            yield f"{subject} is not a valid rule; use PATTERN=DTYPE, for example 'fc.*=float32'"
        elif word not in known:
            yield f"{subject} does not name a dtype; {suggest(word, known)}"


def mean_reduce_patterns_are_valid(run: RunConfig) -> Iterator[str]:
    for pattern in run.optimizer.gradient_mean_reduce_re:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            text = f"{pattern!r} is not a regular expression: {error}"
            yield f"{MEAN_REDUCE_FLAG} {text}; use a parameter name such as fc.weight"


def model_is_known(run: RunConfig) -> Iterator[str]:
    model = run.network.model
    if model not in MODELS:
        yield f"--model {model!r} is unknown; {suggest(model, MODELS)}"


def exclusive_options_are_not_combined(run: RunConfig) -> Iterator[str]:
    """The options declare which ones exclude each other: `excludes=Exclusion(…)`."""
    table, values = option_table(), flatten_config(run)
    for row in table.values():
        exclusion = row.excludes
        if exclusion is None or not exclusion.conflict:
            continue
        other = table[exclusion.other]
        are_set = [values[option.name] != option.unset_value for option in (row, other)]
        if all(are_set):
            yield f"{row.shown_flag} and {other.shown_flag} both {exclusion.conflict}; use only one"
        if exclusion.required and not any(are_set):
            yield f"{row.shown_flag} or {other.shown_flag} must {exclusion.conflict}"


def lr_multipliers_match_drops(run: RunConfig) -> Iterator[str]:
    rate = run.learning_rate
    drops = len(rate.lr_epoch_decay) + len(rate.lr_share_decay)
    rates = len(rate.lr_multipliers)
    if rates and rates != drops + 1:
        needed = f"{drops + 1} rates for {pluralize(drops, 'milestone')}"
        yield f"--lr-multipliers needs {needed}, got {rates}"


def half_res_training_can_fine_tune(run: RunConfig) -> Iterator[str]:
    fine_tune, data = run.fine_tune, _data_entry(run)
    if not fine_tune.half_res_training:
        return
    first_layer = fine_tune.fine_tune_first_trainable_layer
    needs = {
        "needs --fine-tune-epoch 1 or more": fine_tune.fine_tune_epoch < 1,
        "needs --fine-tune-first-trainable-layer": first_layer is None,
        "fine-tunes averaged weights: use --weight-avg-strategy mean or exponential": (
            run.average.weight_avg_strategy == "none"
        ),
        "fine-tunes averaged checkpoints: use --ckpts-per-epoch 1 or more": (
            not run.checkpoint.saves_checkpoints
        ),
        f"cannot train on smaller images: {run.data.data} images are always {data.image_size} "
        "pixels wide; remove it": data.fixed_size,
    }
    yield from (f"--half-res-training {text}" for text in needs if needs[text])


def forced_weight_types_differ(run: RunConfig) -> Iterator[str]:
    precision = run.precision
    for name in sorted({*precision.force_weight_to_fp16} & {*precision.force_weight_to_fp32}):
        yield f"--force-weight-to-fp16 and --force-weight-to-fp32 both contain {name!r}"


def data_dir_is_set(run: RunConfig) -> Iterator[str]:
    entry, data = _data_entry(run), run.data.data
    if entry.on_disk and run.data.data_dir is None:
        hint = f"; `convoy data fetch {data} --data-dir DIR` downloads it"
        if entry.classes_from_files:
            hint = ", which contains train/ and validation/, TFRecord files or tar archives"
        yield f"set --data-dir, or the environment variable DATA_DIR, to the {data} folder{hint}"


def sizes_fit_data(run: RunConfig) -> Iterator[str]:
    entry, data = _data_entry(run), run.data
    if entry.fixed_size and data.image_size not in (None, entry.image_size):
        yield f"--image-size must be {entry.image_size} for {data.data}, got {data.image_size}"
    if data.num_classes is not None and entry.classes is not None and not entry.classes_from_files:
        yield f"--num-classes cannot be set for {data.data}, which has {entry.classes} classes"
    if data.samples is not None and entry.on_disk:
        yield f"--samples cannot be set for {data.data}: its files determine the number of samples"


def splits_match_shards(run: RunConfig) -> Iterator[str]:
    pipeline = run.pipeline
    shards, stages = pipeline.shards, len(pipeline.pipeline_splits) + 1
    if shards is None or stages in (1, shards) or "list" in pipeline.pipeline_splits:
        return
    if shards == 1 and pipeline.pipeline_schedule == "sequential":
        return  # the stages share a device and only define where to recompute
    merge = ", or --pipeline-schedule sequential to run them all on one device"
    yield (
        f"--pipeline-splits defines {stages} stages, but --shards is {shards}; "
        f"use --shards {stages}{merge * (shards == 1)}"
    )


def memory_proportions_match_stages(run: RunConfig) -> Iterator[str]:
    values, stages = len(run.memory.available_memory_proportion), run.pipeline.stages
    if values not in (0, 1, stages):
        per_stage = f", or one for each of the {stages} stages" * (stages > 1)
        yield f"--available-memory-proportion takes one value{per_stage}, got {values}"


def bn_span_divides_replicas(run: RunConfig) -> Iterator[str]:
    span, replicas = run.replica.bn_span, run.batch.replicas
    table = option_table()
    if table["bn_span"].problem(span) or table["replicas"].problem(replicas):
        return  # already reported, and the divisors of a huge number take too long
    if replicas % span == 0:
        return
    divisors = [number for number in range(1, replicas + 1) if replicas % number == 0]
    index = bisect(divisors, span)
    spans = divisors[index - 1 : index + 1]
    counts = [replicas // span * span, (replicas // span + 1) * span]
    yield (
        f"--bn-span {span} does not divide --replicas {replicas}; use --bn-span "
        f"{' or '.join(map(str, spans))}, or --replicas "
        f"{' or '.join(str(count) for count in counts if count)}"
    )


RULES: tuple[Rule, ...] = (
    model_is_known,
    exclusive_options_are_not_combined,
    lr_multipliers_match_drops,
    simple_rule(
        lambda run: run.mixing.cutmix_lambda_low > run.mixing.cutmix_lambda_high,
        "--cutmix-lambda-low {run.mixing.cutmix_lambda_low:g} is greater than "
        "--cutmix-lambda-high {run.mixing.cutmix_lambda_high:g}",
    ),
    # The partner of an image is its neighbor in the micro-batch: two images are enough.
    simple_rule(
        lambda run: run.mixing.uses_mixing and run.batch.micro_batch_size == 1,
        "--micro-batch-size 1 is too small for mixup and CutMix, which need two images; "
        "use 2 or more",
    ),
    half_res_training_can_fine_tune,
    loss_scale_is_a_doubling,
    simple_rule(
        lambda run: run.precision.enable_fp_exceptions and run.compiler.compile,
        "--enable-fp-exceptions cannot be combined with --compile, which hides the layers; "
        "remove one of them",
    ),
    # Automatic loss scaling finds the scale by letting gradients overflow.
    simple_rule(
        lambda run: (
            run.precision.enable_fp_exceptions
            and run.loss.auto_loss_scaling
            and run.precision.precision != "32.32"
        ),
        "--enable-fp-exceptions would stop the run where --auto-loss-scaling halves the scale; "
        "remove one of them",
    ),
    forced_weight_types_differ,
    sizes_fit_data,
    mean_reduce_patterns_are_valid,
    accumulator_rules_are_valid,
    splits_match_shards,
    memory_proportions_match_stages,
    bn_span_divides_replicas,
    simple_rule(
        lambda run: run.replica.bn_span > 1 and run.network.norm_type != "batch",
        "--bn-span {run.replica.bn_span} has no effect with --norm-type {run.network.norm_type}: "
        "only batch norm has statistics to share; use --norm-type batch, or --bn-span 1",
    ),
    # A compiled backward pass is one program and cannot be split.
    simple_rule(
        lambda run: run.compiler.compile and run.pipeline.pipeline_schedule == "zero-bubble",
        "--compile does not support --pipeline-schedule zero-bubble, which splits backward passes; "
        "use 1f1b",
    ),
    simple_rule(
        lambda run: None not in (run.report.name, run.checkpoint.checkpoint_output_path),
        "--name has no effect with --output; use only one of them",
    ),
    simple_rule(
        lambda run: None not in (run.checkpoint.pretrained, run.checkpoint.init_path),
        "--pretrained and --init-path both set the initial weights; use only one",
    ),
    simple_rule(
        lambda run: run.checkpoint.epochs_per_ckpt > 0 and run.checkpoint.ckpts_per_epoch > 1,
        "--epochs-per-ckpt {run.checkpoint.epochs_per_ckpt} and --ckpts-per-epoch "
        "{run.checkpoint.ckpts_per_epoch} both set how often to save; use only one",
    ),
)


def check_rules(run: RunConfig) -> list[Problem]:
    return [Problem("", message) for rule in RULES for message in rule(run)]


def _data_entry(run: RunConfig) -> DataEntry:
    """The entry of the dataset; empty if the name is unknown, which is reported elsewhere."""
    name = run.data.data
    return DATA[name] if name in DATA else DataEntry(None, None, None, None)


@dataclass(frozen=True)
class InactiveOption:
    """An option that is set and has no effect."""

    option: str
    flag: str
    condition: str

    @property
    def reason(self) -> str:
        return f"{self.flag} has no effect {self.condition}"


def inactive_options(run: RunConfig, settings: Mapping[str, Setting]) -> list[InactiveOption]:
    """Every option that is set and has no effect, in the order of the option table."""
    defaults = {row.name: row.default for row in option_table().values()}
    defaults |= MODELS[run.network.model].defaults | DATA[run.data.data].defaults
    inactive = []
    for name, row in option_table().items():
        if name in settings and _is_user_set(settings[name], defaults[name]):
            reasons = [condition(run) for condition in row.inactive_when]
            reasons.append(row.unsupported_reason(run.device.device))
            inactive += [
                InactiveOption(name, row.shown_flag, reason) for reason in reasons if reason
            ][:1]
    return inactive


def explicit_settings(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Only the settings from the command line or keywords; a resumed run reports no others."""
    return {
        name: setting for name, setting in settings.items() if setting.source in EXPLICIT_SOURCES
    }


def _is_user_set(setting: Setting, default: Any) -> bool:
    """Whether the user chose the value for this run. Switching something off never counts.

    A file may have been written by convoy with every value, so defaults in it do not count. Nor do
    environment variables, which apply to many runs, and the defaults of a dialect.
    """
    if setting.value in (None, ()) or setting.value is False:
        return False
    chosen_in_file = _FILE_SOURCE.search(setting.source) is not None and setting.value != default
    return setting.source in EXPLICIT_SOURCES or chosen_in_file


@dataclass(frozen=True)
class UnavailableValue(Problem):
    """An option value that this version does not support."""

    option: str
    value: Any
    source: str


def unavailable_values(settings: Mapping[str, Setting]) -> list[UnavailableValue]:
    """Every value that this version does not support, in the order of the option table."""
    unavailable = []
    for name, setting in settings.items():
        row, value, source = option_table()[name], setting.value, setting.source
        if not row.is_available(value):
            origin = "" if source in EXPLICIT_SOURCES else f" ({source})"
            text = f"is not available in this version{origin}; {_suggest_fix(row, source)}"
            unavailable.append(
                UnavailableValue(
                    f"{row.shown_flag} {format_value(value)}", text, name, value, source
                )
            )
    return unavailable


def refuse_unavailable(resolved: ResolvedConfig, data_only: bool = False) -> None:
    """Raise an error for values that a run does not support, and for a missing dataset directory.

    With `data_only`, check only the options that data loading uses.
    """
    missing = [
        problem
        for problem in unavailable_values(resolved.settings)
        if not data_only or option_table()[problem.option].section in ("data", "mixing", "device")
    ]
    no_data = [Problem("", message) for message in data_dir_is_set(resolved.config)]
    raise_problems([*missing, *no_data])


def _suggest_fix(row: Option, source: str) -> str:
    usable = [value for value in row.available_values or () if value not in (None, ())]
    if row.value_type.base is bool and len(usable) == 1:
        return f"use {' '.join(row.to_cli_args(usable[0]))}"
    if usable:
        return f"use {row.shown_flag} {' or '.join(format_value(value) for value in usable)}"
    if row.value_type.is_list and source not in EXPLICIT_SOURCES:
        return f"use {row.shown_flag} without a value"
    shipped = _SHIPPED_SOURCE.match(source)
    copy = f" from a copy made with `convoy configs {shipped[1]} > FILE`" if shipped else ""
    return f"remove it{copy}"
