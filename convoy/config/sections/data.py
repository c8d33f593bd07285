"""Which images, how they reach the device, and how they are mixed."""

from dataclasses import dataclass
from functools import partial

from convoy.config.catalog import AUGMENTED, DATA, ENCODED
from convoy.config.option import Run, free_option, option, unless, when, where

no_files_to_read = unless(
    "data", *(name for name in DATA if DATA[name].on_disk), why="there are no files to read"
)
no_image_files = unless("data", ENCODED, why=f"only {ENCODED} has files of images")
data_is_in_memory = unless("data", "shapes", ENCODED, why="it is always in memory")
no_workers = where("dataloader_worker", 0)
crop_option = partial(option, idle=(no_image_files, unless("augment", True)))
no_cache = unless("dataset_cache", True)
# Synthetic images lie on the device; those of its validation do not.
no_images_from_host = when(
    lambda run: run.data.data == "synthetic" and run.validation.validation_mode == "none",
    "with --data synthetic and --validation-mode none",
)
# Images of validation are not mixed, and may be bytes.
mixup_on_host = when(
    lambda run: run.mixing.blends_on_host and run.validation.validation_mode == "none",
    "with --hostside-image-mixing: mixup takes normalized floats",
)
bytes_are_normalized_on_device = when(
    lambda run: run.data.eight_bit_io and run.data.normalization_location == "host",
    "with --eight-bit-io",
)
# Each process would keep its own; the system keeps files for all of them.
loader_processes_keep_nothing = when(
    lambda run: (
        run.data.data == ENCODED
        and run.data.dataloader_kind == "processes"
        and run.data.dataloader_worker != 0
    ),
    "with --dataloader-kind processes: the system keeps the files",
)
cache_ratio_is_given = when(
    lambda run: run.data.webdataset_memory_cache_ratio is not None,
    "beside --webdataset-memory-cache-ratio",
)
synthetic_is_not_mixed = when(
    lambda run: run.data.data == "synthetic" and run.mixing.mixes,
    "with --data synthetic: its one micro-batch stays as it is",
)
no_cutmix = when(lambda run: not run.mixing.cuts, "without --cutmix-lambda-high")
no_mixing = when(lambda run: not run.mixing.mixes, "without --mixup-alpha or --cutmix-lambda-high")


def one_micro_batch_per_worker(run: Run) -> str | None:
    """Each worker prepares one micro-batch, however few are wanted ahead."""
    workers = run.data.dataloader_worker or 1
    return f"below --dataloader-worker {workers}" if run.data.prefetch_depth < workers else None


def mixup_normalizes_on_host(run: Run) -> str | None:
    return mixup_on_host(run) if run.data.normalization_location == "device" else None


