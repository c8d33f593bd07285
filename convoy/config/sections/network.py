"""The networks by name, and the options for their layers."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from convoy.config.option import (
    Condition,
    Run,
    condition,
    option,
    option_is,
    option_is_not,
    option_is_unset,
    runtime_option,
)
from convoy.config.sections.precision import no_16_bit_arithmetic
from convoy.registry import Registry


@dataclass(frozen=True)
class ModelEntry:
    """A network by name, with its defaults."""

    family: str
    depth: int  # layers, blocks or the number in the name, depending on the family
    image_size: int
    bottleneck: bool = False  # blocks of three convolutions: 1×1, 3×3, 1×1

    @property
    def is_small(self) -> bool:
        """Whether the network is designed for 32 × 32 images."""
        return self.image_size == 32

    @property
    def classes(self) -> int:
        return 10 if self.is_small else 1000

    @property
    def defaults(self) -> dict[str, Any]:
        """Option defaults. EfficientNet and MobileNet need few groups: widths divide by 8."""
        is_mobile = self.family in ("efficientnet", "mobilenet")
        return {"norm_num_groups": 4 if is_mobile else 16 if self.is_small else 32}


# Where two networks have the same depth, the plain name is that for small images.
_RESNETS = {
    **{f"resnet{depth}": ModelEntry("resnet", depth, 32) for depth in (8, 14, 20, 32, 44, 56, 110)},
    **{f"resnet{depth}": ModelEntry("resnet", depth, 32, True) for depth in (11, 29, 38, 47, 65)},
    "resnet56-bottleneck": ModelEntry("resnet", 56, 32, True),
    **{f"resnet{depth}": ModelEntry("resnet", depth, 224) for depth in (10, 18, 34)},
    "resnet14-large": ModelEntry("resnet", 14, 224, True),
    **{f"resnet{depth}": ModelEntry("resnet", depth, 224, True) for depth in (26, 50, 101, 152)},
}
_RESNEXT_DEPTHS = {32: (11, 29, 38, 47, 56, 65), 224: (14, 26, 50, 101, 152)}  # by image size
_RESNEXTS = {
    f"resnext{depth}": ModelEntry("resnext", depth, image_size, True)
    for image_size, depths in _RESNEXT_DEPTHS.items()
    for depth in depths
}
_EFFICIENTNET_IMAGES = (224, 240, 260, 300, 380, 456, 528, 600)  # B0 … B7
_EFFICIENTNETS = {
    "efficientnet-cifar": ModelEntry("efficientnet", 0, 32),
    **{
        f"efficientnet-b{number}": ModelEntry("efficientnet", number, image_size)
        for number, image_size in enumerate(_EFFICIENTNET_IMAGES)
    },
}
_OTHERS = {
    "mobilenet": ModelEntry("mobilenet", 17, 224),
    "mobilenet-v3-small": ModelEntry("mobilenet", 11, 224),
    "mobilenet-v3-large": ModelEntry("mobilenet", 15, 224),
    "mobilenet-v3-small-published": ModelEntry("mobilenet", 11, 224),
    "mobilenet-v3-large-published": ModelEntry("mobilenet", 15, 224),
    "squeezenet": ModelEntry("squeezenet", 8, 224),
}
MODELS = Registry("model", _RESNETS | _RESNEXTS | _EFFICIENTNETS | _OTHERS)
USER_FAMILY = "user"  # of networks that users define and register

_FAMILIES = {
    "resnet": "ResNet",
    "resnext": "ResNeXt",
    "efficientnet": "EfficientNet",
    "mobilenet": "MobileNet",
    "squeezenet": "SqueezeNet",
}


def family_is_not(*families: str) -> Condition:
    """The network belongs to none of these families, which alone have the option."""
    names = " and ".join(_FAMILIES[family] for family in families)
    verb = "has" if len(families) == 1 else "have"
    return condition(
        lambda run: MODELS[run.network.model].family not in families,
        f"with --model {{run.network.model}}: only {names} {verb} this option",
    )


def norm_type_is_not(norm_type: str) -> Condition:
    """The norms are of another type, or there are none."""
    other_type = option_is_not("norm_type", norm_type)
    return lambda run: no_norms(run) or other_type(run)


def no_norms(run: Run) -> str | None:
    return model_has_no_norms(run) or option_is("norm_type", "none")(run)


not_a_resnet = family_is_not("resnet", "resnext")
no_bottlenecks = condition(
    lambda run: not MODELS[run.network.model].bottleneck,
    "with --model {run.network.model}: the model has no bottleneck blocks",
)
model_is_wide = condition(
    lambda run: not MODELS[run.network.model].is_small,
    "with --model {run.network.model}: the model is already wide",
)
model_has_no_norms = condition(
    lambda run: MODELS[run.network.model].family == "squeezenet",
    "with --model squeezenet: the model has no normalization layers",
)
group_norm_option = partial(option, inactive_when=norm_type_is_not("group"))
not_efficientnet = family_is_not("efficientnet")
no_proxy_norm = (not_efficientnet, option_is_unset("proxy_norm"))
efficientnet_option = partial(option, inactive_when=not_efficientnet)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Network."""

    model: str = option(
        "resnet14",
        "Model architecture. `convoy models` lists the built-in models; package.module:function "
        "selects your own.",
        metavar="NAME",
    )
    resnet_version: str = option(
        "v1.5",
        "Where a bottleneck block downsamples: v1.5 in its 3×3 convolution, v1 in its first "
        "convolution.",
        choices=("v1.5", "v1"),
        inactive_when=no_bottlenecks,
    )
    stem: str = option(
        "auto",
        "First layers of a ResNet. small: a 3×3 convolution for small images; large: a 7×7 "
        "convolution and pooling; auto: set by the model.",
        choices=("auto", "small", "large"),
        inactive_when=not_a_resnet,
    )
    shortcut_type: str = option(
        "auto",
        "Residual shortcut. A: zero-padded channels; B: projection where the shape changes; C: "
        "projection in every block; first: projection in the first block of each stage (layer1 … "
        "layer4); auto: set by the model.",
        choices=("auto", "A", "B", "C", "first"),
        inactive_when=not_a_resnet,
    )
    conv_padding: str = option(
        "symmetric",
        "Padding of strided layers: symmetric (PyTorch), or same (TensorFlow SAME: an odd pixel "
        "goes to the bottom and right).",
        choices=("symmetric", "same"),
    )
    input_image_padding: bool = option(False, "Add a fourth channel of zeros to the input images.")
    norm_type: str = option(
        "batch",
        "Normalization layer after each convolution. With none, the convolutions have a bias.",
        choices=("batch", "group", "none"),
        inactive_when=model_has_no_norms,
    )
    norm_num_groups: int = group_norm_option(32, "Number of groups in group norm.", at_least=1)
    norm_eps: float = option(
        1e-5,
        "Epsilon added to the variance in normalization layers.",
        above=0,
        inactive_when=no_norms,
    )
    batchnorm_momentum: float = option(
        0.1,
        "Momentum of the running statistics of batch norm, as in torch.nn.BatchNorm2d.",
        above=0,
        at_most=1,
        inactive_when=norm_type_is_not("batch"),
    )
    zero_init_last_norm: bool = option(
        True,
        "Initialize the weight of the last norm to zero in every bottleneck block without a "
        "projection shortcut.",
        inactive_when=(no_bottlenecks, no_norms, option_is("shortcut_type", "C")),
    )
    weight_init: str = option(
        "pytorch",
        "Weight initialization as in Graphcore's PyTorch, TensorFlow or PopART example (pytorch "
        "differs from the default initialization of torch).",
        choices=("pytorch", "tensorflow", "popart"),
    )
    stable_norm: bool = option(
        True,
        "Compute the variance in two passes, mean first. If off, compute it in one pass as E[x²] "
        "− E[x]².",
        inactive_when=no_norms,
    )
    enable_fast_groupnorm: bool = group_norm_option(
        False,
        "Interleave the groups of group norm: of G groups, channel c belongs to group c mod G.",
    )
    full_precision_norm: bool = option(
        False,
        "Keep the weights and biases of normalization layers in 32 bits in a 16-bit network.",
        inactive_when=(no_16_bit_arithmetic, no_norms),
    )


