"""Which network, the shape of its layers, and what only some families have."""

from dataclasses import dataclass

from convoy.config import inactive
from convoy.config.option import free_option, option


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Which network, and the shape of its layers."""

    model: str = option("resnet14", "Network to train; `convoy models` lists them.")
    resnet_version: str = option(
        "v1.5",
        "Where a bottleneck halves the image: v1.5 in its 3×3 convolution, v1 in its first.",
        choices=("v1.5", "v1"),
        idle=inactive.no_bottlenecks,
    )
    stem: str = option(
        "auto",
        "First layers: small (3×3) for little images, large (7×7 and pooling); "
        "auto follows the model.",
        choices=("auto", "small", "large"),
        idle=inactive.not_a_resnet,
    )
    shortcut_type: str = option(
        "auto",
        "Shortcut where the shape changes: A pads with zero channels, B projects, "
        "C projects in every block, first in the first of each group; auto follows the model.",
        choices=("auto", "A", "B", "C", "first"),
        idle=inactive.not_a_resnet,
    )
    conv_padding: str = option(
        "symmetric",
        "Padding of strided layers: same puts the odd pixel at the far end, as TensorFlow does.",
        choices=("symmetric", "same"),
    )
    input_image_padding: bool = option(False, "Give the images a fourth channel of zeros.")
    norm_type: str = option(
        "batch",
        "Normalization after each convolution; none gives the convolutions a bias.",
        choices=("batch", "group", "none"),
        idle=inactive.model_has_no_norms,
    )
    norm_num_groups: int = option(
        32, "Groups of group normalization.", at_least=1, idle=inactive.unless_norm("group")
    )
    norm_eps: float = option(
        1e-5, "Added to the variance in normalization.", above=0, idle=inactive.no_norms
    )
    batchnorm_momentum: float = option(
        0.1,
        "Share of a micro-batch's statistics in the running statistics.",
        above=0,
        at_most=1,
        idle=inactive.unless_norm("batch"),
    )
    zero_init_last_norm: bool = option(
        True,
        "Start the last norm of each bottleneck without projection at zero scale.",
        idle=(inactive.no_bottlenecks, inactive.no_norms, inactive.where("shortcut_type", "C")),
    )
    weight_init: str = option(
        "pytorch",
        "Rules of the first weights, as this reference application has them.",
        choices=("pytorch", "tensorflow", "popart"),
    )
    stable_norm: bool = option(
        True,
        "Variance in two passes, the mean first; off: one pass, E[x²] − E[x]².",
        idle=inactive.no_norms,
    )
    enable_fast_groupnorm: bool = option(
        False,
        "Strided groups: channel c belongs to group c mod G.",
        idle=inactive.unless_norm("group"),
    )
    full_precision_norm: bool = option(
        False,
        "Scales and offsets of norms in 32 bits in a network of 16 bits.",
        idle=(inactive.no_16_bit_arithmetic, inactive.no_norms),
    )


@dataclass(frozen=True, kw_only=True)
class FamilyConfig:
    """What only some families of networks have."""

    cardinality: int = option(
        32,
        "Groups of the 3×3 convolutions of ResNeXt.",
        at_least=1,
        at_most=4096,
        idle=inactive.unless_model("resnext"),
    )
    group_dim: int | None = option(
        None,
        "Channels in a group of a grouped convolution; unset: 4 in ResNeXt, 1 in EfficientNet.",
        at_least=1,
        at_most=4096,
        also=("--efficientnet-group-dim",),
        idle=inactive.unless_model("resnext", "efficientnet"),
    )
    expand_ratio: int = option(
        6,
        "Widening inside the blocks 2 to 7 of EfficientNet.",
        at_least=1,
        at_most=64,
        also=("--efficientnet-expand-ratio",),
        idle=inactive.not_efficientnet,
    )
    widenet: bool = option(
        False,
        "Small ResNeXt with filters four times as wide.",
        idle=(inactive.unless_model("resnext"), inactive.model_is_wide),
    )
    dropout_rate: float | None = option(
        None,
        "Dropout before the classifier; unset follows the model.",
        at_least=0,
        at_most=1,
        idle=inactive.unless_model("efficientnet", "mobilenet", "squeezenet"),
    )
    block_survival_prob: float = option(
        0.8,
        "Stochastic depth of EfficientNet: how likely the last block is kept.",
        above=0,
        at_most=1,
        idle=inactive.not_efficientnet,
    )
    squeeze_excite: bool = option(
        True, "Squeeze-and-excite in the blocks of EfficientNet.", idle=inactive.not_efficientnet
    )
    depth_divisor: int = option(
        8,
        "Widths of EfficientNet are multiples of this.",
        at_least=1,
        at_most=1024,
        idle=inactive.not_efficientnet,
    )
    top_width: int = option(
        1280,
        "Channels of EfficientNet's last convolution, before scaling; 0 leaves it out.",
        at_least=0,
        at_most=65536,
        idle=inactive.not_efficientnet,
    )
    use_relu: bool = option(
        False, "ReLU instead of swish in EfficientNet.", idle=inactive.not_efficientnet
    )
    width_coefficient: float | None = option(
        None,
        "Scale of EfficientNet's widths; unset follows the size.",
        above=0,
        at_most=100,
        idle=inactive.not_efficientnet,
    )
    depth_coefficient: float | None = option(
        None,
        "Scale of EfficientNet's depths; unset follows the size.",
        above=0,
        at_most=100,
        idle=inactive.not_efficientnet,
    )
    use_bypass: bool = option(
        False,
        "Identity around the fire modules 3, 5, 7 and 9 of SqueezeNet.",
        idle=inactive.unless_model("squeezenet"),
    )
    proxy_norm: bool = option(
        False,
        "Proxy normalization of the activations of EfficientNet.",
        idle=inactive.not_efficientnet,
    )
    proxy_epsilon: float = option(
        0.03,
        "Added to the variance in proxy normalization.",
        above=0,
        idle=(inactive.not_efficientnet, inactive.without("proxy_norm")),
    )
    proxy_recompute: bool = free_option(
        True,
        "Compute proxy normalization again in the backward pass.",
        idle=(inactive.not_efficientnet, inactive.without("proxy_norm")),
    )
