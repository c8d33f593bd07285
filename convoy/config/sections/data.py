"""The datasets by name, and the options for loading, augmenting and mixing images."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from convoy.config.option import Run, condition, option, option_is_not, runtime_option
from convoy.registry import Registry


@dataclass(frozen=True)
class DataEntry:
    """A dataset by name. The user chooses a size or count that is None."""

    classes: int | None
    image_size: int | None
    train: int | None
    validation: int | None
    on_disk: bool = False
    fixed_size: bool = False
    classes_from_files: bool = False  # the files decide; `classes` is the usual number
    defaults: dict[str, Any] = field(default_factory=dict)


# About 99 % after half a minute on two cores: docs/benchmarks.md.
_SHAPES_DEFAULTS = {"epoch": 3.0, "warmup_epoch": 1.0}
_CIFAR_DEFAULTS = {"epoch": 20.0, "warmup_epoch": 1.0, "micro_batch_size": 128}

AUGMENTED_DATA = ("cifar10", "cifar100", "imagenet")  # datasets with random crops and flips
DEFAULT_VALIDATION_SHARE = 0.1  # of the images of each class
ENCODED_DATA = "imagenet"  # the dataset whose samples are image files

DATA = Registry(
    "dataset",
    {
        "shapes": DataEntry(10, 32, 8_000, 2_000, defaults=_SHAPES_DEFAULTS),
        "cifar10": DataEntry(10, 32, 50_000, 10_000, True, True, defaults=_CIFAR_DEFAULTS),
        "cifar100": DataEntry(100, 32, 50_000, 10_000, True, True, defaults=_CIFAR_DEFAULTS),
        "imagenet": DataEntry(1000, None, 1_281_167, 50_000, True, classes_from_files=True),
        "generated": DataEntry(None, None, 2_048, 512),
        "synthetic": DataEntry(None, None, 2_048, 512),
    },
)

no_files = option_is_not(
    "data", *(name for name in DATA if DATA[name].on_disk), reason="there are no files to read"
)
no_image_files = option_is_not("data", ENCODED_DATA, reason=f"only {ENCODED_DATA} has image files")
data_is_in_memory = option_is_not(
    "data", "shapes", ENCODED_DATA, reason="the dataset is always in memory"
)
no_workers = condition(lambda run: run.data.dataloader_worker == 0, "with --num-workers 0")
crop_option = partial(option, inactive_when=(no_image_files, option_is_not("augment", True)))
no_cache = option_is_not("dataset_cache", True)
# Synthetic training images are on the device, those for validation are not.
no_images_from_host = condition(
    lambda run: run.data.data == "synthetic" and run.validation.validation_mode == "none",
    "with --data synthetic and --validation-mode none",
)
# Validation images are not mixed and may be bytes.
mixup_on_host = condition(
    lambda run: run.mixing.uses_host_mixup and run.validation.validation_mode == "none",
    "with --hostside-image-mixing: mixup needs normalized floats",
)
bytes_are_normalized_on_device = condition(
    lambda run: run.data.eight_bit_io and run.data.normalization_location == "host",
    "with --eight-bit-io",
)
# Every process would have its own cache; the page cache of the system serves all of them.
no_cache_in_loader_processes = condition(
    lambda run: (
        run.data.data == ENCODED_DATA
        and run.data.dataloader_kind == "processes"
        and run.data.dataloader_worker != 0
    ),
    "with --dataloader-kind processes: the page cache of the system keeps the files",
)
cache_ratio_is_set = condition(
    lambda run: run.data.webdataset_memory_cache_ratio is not None,
    "with --webdataset-memory-cache-ratio",
)
synthetic_is_not_mixed = condition(
    lambda run: run.data.data == "synthetic" and run.mixing.uses_mixing,
    "with --data synthetic: its only micro-batch is not mixed",
)
no_cutmix = condition(lambda run: not run.mixing.uses_cutmix, "without --cutmix-lambda-high")
no_mixing = condition(
    lambda run: not run.mixing.uses_mixing, "without --mixup-alpha or --cutmix-lambda-high"
)


def prefetch_below_workers(run: Run) -> str | None:
    """Every worker prepares a micro-batch, however small the prefetch depth is."""
    workers = run.data.dataloader_worker or 1
    return f"below --num-workers {workers}" if run.data.prefetch_depth < workers else None


def mixup_normalizes_on_host(run: Run) -> str | None:
    return mixup_on_host(run) if run.data.normalization_location == "device" else None


def cutmix_takes_lower_bound(run: Run) -> str | None:
    """With a lower bound of 0, the upper bound still enables CutMix."""
    low, high = run.mixing.cutmix_lambda_low, run.mixing.cutmix_lambda_high
    version = run.mixing.cutmix_version
    if version is None or not 0 < low < high:
        return None
    return f"with --cutmix-version {version}: only the lower bound is used"


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Data loading."""

    data: str = option(
        "shapes",
        "Dataset; by default the one that --data-dir contains. imagenet reads any folder of "
        "images, TFRecord files or tar archives; generated creates random images on the host, "
        "synthetic on the device; package.module:function selects your own function that returns "
        "a training and a validation dataset.",
        choices=tuple(DATA),
        or_import_path=True,
    )
    data_dir: str | None = runtime_option(
        None,
        "Folder of the dataset.",
        aliases=("--imagenet-data-path",),
        metavar="DIR",
        env_var="DATA_DIR",
        inactive_when=no_files,
    )
    validation_share: float = option(
        DEFAULT_VALIDATION_SHARE,
        "Fraction of the images of each class to validate with, if the class folders are directly "
        "in --data-dir and not in train/ and validation/. The file names decide which.",
        between=(0.001, 0.9),
        inactive_when=no_image_files,
    )
    image_size: int | None = option(
        None,
        "Input image size in pixels. Default: set by dataset and model.",
        between=(8, 1024),
    )
    num_classes: int | None = option(
        None,
        "Number of classes. Default: the number in the dataset; for generated and synthetic data, "
        "set by the model.",
        at_least=2,
    )
    samples: int | None = option(
        None, "Number of training samples of shapes, generated and synthetic data.", at_least=1
    )
    dataset_percentage_to_use: int = option(
        100,
        "Percentage of the training samples to use: a fixed subset, spread evenly over the "
        "dataset.",
        between=(1, 100),
        aliases=("--webdataset-percentage-to-use",),
    )
    augment: bool = option(
        True,
        "Apply random crops and flips, if the dataset supports them.",
        inactive_when=option_is_not(
            "data", *AUGMENTED_DATA, reason="the dataset has no random crops and flips"
        ),
    )
    crop_rule: str = crop_option(
        "pytorch",
        "Scale of random resized crops (imagenet only), as in Graphcore's examples: pytorch 8–100 "
        "% of the image area, tensorflow 5–100 %. tensorflow also rounds the position of "
        "validation crops down.",
        choices=("pytorch", "tensorflow"),
    )
    use_bbox_info: bool = crop_option(
        False, "Redraw random crops that miss the bounding box of the object (imagenet only)."
    )
    normalization_location: str = option(
        "host",
        "Where pixels are normalized. With none, the network receives raw values from 0 to 255.",
        choices=("host", "device", "none"),
        inactive_when=(
            no_images_from_host,
            mixup_normalizes_on_host,
            bytes_are_normalized_on_device,
        ),
    )
    normalize_std: bool = option(
        True,
        "Divide by the standard deviation when normalizing. If off, only subtract the mean.",
        inactive_when=option_is_not("normalization_location", "host", "device"),
    )
    eight_bit_io: bool = option(
        False,
        "Transfer images to the device as uint8 and normalize them there.",
        inactive_when=(no_images_from_host, mixup_on_host),
    )
    dataloader_worker: int | None = runtime_option(
        None,
        "Number of workers that prepare images; 0 prepares them in the training loop. Default: "
        "one per core for imagenet, otherwise 1. Does not change results.",
        between=(0, 256),
        aliases=("--pipeline-num-parallel", "--num-workers"),
        help_flag="--num-workers",
        inactive_when=no_images_from_host,
    )
    prefetch_depth: int = runtime_option(
        3,
        "Number of micro-batches to prepare ahead.",
        between=(1, 255),
        inactive_when=(no_images_from_host, no_workers, prefetch_below_workers),
    )
    dataloader_kind: str = runtime_option(
        "threads",
        "Run the data workers as threads or as processes. With processes, the run survives a "
        "crash of the image decoder. Does not change results.",
        choices=("threads", "processes"),
        inactive_when=(no_image_files, no_workers),
    )
    dataloader_rebatch_size: int | None = runtime_option(
        None,
        "Number of samples that a worker prepares at a time. Default: a micro-batch; for "
        "imagenet, a micro-batch divided by the number of workers.",
        at_least=1,
        inactive_when=(no_images_from_host, no_workers),
    )
    dataset_cache: bool = runtime_option(
        True,
        "Cache samples in memory: encoded files for imagenet, rendered images for shapes.",
        inactive_when=(data_is_in_memory, no_cache_in_loader_processes),
    )
    dataset_cache_mb: int = runtime_option(
        512,
        "Maximum size of the sample cache of each process, in megabytes.",
        at_least=1,
        inactive_when=(
            data_is_in_memory,
            no_cache,
            no_cache_in_loader_processes,
            cache_ratio_is_set,
        ),
    )
    webdataset_memory_cache_ratio: float | None = runtime_option(
        None,
        "Fraction of the encoded samples to cache, instead of --dataset-cache-mb.",
        between=(0, 1),
        inactive_when=(no_image_files, no_cache, no_cache_in_loader_processes),
    )
    bad_records: str = option(
        "error",
        "What to do with a record that cannot be read: stop with an error, or skip it and use "
        "another sample of its class.",
        choices=("error", "skip"),
        inactive_when=no_image_files,
    )
    max_bad_records: int = runtime_option(
        100,
        "Maximum number of bad records to skip; the run stops if there are more.",
        at_least=0,
        inactive_when=(no_image_files, option_is_not("bad_records", "skip")),
    )
    seed: int = option(0, "Seed of all random numbers.", at_least=0)


