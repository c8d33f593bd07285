"""Of checkpoints, averages, validation and reports: what can do nothing in a run, and why."""

from collections.abc import Callable

from convoy.config.schema import RunConfig

Idle = Callable[[RunConfig], str | None]  # why an option does nothing; None: it does something


def nothing_is_saved(run: RunConfig) -> str | None:
    return None if run.checkpoint.saves else "with --ckpts-per-epoch 0"


def only_a_stop_saves(run: RunConfig) -> str | None:
    saves = run.checkpoint.saves
    return None if saves else "with --ckpts-per-epoch 0, unless the run is stopped"


def the_save_of_a_stop_must_hold(run: RunConfig) -> str | None:
    saves = run.checkpoint.saves
    return None if saves else "with --ckpts-per-epoch 0: what a stop saves must be written"


def there_is_nothing_to_average(run: RunConfig) -> str | None:
    if run.checkpoint.saves or run.average.weight_avg_strategy == "none":
        return None
    return "with --ckpts-per-epoch 0: a run averages its checkpoints, and there are none"


def nothing_is_averaged(run: RunConfig) -> str | None:
    if run.average.weight_avg_strategy == "none":
        return "with --weight-avg-strategy none: `convoy average` takes it"
    return nothing_is_saved(run)


def too_few_are_kept(run: RunConfig) -> str | None:
    kept = run.checkpoint.keep_last
    return f"above --keep-last {kept}" if 0 < kept < run.average.weight_avg_n else None


def the_average_is_a_mean(run: RunConfig) -> str | None:
    is_mean = run.average.weight_avg_strategy == "mean"
    return "with --weight-avg-strategy mean" if is_mean else None


def nobody_would_see_the_average(run: RunConfig) -> str | None:
    if run.checkpoint.saves or run.validation.validation_mode != "none":
        return None
    return "with --ckpts-per-epoch 0 and --validation-mode none: it is neither kept nor measured"


def validation_is_not_repeated(run: RunConfig) -> str | None:
    mode = run.validation.validation_mode
    return None if mode == "during" else f"with --validation-mode {mode}"


def nothing_is_validated(run: RunConfig) -> str | None:
    never = run.validation.validation_mode == "none"
    return "with --validation-mode none: `convoy validate` takes it" if never else None


def training_does_not_take_it(run: RunConfig) -> str | None:
    del run
    return "on training: `convoy validate` takes it"


def the_folder_is_given(run: RunConfig) -> str | None:
    return "beside --output" if run.checkpoint.checkpoint_output_path is not None else None


# In the order of the option table. The first reason that holds is told.
IDLE_KEEPING: dict[str, tuple[Idle, ...]] = {
    "ckpt_epochs_offset": (nothing_is_saved,),
    "keep_last": (only_a_stop_saves,),
    "on_save_error": (the_save_of_a_stop_must_hold,),
    "weight_avg_strategy": (there_is_nothing_to_average,),
    "weight_avg_n": (nothing_is_averaged, too_few_are_kept),
    "weight_avg_exp_decay": (nothing_is_averaged, the_average_is_a_mean),
    "norm_statistics": (nothing_is_averaged,),
    "ema_decay": (nobody_would_see_the_average,),
    "validation_frequency": (validation_is_not_repeated,),
    "valid_batch_size": (nothing_is_validated,),
    "random_weights": (training_does_not_take_it,),
    "repeat": (training_does_not_take_it,),
    "latency": (training_does_not_take_it,),
    "backend": (training_does_not_take_it,),
    "log_dir": (the_folder_is_given,),
    "name_suffix": (the_folder_is_given,),
}
