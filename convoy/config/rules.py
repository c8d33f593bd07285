"""Rules between options, one function each. All of them are heard before anything is refused."""

from collections.abc import Callable, Iterator

from convoy.config.catalog import DATA, MODELS, DataEntry
from convoy.config.problems import Problem
from convoy.config.rules_loss import LOSS_RULES
from convoy.config.schema import RunConfig, option_table
from convoy.config.sum_rules import means_have_patterns, rules_of_sums_have_types
from convoy.registry import suggest

Rule = Callable[[RunConfig], Iterator[Problem]]


def the_model_is_known(run: RunConfig) -> Iterator[Problem]:
    if run.network.model not in MODELS:
        near = suggest(run.network.model, MODELS)
        yield Problem("--model", f"{run.network.model!r} is unknown; {near}")


def one_length_is_given(run: RunConfig) -> Iterator[Problem]:
    given = [one for one in (run.length.epoch, run.length.updates) if one is not None]
    if len(given) > 1:
        yield Problem("--epoch", "and --updates both set the length; give one of them")
    if not given:
        yield Problem("--epoch", "or --updates must set the length")


def one_rate_is_given(run: RunConfig) -> Iterator[Problem]:
    rate = run.learning_rate
    if rate.lr is not None and rate.base_learning_rate_exponent is not None:
        yield Problem("--lr", "and --base-learning-rate-exponent both set the rate; give one")
    if rate.lr is None and rate.base_learning_rate_exponent is None:
        yield Problem("--lr", "or --base-learning-rate-exponent must set the rate")


def one_rhythm_of_rates_is_given(run: RunConfig) -> Iterator[Problem]:
    rate = run.learning_rate
    if rate.lr_drops is not None and rate.lr_scheduler_freq:
        yield Problem("--lr-drops", "and --lr-scheduler-freq both say when; give one of them")


def one_end_of_rates_is_given(run: RunConfig) -> Iterator[Problem]:
    rate = run.learning_rate
    usual = option_table()["poly_lr_end_ratio"].default
    if rate.abs_end_learning_rate is not None and rate.poly_lr_end_ratio != usual:
        text = "and --poly-lr-end-ratio both set the last rate; give one of them"
        yield Problem("--abs-end-learning-rate", text)


def one_decay_of_squares_is_given(run: RunConfig) -> Iterator[Problem]:
    wish, usual = run.optimizer, option_table()["rmsprop_decay"].default
    if wish.rmsprop_base_decay_exp is not None and wish.rmsprop_decay != usual:
        text = "and --rmsprop-decay both set the decay; give one of them"
        yield Problem("--rmsprop-base-decay-exp", text)


def multipliers_fit_drops(run: RunConfig) -> Iterator[Problem]:
    rate = run.learning_rate
    drops, given = len(rate.lr_epoch_decay) + len(rate.lr_share_decay), len(rate.lr_multipliers)
    if given and given != drops + 1:
        yield Problem(
            "--lr-multipliers", f"gives {given} rates for {drops} drops; give {drops + 1}"
        )


def mixing_bounds_are_in_order(run: RunConfig) -> Iterator[Problem]:
    low, high = run.mixing.cutmix_lambda_low, run.mixing.cutmix_lambda_high
    if low > high:
        yield Problem("--cutmix-lambda-low", f"{low:g} is above --cutmix-lambda-high {high:g}")


def mixing_has_partners(run: RunConfig) -> Iterator[Problem]:
    """A partner is a neighbor in the micro-batch, around its end if need be: two will do."""
    if run.mixing.mixes and run.batch.micro_batch_size == 1:
        text = "1 leaves mixup and cutmix no second image; use --micro-batch-size 2 or more"
        yield Problem("--micro-batch-size", text)


def halves_are_finished(run: RunConfig) -> Iterator[Problem]:
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


def halves_have_their_size(run: RunConfig) -> Iterator[Problem]:
    entry = _data(run)
    if run.fine_tune.half_res_training and entry.fixed_size:
        text = f"cannot train on smaller images: those of {run.data.data} are {entry.image_size}"
        yield Problem("--half-res-training", f"{text} pixels wide; leave it out")


def weights_have_one_type(run: RunConfig) -> Iterator[Problem]:
    wish = run.precision
    for name in sorted(set(wish.force_weight_to_fp16) & set(wish.force_weight_to_fp32)):
        yield Problem("--force-weight-to-fp16", f"and --force-weight-to-fp32 both name {name!r}")


def files_have_a_folder(run: RunConfig) -> Iterator[Problem]:
    entry, data = _data(run), run.data.data
    if entry.on_disk and run.data.data_dir is None:
        way = f"`convoy data fetch {data} --data-dir DIR` downloads it"
        if entry.any_classes:
            way = "one with train/ and validation/, with TFRecord shards or with tars"
        yield Problem("--data-dir", f"(or DATA_DIR) must name the folder of {data}; {way}")


