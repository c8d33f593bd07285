"""Which network, the shape of its layers, and what only some families have."""

from dataclasses import dataclass
from functools import partial

from convoy.config.catalog import MODELS
from convoy.config.option import Condition, Run, free_option, option, unless, when, where, without
from convoy.config.sections.precision import no_16_bit_arithmetic

_FAMILIES = {
    "resnet": "ResNet",
    "resnext": "ResNeXt",
    "efficientnet": "EfficientNet",
    "mobilenet": "MobileNet",
    "squeezenet": "SqueezeNet",
}


def unless_model(*families: str) -> Condition:
    """Only networks of these families have it."""
    owners = " and ".join(_FAMILIES[family] for family in families)
    verb = "has" if len(families) == 1 else "have"
    return when(
        lambda run: MODELS[run.network.model].family not in families,
        f"with --model {{run.network.model}}: only {owners} {verb} it",
    )


def unless_norm(norm_type: str) -> Condition:
    """Only norms of this type have it."""
    of_type = unless("norm_type", norm_type)
    return lambda run: no_norms(run) or of_type(run)


def no_norms(run: Run) -> str | None:
    return model_has_no_norms(run) or where("norm_type", "none")(run)


not_a_resnet = unless_model("resnet", "resnext")
no_bottlenecks = when(
    lambda run: not MODELS[run.network.model].bottleneck,
    "with --model {run.network.model}: it has no bottlenecks",
)
model_is_wide = when(
    lambda run: not MODELS[run.network.model].small,
    "with --model {run.network.model}: it is wide already",
)
model_has_no_norms = when(
    lambda run: MODELS[run.network.model].family == "squeezenet",
    "with --model squeezenet: it has no norms",
)
not_efficientnet = unless_model("efficientnet")
no_proxy_norm = (not_efficientnet, without("proxy_norm"))
efficientnet_option = partial(option, idle=not_efficientnet)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Which network, and the shape of its layers."""

    model: str = option("resnet14", "Network to train; `convoy models` lists them.")
    resnet_version: str = option(
        "v1.5",
        "Where a bottleneck halves the image: v1.5 in its 3×3 convolution, v1 in its first.",
        choices=("v1.5", "v1"),
        idle=no_bottlenecks,
    )
    stem: str = option(
        "auto",
        "First layers: small (3×3) for little images, large (7×7 and pooling); "
        "auto follows the model.",
        choices=("auto", "small", "large"),
        idle=not_a_resnet,
    )
    shortcut_type: str = option(
        "auto",
        "Shortcut where the shape changes: A pads with zero channels, B projects, "
        "C projects in every block, first in the first of each group; auto follows the model.",
        choices=("auto", "A", "B", "C", "first"),
        idle=not_a_resnet,
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
        idle=model_has_no_norms,
    )
    norm_num_groups: int = option(
        32, "Groups of group normalization.", at_least=1, idle=unless_norm("group")
    )
    norm_eps: float = option(
        1e-5, "Added to the variance in normalization.", above=0, idle=no_norms
    )
    batchnorm_momentum: float = option(
        0.1,
        "Share of a micro-batch's statistics in the running statistics.",
        above=0,
        at_most=1,
        idle=unless_norm("batch"),
    )
    zero_init_last_norm: bool = option(
        True,
        "Start the last norm of each bottleneck without projection at zero scale.",
        idle=(no_bottlenecks, no_norms, where("shortcut_type", "C")),
    )
    weight_init: str = option(
        "pytorch",
        "Rules of the first weights, as this reference application has them.",
        choices=("pytorch", "tensorflow", "popart"),
    )
    stable_norm: bool = option(
        True, "Variance in two passes, the mean first; off: one pass, E[x²] − E[x]².", idle=no_norms
    )
    enable_fast_groupnorm: bool = option(
        False, "Strided groups: channel c belongs to group c mod G.", idle=unless_norm("group")
    )
    full_precision_norm: bool = option(
        False,
        "Scales and offsets of norms in 32 bits in a network of 16 bits.",
        idle=(no_16_bit_arithmetic, no_norms),
    )


@dataclass(frozen=True, kw_only=True)
class FamilyConfig:
    """What only some families of networks have."""

    cardinality: int = option(
        32,
        "Groups of the 3×3 convolutions of ResNeXt.",
        between=(1, 4096),
        idle=unless_model("resnext"),
    )
    group_dim: int | None = option(
        None,
        "Channels in a group of a grouped convolution; unset: 4 in ResNeXt, 1 in EfficientNet.",
        between=(1, 4096),
        also=("--efficientnet-group-dim",),
        idle=unless_model("resnext", "efficientnet"),
    )
    expand_ratio: int = efficientnet_option(
        6,
        "Widening inside the blocks 2 to 7 of EfficientNet.",
        between=(1, 64),
        also=("--efficientnet-expand-ratio",),
    )
    widenet: bool = option(
        False,
        "Small ResNeXt with filters four times as wide.",
        idle=(unless_model("resnext"), model_is_wide),
    )
    dropout_rate: float | None = option(
        None,
        "Dropout before the classifier; unset follows the model.",
        between=(0, 1),
        idle=unless_model("efficientnet", "mobilenet", "squeezenet"),
    )
    block_survival_prob: float = efficientnet_option(
        0.8,
        "Stochastic depth of EfficientNet: how likely the last block is kept.",
        above=0,
        at_most=1,
    )
    squeeze_excite: bool = efficientnet_option(
        True, "Squeeze-and-excite in the blocks of EfficientNet."
    )
    depth_divisor: int = efficientnet_option(
        8, "Widths of EfficientNet are multiples of this.", between=(1, 1024)
    )
    top_width: int = efficientnet_option(
        1280,
        "Channels of EfficientNet's last convolution, before scaling; 0 leaves it out.",
        between=(0, 65536),
    )
    use_relu: bool = efficientnet_option(False, "ReLU instead of swish in EfficientNet.")
    width_coefficient: float | None = efficientnet_option(
        None, "Scale of EfficientNet's widths; unset follows the size.", above=0, at_most=100
    )
    depth_coefficient: float | None = efficientnet_option(
        None, "Scale of EfficientNet's depths; unset follows the size.", above=0, at_most=100
    )
    use_bypass: bool = option(
        False,
        "Identity around the fire modules 3, 5, 7 and 9 of SqueezeNet.",
        idle=unless_model("squeezenet"),
    )
    proxy_norm: bool = efficientnet_option(
        False, "Proxy normalization of the activations of EfficientNet."
    )
    proxy_epsilon: float = option(
        0.03, "Added to the variance in proxy normalization.", above=0, idle=no_proxy_norm
    )
    proxy_recompute: bool = free_option(
        True, "Compute proxy normalization again in the backward pass.", idle=no_proxy_norm
    )
