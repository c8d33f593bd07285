"""Options of the data and its way to the device."""

from dataclasses import dataclass

from convoy.config.fields import at_least, not_yet, one_of, option

# `imagenet` is known to plans; its readers are not built.
_READABLE = ("shapes", "cifar10", "cifar100", "generated", "synthetic")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images, where they are, how they come in."""

    data: str = not_yet(
        option(
            "shapes",
            "Data set; generated is random on the host, synthetic random on the device.",
            one_of("shapes", "cifar10", "cifar100", "imagenet", "generated", "synthetic"),
        ),
        *_READABLE,
    )
    data_dir: str | None = option(
        None, "Folder of the data set.", also=("--imagenet-data-path",), env="DATA_DIR", free=True
    )
    image_size: int | None = option(
        None, "Side of the square images; unset follows data and model.", at_least(8, at_most=1024)
    )
    num_classes: int | None = option(
        None, "Classes of generated and synthetic data; unset follows the model.", at_least(2)
    )
    samples: int | None = option(
        None, "Training samples of shapes, generated and synthetic data.", at_least(1)
    )
    dataset_percentage_to_use: int = not_yet(
        option(
            100,
            "Share of the training samples that is used.",
            at_least(1, at_most=100),
            also=("--webdataset-percentage-to-use",),
        )
    )
    augment: bool = option(True, "Random crops and flips, where the data set has them.")
    use_bbox_info: bool = not_yet(
        option(False, "Draw crops again that miss the object's box; for imagenet.")
    )
    normalization_location: str = option(
        "host",
        "Where pixels are normalized; none sends raw 0 … 255 to the network.",
        one_of("host", "device", "none"),
    )
    normalize_std: bool = not_yet(
        option(True, "Divide by the standard deviation too; off only subtracts the mean.")
    )
    eight_bit_io: bool = option(
        False, "Send pixels to the device as bytes, and normalize them there."
    )
    dataloader_worker: int = option(
        1,
        "Threads that prepare images; 0 prepares them in the loop. Never changes a bit.",
        at_least(0, at_most=256),
        also=("--pipeline-num-parallel", "--num-workers"),
        free=True,
    )
    prefetch_depth: int = option(
        3, "Micro-batches prepared ahead.", at_least(1, at_most=255), free=True
    )
    dataloader_rebatch_size: int | None = not_yet(
        option(None, "Samples in the pieces that a worker prepares.", at_least(1), free=True)
    )
    dataset_cache: bool = not_yet(option(True, "Keep samples in memory.", free=True))
    webdataset_memory_cache_ratio: float | None = not_yet(
        option(
            None, "Share of a data set of tars kept in memory.", at_least(0, at_most=1), free=True
        )
    )
    seed: int = option(0, "Seed of everything random.", at_least(0))


@dataclass(frozen=True, kw_only=True)
class MixingConfig:
    """Images and labels mixed within a micro-batch."""

    mixup_alpha: float = not_yet(
        option(0.0, "Mixup with weights of Beta(α, α); 0 is off.", at_least(0, at_most=1e3))
    )
    cutmix_lambda_low: float = not_yet(
        option(
            0.0,
            "Cutmix: least share of an image that stays; 0 and 0, or 1 and 1, are off.",
            at_least(0, at_most=1),
        )
    )
    cutmix_lambda_high: float = not_yet(
        option(0.0, "Cutmix: largest share of an image that stays.", at_least(0, at_most=1))
    )
    cutmix_version: int | None = not_yet(
        option(
            None,
            "How cutmix draws the share: 1 at random around the lower bound, 2 always the lower "
            "bound; unset: evenly between the bounds.",
            at_least(1, at_most=2),
        )
    )
    cutmix_disable_prob: float = not_yet(
        option(0.0, "Chance that cutmix leaves a micro-batch alone.", at_least(0, at_most=1))
    )
    hostside_image_mixing: bool = not_yet(
        option(False, "Mix on the host instead of the device.", free=True)
    )
