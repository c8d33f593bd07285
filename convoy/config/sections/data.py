"""Options of the data and its way to the device."""

from dataclasses import dataclass

from convoy.config.fields import at_least, one_of, option


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images, where they are, how they come in."""

    data: str = option(
        "shapes",
        "Data set; imagenet is any folder of images, TFRecords or tars, generated is random on the "
        "host, synthetic random on the device.",
        one_of("shapes", "cifar10", "cifar100", "imagenet", "generated", "synthetic"),
    )
    data_dir: str | None = option(
        None, "Folder of the data set.", also=("--imagenet-data-path",), env="DATA_DIR", free=True
    )
    image_size: int | None = option(
        None, "Side of the square images; unset follows data and model.", at_least(8, at_most=1024)
    )
    num_classes: int | None = option(
        None,
        "Classes; unset: those in the folder of imagenet, of the model for generated and synthetic "
        "data.",
        at_least(2),
    )
    samples: int | None = option(
        None, "Training samples of shapes, generated and synthetic data.", at_least(1)
    )
    dataset_percentage_to_use: int = option(
        100,
        "Share of the training samples that is used: always the same ones, spread over all.",
        at_least(1, at_most=100),
        also=("--webdataset-percentage-to-use",),
    )
    augment: bool = option(True, "Random crops and flips, where the data set has them.")
    crop_rule: str = option(
        "pytorch",
        "Random crops of imagenet as that application drew them: pytorch 8 … 100 % of the area, "
        "tensorflow 5 … 100 %.",
        one_of("pytorch", "tensorflow"),
    )
    use_bbox_info: bool = option(
        False, "Draw crops again that miss the object's box; for imagenet."
    )
    normalization_location: str = option(
        "host",
        "Where pixels are normalized; none sends raw 0 … 255 to the network.",
        one_of("host", "device", "none"),
    )
    normalize_std: bool = option(
        True, "Divide by the standard deviation too; off only subtracts the mean."
    )
    eight_bit_io: bool = option(
        False, "Send pixels to the device as bytes, and normalize them there."
    )
    dataloader_worker: int | None = option(
        None,
        "Workers that prepare images, 0: the loop itself; unset: 1, of imagenet one for each core. "
        "Never changes a bit.",
        at_least(0, at_most=256),
        also=("--pipeline-num-parallel", "--num-workers"),
        free=True,
    )
    prefetch_depth: int = option(
        3, "Micro-batches prepared ahead.", at_least(1, at_most=255), free=True
    )
    dataloader_kind: str = option(
        "threads",
        "Who the workers are. Processes survive a decoder that crashes. Never changes a bit.",
        one_of("threads", "processes"),
        free=True,
    )
    dataloader_rebatch_size: int | None = option(
        None,
        "Samples that a worker prepares at a time; unset: a micro-batch, of imagenet its share.",
        at_least(1),
        free=True,
    )
    dataset_cache: bool = option(
        True, "Keep samples in memory: encoded ones of imagenet, drawn ones of shapes.", free=True
    )
    dataset_cache_mb: int = option(
        512,
        "Megabytes of memory that kept samples may take, in each process.",
        at_least(1),
        free=True,
    )
    webdataset_memory_cache_ratio: float | None = option(
        None,
        "Share of the encoded samples that is kept, instead of a number of megabytes.",
        at_least(0, at_most=1),
        free=True,
    )
    bad_records: str = option(
        "error",
        "What a record does that cannot be read: end the run, or leave its place to another one "
        "of its class.",
        one_of("error", "skip"),
    )
    max_bad_records: int = option(
        100, "Bad records that a run may skip; one more ends it.", at_least(0), free=True
    )
    seed: int = option(0, "Seed of everything random.", at_least(0))


@dataclass(frozen=True, kw_only=True)
class MixingConfig:
    """Images and labels mixed within a micro-batch."""

    mixup_alpha: float = option(
        0.0, "Mixup with weights of Beta(α, α); 0 is off.", at_least(0, at_most=1e3)
    )
    cutmix_lambda_low: float = option(
        0.0,
        "Cutmix: least share of an image that stays; 0 and 0, or 1 and 1, are off.",
        at_least(0, at_most=1),
    )
    cutmix_lambda_high: float = option(
        0.0, "Cutmix: largest share of an image that stays.", at_least(0, at_most=1)
    )
    cutmix_version: int | None = option(
        None,
        "How cutmix draws the share: 1 at random around the lower bound, 2 always the lower "
        "bound; unset: evenly between the bounds.",
        at_least(1, at_most=2),
    )
    cutmix_disable_prob: float = option(
        0.0, "Chance that cutmix leaves a micro-batch alone.", at_least(0, at_most=1)
    )
    hostside_image_mixing: bool = option(
        False, "Mix on the host instead of the device. Never changes a bit.", free=True
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
