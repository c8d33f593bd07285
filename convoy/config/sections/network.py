"""Options of the network itself."""

from dataclasses import dataclass

from convoy.config.fields import above, at_least, one_of, option


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Which network, and the shape of its layers."""

    model: str = option("resnet14", "Network to train; `convoy models` lists them.")
    resnet_version: str = option(
        "v1.5",
        "Where a bottleneck halves the image: v1.5 in its 3×3 convolution, v1 in its first.",
        one_of("v1.5", "v1"),
    )
    stem: str = option(
        "auto",
        "First layers: small (3×3) for little images, large (7×7 and pooling); "
        "auto follows the model.",
        one_of("auto", "small", "large"),
    )
    shortcut_type: str = option(
        "auto",
        "Shortcut where the shape changes: A pads with zero channels, B projects, "
        "C projects in every block; auto follows the model.",
        one_of("auto", "A", "B", "C"),
    )
    norm_type: str = option(
        "batch",
        "Normalization after each convolution; none gives the convolutions a bias.",
        one_of("batch", "group", "none"),
    )
    norm_num_groups: int = option(32, "Groups of group normalization.", at_least(1))
    norm_eps: float = option(1e-5, "Added to the variance in normalization.", above(0))
    batchnorm_momentum: float = option(
        0.1, "Share of a micro-batch's statistics in the running statistics.", above(0, at_most=1)
    )
    zero_init_last_norm: bool = option(
        True, "Start the last norm of each bottleneck without projection at zero scale."
    )