def cutmix_takes_lower_bound(run: Run) -> str | None:
    """Without a lower bound the upper one still says that there is cutmix."""
    low, high = run.mixing.cutmix_lambda_low, run.mixing.cutmix_lambda_high
    version = run.mixing.cutmix_version
    if version is None or not 0 < low < high:
        return None
    return f"with --cutmix-version {version}: it takes the lower bound"


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images, where they are, how they come in."""

    data: str = option(
        "shapes",
        "Data set; imagenet is any folder of images, TFRecords or tars, generated is random on the "
        "host, synthetic random on the device.",
        choices=("shapes", "cifar10", "cifar100", "imagenet", "generated", "synthetic"),
    )
    data_dir: str | None = free_option(
        None,
        "Folder of the data set.",
        also=("--imagenet-data-path",),
        env="DATA_DIR",
        idle=no_files_to_read,
    )
    image_size: int | None = option(
        None, "Side of the square images; unset follows data and model.", between=(8, 1024)
    )
    num_classes: int | None = option(
        None,
        "Classes; unset: those in the folder of imagenet, of the model for generated and synthetic "
        "data.",
        at_least=2,
    )
    samples: int | None = option(
        None, "Training samples of shapes, generated and synthetic data.", at_least=1
    )
    dataset_percentage_to_use: int = option(
        100,
        "Share of the training samples that is used: always the same ones, spread over all.",
        between=(1, 100),
        also=("--webdataset-percentage-to-use",),
    )
    augment: bool = option(
        True,
        "Random crops and flips, where the data set has them.",
        idle=unless("data", *AUGMENTED, why="it has no crops and flips"),
    )
    crop_rule: str = crop_option(
        "pytorch",
        "Random crops of imagenet as that application drew them: pytorch 8 … 100 % of the area, "
        "tensorflow 5 … 100 %.",
        choices=("pytorch", "tensorflow"),
    )
    use_bbox_info: bool = crop_option(
        False, "Draw crops again that miss the object's box; for imagenet."
    )
    normalization_location: str = option(
        "host",
        "Where pixels are normalized; none sends raw 0 … 255 to the network.",
        choices=("host", "device", "none"),
        idle=(no_images_from_host, mixup_normalizes_on_host, bytes_are_normalized_on_device),
    )
    normalize_std: bool = option(
        True,
        "Divide by the standard deviation too; off only subtracts the mean.",
        idle=unless("normalization_location", "host", "device"),
    )
    eight_bit_io: bool = option(
        False,
        "Send pixels to the device as bytes, and normalize them there.",
        idle=(no_images_from_host, mixup_on_host),
    )
    dataloader_worker: int | None = free_option(
        None,
        "Workers that prepare images, 0: the loop itself; unset: 1, of imagenet one for each core. "
        "Never changes a bit.",
        between=(0, 256),
        also=("--pipeline-num-parallel", "--num-workers"),
        idle=no_images_from_host,
    )
    prefetch_depth: int = free_option(
        3,
        "Micro-batches prepared ahead.",
        between=(1, 255),
        idle=(no_images_from_host, no_workers, one_micro_batch_per_worker),
    )
    dataloader_kind: str = free_option(
        "threads",
        "Who the workers are. Processes survive a decoder that crashes. Never changes a bit.",
        choices=("threads", "processes"),
        idle=(no_image_files, no_workers),
    )
    dataloader_rebatch_size: int | None = free_option(
        None,
        "Samples that a worker prepares at a time; unset: a micro-batch, of imagenet its share.",
        at_least=1,
        idle=(no_images_from_host, no_workers),
    )
    dataset_cache: bool = free_option(
        True,
        "Keep samples in memory: encoded ones of imagenet, drawn ones of shapes.",
        idle=(data_is_in_memory, loader_processes_keep_nothing),
    )
    dataset_cache_mb: int = free_option(
        512,
        "Megabytes of memory that kept samples may take, in each process.",
        at_least=1,
        idle=(data_is_in_memory, no_cache, loader_processes_keep_nothing, cache_ratio_is_given),
    )
    webdataset_memory_cache_ratio: float | None = free_option(
        None,
        "Share of the encoded samples that is kept, instead of a number of megabytes.",
        between=(0, 1),
        idle=(no_image_files, no_cache, loader_processes_keep_nothing),
    )
    bad_records: str = option(
        "error",
        "What a record does that cannot be read: end the run, or leave its place to another one "
        "of its class.",
        choices=("error", "skip"),
        idle=no_image_files,
    )
    max_bad_records: int = free_option(
        100,
        "Bad records that a run may skip; one more ends it.",
        at_least=0,
        idle=(no_image_files, unless("bad_records", "skip")),
    )
    seed: int = option(0, "Seed of everything random.", at_least=0)


@dataclass(frozen=True, kw_only=True)
class MixingConfig:
    """Images and labels mixed within a micro-batch."""

    mixup_alpha: float = option(
        0.0,
        "Mixup with weights of Beta(α, α); 0 is off.",
        between=(0, 1e3),
        idle=synthetic_is_not_mixed,
    )
    cutmix_lambda_low: float = option(
        0.0,
        "Cutmix: least share of an image that stays; 0 and 0, or 1 and 1, are off.",
        between=(0, 1),
    )
    cutmix_lambda_high: float = option(
        0.0,
        "Cutmix: largest share of an image that stays.",
        between=(0, 1),
        idle=(synthetic_is_not_mixed, cutmix_takes_lower_bound),
    )
    cutmix_version: int | None = option(
        None,
        "How cutmix draws the share: 1 at random around the lower bound, 2 always the lower "
        "bound; unset: evenly between the bounds.",
        between=(1, 2),
        idle=(synthetic_is_not_mixed, no_cutmix),
    )
    cutmix_disable_prob: float = option(
        0.0,
        "Chance that cutmix leaves a micro-batch alone.",
        between=(0, 1),
        idle=(synthetic_is_not_mixed, no_cutmix),
    )
    hostside_image_mixing: bool = free_option(
        False,
        "Mix on the host instead of the device. Never changes a bit.",
        idle=(synthetic_is_not_mixed, no_mixing),
    )

    @property
    def cuts(self) -> bool:
        """Whether there is cutmix."""
        return (self.cutmix_lambda_low, self.cutmix_lambda_high) not in ((0, 0), (1, 1))

    @property
    def mixes(self) -> bool:
        return self.mixup_alpha > 0 or self.cuts

    @property
    def blends_on_host(self) -> bool:
        """Whether workers need normalized images: a box is cut from bytes as well."""
        return self.hostside_image_mixing and self.mixup_alpha > 0
