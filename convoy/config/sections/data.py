"""Options of the data and its way to the device."""

from dataclasses import dataclass

from convoy.config.fields import at_least, one_of, option


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Which images, where they are, how they come in."""

    data: str = option(
        "shapes",
        "Data set; generated is random on the host, synthetic random on the device.",
        one_of("shapes", "cifar10", "cifar100", "generated", "synthetic"),
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
    augment: bool = option(True, "Random crops and flips, where the data set has them.")
    normalization_location: str = option(
        "host",
        "Where pixels are normalized; none sends raw 0 … 255 to the network.",
        one_of("host", "device", "none"),
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
    seed: int = option(0, "Seed of everything random.", at_least(0))
