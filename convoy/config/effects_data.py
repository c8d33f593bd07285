"""Options of the data that can do nothing in a configuration, and why."""

from convoy.config.catalog import DATA
from convoy.config.effects_keeping import Idle
from convoy.config.schema import RunConfig

AUGMENTED = ("cifar10", "cifar100", "imagenet")  # data sets that have crops and flips
ENCODED = "imagenet"  # the one whose samples are files of images


def the_data_is_made(run: RunConfig) -> str | None:
    data = run.data.data
    return None if DATA[data].on_disk else f"with --data {data}: there are no files to read"


def the_data_is_not_augmented(run: RunConfig) -> str | None:
    data = run.data.data
    return None if data in AUGMENTED else f"with --data {data}: it has no crops and flips"


def nothing_comes_from_the_host(run: RunConfig) -> str | None:
    """Synthetic images lie on the device; those of its validation do not."""
    if run.data.data == "synthetic" and run.validation.validation_mode == "none":
        return "with --data synthetic and --validation-mode none"
    return None


def nothing_is_prepared_ahead(run: RunConfig) -> str | None:
    return "with --dataloader-worker 0" if run.data.dataloader_worker == 0 else None


def every_worker_has_its_own(run: RunConfig) -> str | None:
    """Each worker prepares one micro-batch, however few are wanted ahead."""
    workers = run.data.dataloader_worker or 1
    return f"below --dataloader-worker {workers}" if run.data.prefetch_depth < workers else None


def bytes_are_normalized_on_the_device(run: RunConfig) -> str | None:
    on_host = run.data.normalization_location == "host"
    return "with --eight-bit-io" if run.data.eight_bit_io and on_host else None


def the_data_is_not_encoded(run: RunConfig) -> str | None:
    data = run.data.data
    return None if data == ENCODED else f"with --data {data}: only {ENCODED} has files of images"


def nothing_is_augmented(run: RunConfig) -> str | None:
    return None if run.data.augment else "with --no-augment"


def nothing_is_normalized(run: RunConfig) -> str | None:
    where = run.data.normalization_location
    return "with --normalization-location none" if where == "none" else None


def nothing_is_kept_in_memory(run: RunConfig) -> str | None:
    return None if run.data.dataset_cache else "with --no-dataset-cache"


def a_share_is_kept_in_memory(run: RunConfig) -> str | None:
    given = run.data.webdataset_memory_cache_ratio is not None
    return "beside --webdataset-memory-cache-ratio" if given else None


def loader_processes_keep_nothing(run: RunConfig) -> str | None:
    """Each would keep its own; the system keeps files for all of them."""
    by_others = run.data.data == ENCODED and run.data.dataloader_kind == "processes"
    works = by_others and run.data.dataloader_worker != 0
    return "with --dataloader-kind processes: the system keeps the files" if works else None


def the_data_is_not_drawn(run: RunConfig) -> str | None:
    """Others lie in memory anyway, or are a small pool."""
    data = run.data.data
    return None if data in ("shapes", ENCODED) else f"with --data {data}: it is always in memory"


def bad_records_end_the_run(run: RunConfig) -> str | None:
    return "with --bad-records error" if run.data.bad_records == "error" else None


def floats_are_mixed(run: RunConfig) -> str | None:
    """Those of validation are not mixed, and may be bytes."""
    if run.mixing.blends_on_host and run.validation.validation_mode == "none":
        return "with --hostside-image-mixing: mixup takes normalized floats"
    return None


def the_host_normalizes(run: RunConfig) -> str | None:
    return floats_are_mixed(run) if run.data.normalization_location == "device" else None


# In the order of the option table. The first reason that holds is told.
IDLE_DATA: dict[str, tuple[Idle, ...]] = {
    "data_dir": (the_data_is_made,),
    "augment": (the_data_is_not_augmented,),
    "crop_rule": (the_data_is_not_encoded, nothing_is_augmented),
    "use_bbox_info": (the_data_is_not_encoded, nothing_is_augmented),
    "normalization_location": (
        nothing_comes_from_the_host,
        the_host_normalizes,
        bytes_are_normalized_on_the_device,
    ),
    "normalize_std": (nothing_is_normalized,),
    "eight_bit_io": (nothing_comes_from_the_host, floats_are_mixed),
    "dataloader_worker": (nothing_comes_from_the_host,),
    "prefetch_depth": (
        nothing_comes_from_the_host,
        nothing_is_prepared_ahead,
        every_worker_has_its_own,
    ),
    "dataloader_kind": (the_data_is_not_encoded, nothing_is_prepared_ahead),
    "dataloader_rebatch_size": (nothing_comes_from_the_host, nothing_is_prepared_ahead),
    "dataset_cache": (the_data_is_not_drawn, loader_processes_keep_nothing),
    "dataset_cache_mb": (
        the_data_is_not_drawn,
        nothing_is_kept_in_memory,
        loader_processes_keep_nothing,
        a_share_is_kept_in_memory,
    ),
    "webdataset_memory_cache_ratio": (
        the_data_is_not_encoded,
        nothing_is_kept_in_memory,
        loader_processes_keep_nothing,
    ),
    "bad_records": (the_data_is_not_encoded,),
    "max_bad_records": (the_data_is_not_encoded, bad_records_end_the_run),
}