@dataclass(frozen=True, kw_only=True)
class FamilyConfig:
    """Options of specific model families."""

    cardinality: int = option(
        32,
        "Number of groups in the 3×3 convolutions of ResNeXt.",
        between=(1, 4096),
        inactive_when=family_is_not("resnext"),
    )
    group_dim: int | None = option(
        None,
        "Channels per group in grouped convolutions. Default: 4 in ResNeXt, 1 in EfficientNet.",
        between=(1, 4096),
        aliases=("--efficientnet-group-dim",),
        inactive_when=family_is_not("resnext", "efficientnet"),
    )
    expand_ratio: int = efficientnet_option(
        6,
        "Expansion ratio of EfficientNet's blocks 2 to 7.",
        between=(1, 64),
        aliases=("--efficientnet-expand-ratio",),
    )
    widenet: bool = option(
        False,
        "Make the filters of a small ResNeXt four times as wide.",
        inactive_when=(family_is_not("resnext"), model_is_wide),
    )
    dropout_rate: float | None = option(
        None,
        "Dropout probability before the classifier. Default: set by the model.",
        between=(0, 1),
        inactive_when=family_is_not("efficientnet", "mobilenet", "squeezenet"),
    )
    block_survival_prob: float = efficientnet_option(
        0.8,
        "Stochastic depth in EfficientNet: survival probability of the last block.",
        above=0,
        at_most=1,
    )
    squeeze_excite: bool = efficientnet_option(
        True, "Use squeeze-and-excitation in the blocks of EfficientNet."
    )
    depth_divisor: int = efficientnet_option(
        8, "Round the layer widths of EfficientNet to a multiple of this number.", between=(1, 1024)
    )
    top_width: int = efficientnet_option(
        1280,
        "Channels of EfficientNet's last convolution before width scaling; 0 removes that layer.",
        between=(0, 65536),
    )
    use_relu: bool = efficientnet_option(False, "Use ReLU instead of swish (SiLU) in EfficientNet.")
    width_coefficient: float | None = efficientnet_option(
        None,
        "Width multiplier of EfficientNet. Default: set by the model.",
        above=0,
        at_most=100,
    )
    depth_coefficient: float | None = efficientnet_option(
        None,
        "Depth multiplier of EfficientNet. Default: set by the model.",
        above=0,
        at_most=100,
    )
    use_bypass: bool = option(
        False,
        "Add identity shortcuts around the fire modules 3, 5, 7 and 9 of SqueezeNet.",
        inactive_when=family_is_not("squeezenet"),
    )
    proxy_norm: bool = efficientnet_option(
        False, "Apply proxy normalization to the activations of EfficientNet."
    )
    proxy_epsilon: float = option(
        0.03,
        "Epsilon added to the variance in proxy normalization.",
        above=0,
        inactive_when=no_proxy_norm,
    )
    proxy_recompute: bool = runtime_option(
        True,
        "Recompute proxy normalization in the backward pass instead of storing its activations.",
        inactive_when=no_proxy_norm,
    )