@dataclass(frozen=True, kw_only=True)
class MixingConfig:
    """Mixup and CutMix."""

    mixup_alpha: float = option(
        0.0,
        "Alpha of mixup; 0 disables mixup. Mixing weights are drawn from Beta(alpha, alpha).",
        between=(0, 1e3),
        inactive_when=synthetic_is_not_mixed,
    )
    cutmix_lambda_low: float = option(
        0.0,
        "CutMix: smallest fraction of an image to keep. CutMix is disabled if both bounds are 0 "
        "or both are 1.",
        between=(0, 1),
    )
    cutmix_lambda_high: float = option(
        0.0,
        "CutMix: largest fraction of an image to keep.",
        between=(0, 1),
        inactive_when=(synthetic_is_not_mixed, cutmix_takes_lower_bound),
    )
    cutmix_version: int | None = option(
        None,
        "How CutMix chooses the fraction to keep: 1 draws it around the lower bound, 2 always "
        "uses the lower bound. Default: uniform between the bounds.",
        between=(1, 2),
        inactive_when=(synthetic_is_not_mixed, no_cutmix),
    )
    cutmix_disable_prob: float = option(
        0.0,
        "Probability that CutMix leaves a micro-batch unchanged.",
        between=(0, 1),
        inactive_when=(synthetic_is_not_mixed, no_cutmix),
    )
    hostside_image_mixing: bool = runtime_option(
        False,
        "Apply mixup and CutMix on the host instead of the device. Does not change results.",
        inactive_when=(synthetic_is_not_mixed, no_mixing),
    )

    @property
    def uses_cutmix(self) -> bool:
        return (self.cutmix_lambda_low, self.cutmix_lambda_high) not in ((0, 0), (1, 1))

    @property
    def uses_mixing(self) -> bool:
        return self.mixup_alpha > 0 or self.uses_cutmix

    @property
    def uses_host_mixup(self) -> bool:
        """Whether workers need normalized images. CutMix alone also works on bytes."""
        return self.hostside_image_mixing and self.mixup_alpha > 0
