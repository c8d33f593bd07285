"""From what was asked to one RunConfig: layer the sources, keep every source, check every rule.

Rules between options are a function each; all are evaluated before anything is refused.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from convoy.config.catalog import DATA, MODELS, DataEntry
from convoy.config.named import read_settings
from convoy.config.option import WrongType
from convoy.config.schema import (
    RunConfig,
    build_config,
    flat_values,
    mutually_exclusive,
    option_table,
)
from convoy.config.settings import Problem, Setting, changed, from_source, layer, refuse, values_of
from convoy.errors import ConfigError
from convoy.registry import suggest

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
    """One value for each option; everything that is wrong is refused together."""
    settings, problems = layer_sources(asked)
    resolved = Resolved.of(settings)
    refuse([*asked.problems, *problems, *broken_rules(resolved.config)])
    return resolved


def layer_sources(asked: RequestedOptions) -> tuple[Settings, list[Problem]]:
    """Defaults < model and data < dialect < environment < named configuration < command line."""
    environment, problems = _from_environment(asked.environment)
    said = [asked.dialect, environment, asked.named, asked.command_line]
    defaults = from_source("default", {name: row.default for name, row in option_table().items()})
    return _one_of_each([defaults, _brought(layer(defaults, *said)), *said]), problems


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


def settings_of_run(config: Path) -> Settings:
    """What a run's `config.yaml` says."""
    if not config.is_file():
        raise ConfigError(f"{config.parent} holds no run: there is no {config.name}")
    settings, problems = read_settings(config)
    refuse(problems)
    table = option_table()
    return {name: one for name, one in settings.items() if not table[name].declared.momentary}


def resolve_resumed(
    before: Settings, given: Settings, problems: list[Problem], override: bool
) -> Resolved:
    """The run's own values under those given now; a change of the training must be meant."""
    fixed = [
        Problem(row.flag, f"cannot be given: {row.declared.fixed}")
        for row in option_table().values()
        if row.declared.fixed and row.name in given
    ]
    resolved = resolve(RequestedOptions(given, before, [*problems, *fixed], environment={}))
    differences = changed(before, resolved.settings)
    if differences and not override:
        raise ConfigError(
            f"this would be another training: {'; '.join(differences)}; "
            "leave it out, or add --override to go on with the change"
        )
    return resolved


Rule = Callable[[RunConfig], Iterator[Problem]]
TYPES = "--accumulator-dtype-rules"
MEANS = "--gradient-mean-reduce-re"


def loss_scale_is_a_doubling(run: RunConfig) -> Iterator[Problem]:
    """Doubling must come to --loss-scaling itself: a user who names a scale expects it."""
    first, last = run.loss.initial_loss_scaling, run.loss.loss_scaling
    if first is None or run.loss.auto_loss_scaling or not 0 < first < math.inf or not last > 0:
        return  # there is no ladder, or a limit is told already
    if first > last:
        text = f"{first:g} is above --loss-scaling {last:g}, to which it is doubled"
        yield Problem("--initial-loss-scaling", text)
        return
    fraction, exponent = math.frexp(last / first)
    if fraction != 0.5:
        below = math.ldexp(first, exponent - 1)
        yield Problem(
            "--loss-scaling",
            f"{last:g} is no doubling of --initial-loss-scaling {first:g}; "
            f"use {below:g} or {2 * below:g}",
        )


def fp_exceptions_exclude_compile(run: RunConfig) -> Iterator[Problem]:
    if run.precision.enable_fp_exceptions and run.compiler.compile:
        text = "cannot look into the programs of --compile; leave one of them out"
        yield Problem("--enable-fp-exceptions", text)


def fp_exceptions_exclude_auto_scaling(run: RunConfig) -> Iterator[Problem]:
    """An automatic scale is found by letting gradients overflow."""
    wishes = run.precision.enable_fp_exceptions and run.loss.auto_loss_scaling
    if wishes and run.precision.precision != "32.32":
        text = "would stop where --auto-loss-scaling goes on with half the scale; leave one out"
        yield Problem("--enable-fp-exceptions", text)


def divided_rule(text: str) -> tuple[str, str]:
    """`fc.*=float32` → the pattern of names and the type; what lacks one of them has it empty."""
    pattern, _, word = text.rpartition("=")
    return pattern, word


def accumulator_rules_are_valid(run: RunConfig) -> Iterator[Problem]:
    known = option_table()["accumulator_dtype"].declared.limit.choices
    for text in run.memory.accumulator_dtype_rules:
        pattern, word = divided_rule(text)
        if not pattern:
            yield Problem(TYPES, f"{text!r} is no rule: write PATTERN=TYPE, as 'fc.*=float32'")
        elif word not in known:
            yield Problem(TYPES, f"{text!r} names no type; {suggest(word, known)}")


