"""Which images, how they reach the device, and how they are mixed."""

from dataclasses import dataclass

from convoy.config import inactive
from convoy.config.option import free_option, option


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
        idle=inactive.no_files_to_read,
    )
    image_size: int | None = option(
        None, "Side of the square images; unset follows data and model.", at_least=8, at_most=1024
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
        at_least=1,
        at_most=100,
        also=("--webdataset-percentage-to-use",),
    )
    augment: bool = option(
        True,
        "Random crops and flips, where the data set has them.",
        idle=inactive.data_is_not_augmented,
    )
    crop_rule: str = option(
        "pytorch",
        "Random crops of imagenet as that application drew them: pytorch 8 … 100 % of the area, "
        "tensorflow 5 … 100 %.",
        choices=("pytorch", "tensorflow"),
        idle=(inactive.no_image_files, inactive.no_augmentation),
    )
    use_bbox_info: bool = option(
        False,
        "Draw crops again that miss the object's box; for imagenet.",
        idle=(inactive.no_image_files, inactive.no_augmentation),
    )
    normalization_location: str = option(
        "host",
        "Where pixels are normalized; none sends raw 0 … 255 to the network.",
        choices=("host", "device", "none"),
        idle=(
            inactive.no_images_from_host,
            inactive.mixup_normalizes_on_host,
            inactive.bytes_are_normalized_on_device,
        ),
    )
    normalize_std: bool = option(
        True,
        "Divide by the standard deviation too; off only subtracts the mean.",
        only_with={"normalization_location": ("host", "device")},
    )
    eight_bit_io: bool = option(
        False,
        "Send pixels to the device as bytes, and normalize them there.",
        idle=(inactive.no_images_from_host, inactive.mixup_on_host),
    )
    dataloader_worker: int | None = free_option(
        None,
        "Workers that prepare images, 0: the loop itself; unset: 1, of imagenet one for each core. "
        "Never changes a bit.",
        at_least=0,
        at_most=256,
        also=("--pipeline-num-parallel", "--num-workers"),
        idle=inactive.no_images_from_host,
    )
    prefetch_depth: int = free_option(
        3,
        "Micro-batches prepared ahead.",
        at_least=1,
        at_most=255,
        idle=(
            inactive.no_images_from_host,
            inactive.no_workers,
            inactive.one_micro_batch_per_worker,
        ),
    )
    dataloader_kind: str = free_option(
        "threads",
        "Who the workers are. Processes survive a decoder that crashes. Never changes a bit.",
        choices=("threads", "processes"),
        idle=(inactive.no_image_files, inactive.no_workers),
    )
    dataloader_rebatch_size: int | None = free_option(
        None,
        "Samples that a worker prepares at a time; unset: a micro-batch, of imagenet its share.",
        at_least=1,
        idle=(inactive.no_images_from_host, inactive.no_workers),
    )
    dataset_cache: bool = free_option(
        True,
        "Keep samples in memory: encoded ones of imagenet, drawn ones of shapes.",
        idle=(inactive.data_is_in_memory, inactive.loader_processes_keep_nothing),
    )
    dataset_cache_mb: int = free_option(
        512,
        "Megabytes of memory that kept samples may take, in each process.",
        at_least=1,
        idle=(
            inactive.data_is_in_memory,
            inactive.no_cache,
            inactive.loader_processes_keep_nothing,
            inactive.cache_ratio_is_given,
        ),
    )
    webdataset_memory_cache_ratio: float | None = free_option(
        None,
        "Share of the encoded samples that is kept, instead of a number of megabytes.",
        at_least=0,
        at_most=1,
        idle=(inactive.no_image_files, inactive.no_cache, inactive.loader_processes_keep_nothing),
    )
    bad_records: str = option(
        "error",
        "What a record does that cannot be read: end the run, or leave its place to another one "
        "of its class.",
        choices=("error", "skip"),
        idle=inactive.no_image_files,
    )
    max_bad_records: int = free_option(
        100,
        "Bad records that a run may skip; one more ends it.",
        at_least=0,
        idle=(inactive.no_image_files, inactive.unless("bad_records", "skip")),
    )
    seed: int = option(0, "Seed of everything random.", at_least=0)


@dataclass(frozen=True, kw_only=True)
class MixingConfig:
    """Images and labels mixed within a micro-batch."""

    mixup_alpha: float = option(
        0.0,
        "Mixup with weights of Beta(α, α); 0 is off.",
        at_least=0,
        at_most=1e3,
        idle=inactive.synthetic_is_not_mixed,
    )
    cutmix_lambda_low: float = option(
        0.0,
        "Cutmix: least share of an image that stays; 0 and 0, or 1 and 1, are off.",
        at_least=0,
        at_most=1,
    )
    cutmix_lambda_high: float = option(
        0.0,
        "Cutmix: largest share of an image that stays.",
        at_least=0,
        at_most=1,
        idle=(inactive.synthetic_is_not_mixed, inactive.cutmix_takes_lower_bound),
    )
    cutmix_version: int | None = option(
        None,
        "How cutmix draws the share: 1 at random around the lower bound, 2 always the lower "
        "bound; unset: evenly between the bounds.",
        at_least=1,
        at_most=2,
        idle=(inactive.synthetic_is_not_mixed, inactive.no_cutmix),
    )
    cutmix_disable_prob: float = option(
        0.0,
        "Chance that cutmix leaves a micro-batch alone.",
        at_least=0,
        at_most=1,
        idle=(inactive.synthetic_is_not_mixed, inactive.no_cutmix),
    )
    hostside_image_mixing: bool = free_option(
        False,
        "Mix on the host instead of the device. Never changes a bit.",
        idle=(inactive.synthetic_is_not_mixed, inactive.no_mixing),
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
