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
        "C projects in every block, first in the first of each group; auto follows the model.",
        one_of("auto", "A", "B", "C", "first"),
    )
    conv_padding: str = option(
        "symmetric",
        "Padding of strided layers: same puts the odd pixel at the far end, as TensorFlow does.",
        one_of("symmetric", "same"),
    )
    input_image_padding: bool = option(False, "Give the images a fourth channel of zeros.")
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
    weight_init: str = option(
        "pytorch",
        "Rules of the first weights, as this reference application has them.",
        one_of("pytorch", "tensorflow", "popart"),
    )
    stable_norm: bool = option(
        True, "Variance in two passes, the mean first; off: one pass, E[x²] − E[x]²."
    )
    enable_fast_groupnorm: bool = option(
        False, "Strided groups: channel c belongs to group c mod G."
    )
    full_precision_norm: bool = option(
        False, "Scales and offsets of norms in 32 bits in a network of 16 bits."
    )


@dataclass(frozen=True, kw_only=True)
class FamilyConfig:
    """What only some families of networks have."""

    cardinality: int = option(
        32, "Groups of the 3×3 convolutions of ResNeXt.", at_least(1, at_most=4096)
    )
    group_dim: int | None = option(
        None,
        "Channels in a group of a grouped convolution; unset: 4 in ResNeXt, 1 in EfficientNet.",
        at_least(1, at_most=4096),
        also=("--efficientnet-group-dim",),
    )
    expand_ratio: int = option(
        6,
        "Widening inside the blocks 2 to 7 of EfficientNet.",
        at_least(1, at_most=64),
        also=("--efficientnet-expand-ratio",),
    )
    widenet: bool = option(False, "Small ResNeXt with filters four times as wide.")
    dropout_rate: float | None = option(
        None, "Dropout before the classifier; unset follows the model.", at_least(0, at_most=1)
    )
    block_survival_prob: float = option(
        0.8,
        "Stochastic depth of EfficientNet: how likely the last block is kept.",
        above(0, at_most=1),
    )
    squeeze_excite: bool = option(True, "Squeeze-and-excite in the blocks of EfficientNet.")
    depth_divisor: int = option(
        8, "Widths of EfficientNet are multiples of this.", at_least(1, at_most=1024)
    )
    top_width: int = option(
        1280,
        "Channels of EfficientNet's last convolution, before scaling; 0 leaves it out.",
        at_least(0, at_most=65536),
    )
    use_relu: bool = option(False, "ReLU instead of swish in EfficientNet.")
    width_coefficient: float | None = option(
        None, "Scale of EfficientNet's widths; unset follows the size.", above(0, at_most=100)
    )
    depth_coefficient: float | None = option(
        None, "Scale of EfficientNet's depths; unset follows the size.", above(0, at_most=100)
    )
    use_bypass: bool = option(
        False, "Identity around the fire modules 3, 5, 7 and 9 of SqueezeNet."
    )
    proxy_norm: bool = option(False, "Proxy normalization of the activations of EfficientNet.")
    proxy_epsilon: float = option(0.03, "Added to the variance in proxy normalization.", above(0))
    proxy_recompute: bool = option(
        True, "Compute proxy normalization again in the backward pass.", free=True
    )
