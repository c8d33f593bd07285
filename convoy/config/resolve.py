"""From what was asked to one RunConfig: layer the sources, keep every source, check every rule.

Rules between options are all evaluated before anything is refused.
"""

import math
import os
import re
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping
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
from convoy.config.settings import (
    Problem,
    Setting,
    beyond_limits,
    changed,
    from_source,
    layer,
    refuse,
    values_of,
)
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
        if word := environment.get(row.declared.env or ""):
            source = f"environment {row.declared.env}"
            try:
                settings[row.name] = Setting(row.kind.read([word]), source)
            except WrongType as wrong:
                problems.append(Problem(source, str(wrong)))
    return settings, [*problems, *beyond_limits(settings, lambda _, setting: setting.source)]


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


Rule = Callable[[RunConfig], Iterable[Problem]]
TYPES = "--accumulator-dtype-rules"
MEANS = "--gradient-mean-reduce-re"


def refused(subject: str, holds: Callable[[RunConfig], Any], why: str) -> Rule:
    """A rule of one condition; the reason may name values of the run, as `{run.data.data}`."""
    return lambda run: [Problem(subject, why.format(run=run))] if holds(run) else []


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
        text = f"gives {given} rates for {drops} drops; give {drops + 1}"
        yield Problem("--lr-multipliers", text)


def half_res_training_can_fine_tune(run: RunConfig) -> Iterator[Problem]:
    fine_tune, data = run.fine_tune, _data(run)
    if not fine_tune.half_res_training:
        return
    needs = {
        "needs --fine-tune-epoch 1 or more": fine_tune.fine_tune_epoch < 1,
        "needs --fine-tune-first-trainable-layer": (
            fine_tune.fine_tune_first_trainable_layer is None
        ),
        "fine-tunes an average: use --weight-avg-strategy mean or exponential": (
            run.average.weight_avg_strategy == "none"
        ),
        "fine-tunes an average of checkpoints: use --ckpts-per-epoch 1 or more": (
            not run.checkpoint.saves
        ),
        f"cannot train on smaller images: those of {run.data.data} are {data.image_size} pixels "
        "wide; leave it out": data.fixed_size,
    }
    yield from (Problem("--half-res-training", text) for text, holds in needs.items() if holds)


def forced_weight_types_differ(run: RunConfig) -> Iterator[Problem]:
    precision = run.precision
    for name in sorted({*precision.force_weight_to_fp16} & {*precision.force_weight_to_fp32}):
        yield Problem("--force-weight-to-fp16", f"and --force-weight-to-fp32 both name {name!r}")


def data_dir_is_given(run: RunConfig) -> Iterator[Problem]:
    entry, data = _data(run), run.data.data
    if entry.on_disk and run.data.data_dir is None:
        way = f"`convoy data fetch {data} --data-dir DIR` downloads it"
        if entry.any_classes:
            way = "one with train/ and validation/, with TFRecord shards or with tars"
        yield Problem("--data-dir", f"(or DATA_DIR) must name the folder of {data}; {way}")


def sizes_fit_data(run: RunConfig) -> Iterator[Problem]:
    entry, data = _data(run), run.data
    if entry.fixed_size and data.image_size not in (None, entry.image_size):
        text = f"is {entry.image_size} for {data.data}, got {data.image_size}"
        yield Problem("--image-size", text)
    if data.num_classes is not None and entry.classes is not None and not entry.any_classes:
        yield Problem("--num-classes", f"is {entry.classes} for {data.data} and cannot be set")
    if data.samples is not None and entry.on_disk:
        yield Problem("--samples", f"cannot be set for {data.data}: the files decide")


def splits_match_shards(run: RunConfig) -> Iterator[Problem]:
    pipeline = run.pipeline
    shards, given = pipeline.shards, len(pipeline.pipeline_splits)
    if shards is None or given in (0, shards - 1) or "list" in pipeline.pipeline_splits:
        return
    if shards == 1 and pipeline.pipeline_schedule == "sequential":
        return  # the borders of stages that share a device are its recompute points
    folded = "; or fold them into one device with --pipeline-schedule sequential"
    yield Problem(
        "--pipeline-splits",
        f"gives {given + 1} stages but --shards asks for {shards}; "
        f"use --shards {given + 1}{folded * (shards == 1)}",
    )