def mean_reduce_patterns_are_valid(run: RunConfig) -> Iterator[Problem]:
    for pattern in run.optimizer.gradient_mean_reduce_re:
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            text = f"{pattern!r} is no pattern: {error}; the name of a parameter is one"
            yield Problem(MEANS, f"{text}, as fc.weight")


def model_is_known(run: RunConfig) -> Iterator[Problem]:
    if run.network.model not in MODELS:
        near = suggest(run.network.model, MODELS)
        yield Problem("--model", f"{run.network.model!r} is unknown; {near}")


def exclusive_options_are_not_combined(run: RunConfig) -> Iterator[Problem]:
    """As the options declare it: `excludes=Exclusion(…)`."""
    table, values = option_table(), flat_values(run)
    for row in table.values():
        pair = row.declared.excludes
        if pair is None or not pair.both:
            continue
        other = table[pair.other]
        given = [values[one.name] != one.unset for one in (row, other)]
        if all(given):
            yield Problem(row.flag, f"and {other.flag} both {pair.both}; give one of them")
        if pair.needed and not any(given):
            yield Problem(row.flag, f"or {other.flag} must {pair.both}")


def lr_multipliers_match_drops(run: RunConfig) -> Iterator[Problem]:
    rate = run.learning_rate
    drops, given = len(rate.lr_epoch_decay) + len(rate.lr_share_decay), len(rate.lr_multipliers)
    if given and given != drops + 1:
        yield Problem(
            "--lr-multipliers", f"gives {given} rates for {drops} drops; give {drops + 1}"
        )


def cutmix_bounds_are_in_order(run: RunConfig) -> Iterator[Problem]:
    low, high = run.mixing.cutmix_lambda_low, run.mixing.cutmix_lambda_high
    if low > high:
        yield Problem("--cutmix-lambda-low", f"{low:g} is above --cutmix-lambda-high {high:g}")


def mixing_needs_two_images(run: RunConfig) -> Iterator[Problem]:
    """A partner is a neighbor in the micro-batch, around its end if need be: two will do."""
    if run.mixing.mixes and run.batch.micro_batch_size == 1:
        text = "1 leaves mixup and cutmix no second image; use --micro-batch-size 2 or more"
        yield Problem("--micro-batch-size", text)


def half_res_needs_fine_tuning(run: RunConfig) -> Iterator[Problem]:
    wish = run.fine_tune
    if not wish.half_res_training:
        return
    if wish.fine_tune_epoch < 1:
        yield Problem("--half-res-training", "needs --fine-tune-epoch 1 or more")
    if wish.fine_tune_first_trainable_layer is None:
        yield Problem("--half-res-training", "needs --fine-tune-first-trainable-layer")
    if run.average.weight_avg_strategy == "none":
        text = "fine-tunes an average: use --weight-avg-strategy mean or exponential"
        yield Problem("--half-res-training", text)
    if not run.checkpoint.saves:
        text = "fine-tunes an average of checkpoints: use --ckpts-per-epoch 1 or more"
        yield Problem("--half-res-training", text)


def half_res_needs_scalable_images(run: RunConfig) -> Iterator[Problem]:
    entry = _data(run)
    if run.fine_tune.half_res_training and entry.fixed_size:
        text = f"cannot train on smaller images: those of {run.data.data} are {entry.image_size}"
        yield Problem("--half-res-training", f"{text} pixels wide; leave it out")


def forced_weight_types_differ(run: RunConfig) -> Iterator[Problem]:
    wish = run.precision
    for name in sorted(set(wish.force_weight_to_fp16) & set(wish.force_weight_to_fp32)):
        yield Problem("--force-weight-to-fp16", f"and --force-weight-to-fp32 both name {name!r}")


def data_dir_is_given(run: RunConfig) -> Iterator[Problem]:
    entry, data = _data(run), run.data.data
    if entry.on_disk and run.data.data_dir is None:
        way = f"`convoy data fetch {data} --data-dir DIR` downloads it"
        if entry.any_classes:
            way = "one with train/ and validation/, with TFRecord shards or with tars"
        yield Problem("--data-dir", f"(or DATA_DIR) must name the folder of {data}; {way}")


def image_size_fits_data(run: RunConfig) -> Iterator[Problem]:
    entry = _data(run)
    if entry.fixed_size and run.data.image_size not in (None, entry.image_size):
        yield Problem(
            "--image-size",
            f"is {entry.image_size} for {run.data.data}, got {run.data.image_size}",
        )


def classes_and_samples_fit_data(run: RunConfig) -> Iterator[Problem]:
    made = _data(run)
    if run.data.num_classes is not None and made.classes is not None and not made.any_classes:
        yield Problem("--num-classes", f"is {made.classes} for {run.data.data} and cannot be set")
    if run.data.samples is not None and made.on_disk:
        yield Problem("--samples", f"cannot be set for {run.data.data}: the files decide")