def images_have_their_size(run: RunConfig) -> Iterator[Problem]:
    entry = _data(run)
    if entry.fixed_size and run.data.image_size not in (None, entry.image_size):
        yield Problem(
            "--image-size",
            f"is {entry.image_size} for {run.data.data}, got {run.data.image_size}",
        )


def sizes_are_for_made_data(run: RunConfig) -> Iterator[Problem]:
    made = _data(run)
    if run.data.num_classes is not None and made.classes is not None and not made.any_classes:
        yield Problem("--num-classes", f"is {made.classes} for {run.data.data} and cannot be set")
    if run.data.samples is not None and made.on_disk:
        yield Problem("--samples", f"cannot be set for {run.data.data}: the files decide")


def splits_fit_shards(run: RunConfig) -> Iterator[Problem]:
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


def proportions_fit_stages(run: RunConfig) -> Iterator[Problem]:
    given = len(run.memory.available_memory_proportion)
    stages = run.pipeline.shards or len(run.pipeline.pipeline_splits) + 1
    if given not in (0, 1, stages):
        text = f"takes one value, or one for each of {stages} stages, got {given}"
        yield Problem("--available-memory-proportion", text)


def spans_divide_the_replicas(run: RunConfig) -> Iterator[Problem]:
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


def spans_are_for_batch_norm(run: RunConfig) -> Iterator[Problem]:
    span, norm = run.replica.bn_span, run.network.norm_type
    if span > 1 and norm != "batch":
        yield Problem(
            "--bn-span",
            f"{span} has no effect with --norm-type {norm}: only batch norm has statistics to "
            "share; use --norm-type batch, or --bn-span 1",
        )


def _either(numbers: list[int]) -> str:
    return " or ".join(map(str, numbers))


def _data(run: RunConfig) -> DataEntry:
    """What is known of the data set: nothing if its name is wrong, which is told elsewhere."""
    return DATA[run.data.data] if run.data.data in DATA else DataEntry(None, None, None, None)


def programs_are_whole(run: RunConfig) -> Iterator[Problem]:
    """A compiled backward pass is one program: its second half cannot wait."""
    if run.compiler.compile and run.pipeline.pipeline_schedule == "zero-bubble":
        text = "cannot take a backward pass apart as --pipeline-schedule zero-bubble does; use 1f1b"
        yield Problem("--compile", text)


def a_run_has_one_name(run: RunConfig) -> Iterator[Problem]:
    if run.report.name is not None and run.checkpoint.checkpoint_output_path is not None:
        yield Problem("--name", "has no effect beside --output; give one of them")


def first_weights_have_one_origin(run: RunConfig) -> Iterator[Problem]:
    if run.checkpoint.pretrained is not None and run.checkpoint.init_path is not None:
        yield Problem("--pretrained", "and --init-path both give the first weights; give one")


def checkpoints_have_one_rhythm(run: RunConfig) -> Iterator[Problem]:
    wish = run.checkpoint
    if wish.epochs_per_ckpt > 0 and wish.ckpts_per_epoch > 1:
        yield Problem(
            "--epochs-per-ckpt",
            f"{wish.epochs_per_ckpt} and --ckpts-per-epoch {wish.ckpts_per_epoch} both say how "
            "often to save; give one of them",
        )


def reports_have_one_rhythm(run: RunConfig) -> Iterator[Problem]:
    if run.report.log_freq is not None and run.report.logs_per_epoch is not None:
        yield Problem("--log-freq", "and --logs-per-epoch both say how often; give one of them")


RULES: tuple[Rule, ...] = (
    the_model_is_known,
    one_length_is_given,
    one_rate_is_given,
    one_rhythm_of_rates_is_given,
    one_end_of_rates_is_given,
    one_decay_of_squares_is_given,
    multipliers_fit_drops,
    mixing_bounds_are_in_order,
    mixing_has_partners,
    halves_are_finished,
    halves_have_their_size,
    *LOSS_RULES,
    weights_have_one_type,
    images_have_their_size,
    sizes_are_for_made_data,
    means_have_patterns,
    rules_of_sums_have_types,
    splits_fit_shards,
    proportions_fit_stages,
    spans_divide_the_replicas,
    spans_are_for_batch_norm,
    programs_are_whole,
    a_run_has_one_name,
    first_weights_have_one_origin,
    checkpoints_have_one_rhythm,
    reports_have_one_rhythm,
)


def broken_rules(run: RunConfig) -> list[Problem]:
    """Everything that does not fit together."""
    return [problem for rule in RULES for problem in rule(run)]