def memory_proportions_match_stages(run: RunConfig) -> Iterator[Problem]:
    given, stages = len(run.memory.available_memory_proportion), run.pipeline.stages
    if given not in (0, 1, stages):
        each = f", or one for each of {stages} stages" * (stages > 1)
        yield Problem("--available-memory-proportion", f"takes one value{each}, got {given}")


def bn_span_divides_replicas(run: RunConfig) -> Iterator[Problem]:
    span, replicas = run.replica.bn_span, run.batch.replicas
    table = option_table()
    if table["bn_span"].problem(span) or table["replicas"].problem(replicas):
        return  # that is told already, and no divisor is near a number without a limit
    if replicas % span == 0:
        return
    divisors = [number for number in range(1, replicas + 1) if replicas % number == 0]
    place = bisect(divisors, span)
    spans = divisors[place - 1 : place + 1]
    counts = [replicas // span * span, (replicas // span + 1) * span]
    yield Problem(
        "--bn-span",
        f"{span} does not divide --replicas {replicas}; use --bn-span "
        f"{' or '.join(map(str, spans))}, or --replicas "
        f"{' or '.join(str(count) for count in counts if count)}",
    )


RULES: tuple[Rule, ...] = (
    model_is_known,
    exclusive_options_are_not_combined,
    lr_multipliers_match_drops,
    refused(
        "--cutmix-lambda-low",
        lambda run: run.mixing.cutmix_lambda_low > run.mixing.cutmix_lambda_high,
        "{run.mixing.cutmix_lambda_low:g} is above "
        "--cutmix-lambda-high {run.mixing.cutmix_lambda_high:g}",
    ),
    # A partner is a neighbor in the micro-batch, around its end if need be: two will do.
    refused(
        "--micro-batch-size",
        lambda run: run.mixing.mixes and run.batch.micro_batch_size == 1,
        "1 leaves mixup and cutmix no second image; use --micro-batch-size 2 or more",
    ),
    half_res_training_can_fine_tune,
    loss_scale_is_a_doubling,
    refused(
        "--enable-fp-exceptions",
        lambda run: run.precision.enable_fp_exceptions and run.compiler.compile,
        "cannot look into the programs of --compile; leave one of them out",
    ),
    # An automatic scale is found by letting gradients overflow.
    refused(
        "--enable-fp-exceptions",
        lambda run: (
            run.precision.enable_fp_exceptions
            and run.loss.auto_loss_scaling
            and run.precision.precision != "32.32"
        ),
        "would stop where --auto-loss-scaling goes on with half the scale; leave one out",
    ),
    forced_weight_types_differ,
    sizes_fit_data,
    mean_reduce_patterns_are_valid,
    accumulator_rules_are_valid,
    splits_match_shards,
    memory_proportions_match_stages,
    bn_span_divides_replicas,
    refused(
        "--bn-span",
        lambda run: run.replica.bn_span > 1 and run.network.norm_type != "batch",
        "{run.replica.bn_span} has no effect with --norm-type {run.network.norm_type}: only batch "
        "norm has statistics to share; use --norm-type batch, or --bn-span 1",
    ),
    # A compiled backward pass is one program: its second half cannot wait.
    refused(
        "--compile",
        lambda run: run.compiler.compile and run.pipeline.pipeline_schedule == "zero-bubble",
        "cannot take a backward pass apart as --pipeline-schedule zero-bubble does; use 1f1b",
    ),
    refused(
        "--name",
        lambda run: None not in (run.report.name, run.checkpoint.checkpoint_output_path),
        "has no effect beside --output; give one of them",
    ),
    refused(
        "--pretrained",
        lambda run: None not in (run.checkpoint.pretrained, run.checkpoint.init_path),
        "and --init-path both give the first weights; give one",
    ),
    refused(
        "--epochs-per-ckpt",
        lambda run: run.checkpoint.epochs_per_ckpt > 0 and run.checkpoint.ckpts_per_epoch > 1,
        "{run.checkpoint.epochs_per_ckpt} and --ckpts-per-epoch {run.checkpoint.ckpts_per_epoch} "
        "both say how often to save; give one of them",
    ),
)


def broken_rules(run: RunConfig) -> list[Problem]:
    """Everything that does not fit together."""
    return [problem for rule in RULES for problem in rule(run)]


def _data(run: RunConfig) -> DataEntry:
    """What is known of the data set: nothing if its name is wrong, which is told elsewhere."""
    return DATA[run.data.data] if run.data.data in DATA else DataEntry(None, None, None, None)