def splits_match_shards(run: RunConfig) -> Iterator[Problem]:
    pipeline = run.pipeline
    shards, given = pipeline.shards, len(pipeline.pipeline_splits)
    if shards is None or given in (0, shards - 1) or "list" in pipeline.pipeline_splits:
        return
    folded = "; or fold them into one device with --pipeline-schedule sequential"
    if shards == 1 and pipeline.pipeline_schedule == "sequential":
        return  # the borders of stages that share a device are its recompute points
    yield Problem(
        "--pipeline-splits",
        f"gives {given + 1} stages but --shards asks for {shards}; "
        f"use --shards {given + 1}{folded * (shards == 1)}",
    )


def memory_proportions_match_stages(run: RunConfig) -> Iterator[Problem]:
    given = len(run.memory.available_memory_proportion)
    stages = run.pipeline.stages
    if given not in (0, 1, stages):
        each = f", or one for each of {stages} stages" * (stages > 1)
        text = f"takes one value{each}, got {given}"
        yield Problem("--available-memory-proportion", text)


def bn_span_divides_replicas(run: RunConfig) -> Iterator[Problem]:
    span, replicas = run.replica.bn_span, run.batch.replicas
    table = option_table()
    if table["bn_span"].problem(span) or table["replicas"].problem(replicas):
        return  # that is told already, and no divisor is near a number without a limit
    if replicas % span == 0:
        return
    fitting = [one for one in range(1, replicas + 1) if replicas % one == 0]
    spans = [
        *[one for one in fitting if one < span][-1:],
        *[one for one in fitting if one > span][:1],
    ]
    below = replicas // span * span
    counts = [one for one in (below, below + span) if one > 0]
    yield Problem(
        "--bn-span",
        f"{span} does not divide --replicas {replicas}; use --bn-span {_either(spans)}, "
        f"or --replicas {_either(counts)}",
    )


def bn_span_needs_batch_norm(run: RunConfig) -> Iterator[Problem]:
    span, norm = run.replica.bn_span, run.network.norm_type
    if span > 1 and norm != "batch":
        yield Problem(
            "--bn-span",
            f"{span} has no effect with --norm-type {norm}: only batch norm has statistics to "
            "share; use --norm-type batch, or --bn-span 1",
        )


def compile_excludes_zero_bubble(run: RunConfig) -> Iterator[Problem]:
    """A compiled backward pass is one program: its second half cannot wait."""
    if run.compiler.compile and run.pipeline.pipeline_schedule == "zero-bubble":
        text = "cannot take a backward pass apart as --pipeline-schedule zero-bubble does; use 1f1b"
        yield Problem("--compile", text)


def name_excludes_output(run: RunConfig) -> Iterator[Problem]:
    if run.report.name is not None and run.checkpoint.checkpoint_output_path is not None:
        yield Problem("--name", "has no effect beside --output; give one of them")


def pretrained_excludes_init_path(run: RunConfig) -> Iterator[Problem]:
    if run.checkpoint.pretrained is not None and run.checkpoint.init_path is not None:
        yield Problem("--pretrained", "and --init-path both give the first weights; give one")


def one_checkpoint_interval_is_given(run: RunConfig) -> Iterator[Problem]:
    wish = run.checkpoint
    if wish.epochs_per_ckpt > 0 and wish.ckpts_per_epoch > 1:
        yield Problem(
            "--epochs-per-ckpt",
            f"{wish.epochs_per_ckpt} and --ckpts-per-epoch {wish.ckpts_per_epoch} both say how "
            "often to save; give one of them",
        )


RULES: tuple[Rule, ...] = (
    model_is_known,
    exclusive_options_are_not_combined,
    lr_multipliers_match_drops,
    cutmix_bounds_are_in_order,
    mixing_needs_two_images,
    half_res_needs_fine_tuning,
    half_res_needs_scalable_images,
    loss_scale_is_a_doubling,
    fp_exceptions_exclude_compile,
    fp_exceptions_exclude_auto_scaling,
    forced_weight_types_differ,
    image_size_fits_data,
    classes_and_samples_fit_data,
    mean_reduce_patterns_are_valid,
    accumulator_rules_are_valid,
    splits_match_shards,
    memory_proportions_match_stages,
    bn_span_divides_replicas,
    bn_span_needs_batch_norm,
    compile_excludes_zero_bubble,
    name_excludes_output,
    pretrained_excludes_init_path,
    one_checkpoint_interval_is_given,
)


def broken_rules(run: RunConfig) -> list[Problem]:
    """Everything that does not fit together."""
    return [problem for rule in RULES for problem in rule(run)]


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


def _data(run: RunConfig) -> DataEntry:
    """What is known of the data set: nothing if its name is wrong, which is told elsewhere."""
    return DATA[run.data.data] if run.data.data in DATA else DataEntry(None, None, None, None)
