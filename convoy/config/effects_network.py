"""Options of the network that can do nothing in a configuration, and why."""

from convoy.config.catalog import MODELS
from convoy.config.effects_keeping import Idle
from convoy.config.schema import RunConfig

NAMES = {
    "resnet": "ResNet",
    "resnext": "ResNeXt",
    "efficientnet": "EfficientNet",
    "mobilenet": "MobileNet",
    "squeezenet": "SqueezeNet",
}


def the_model_is_none_of(*families: str) -> Idle:
    def idle(run: RunConfig) -> str | None:
        if MODELS[run.network.model].family in families:
            return None
        owners = " and ".join(NAMES[one] for one in families)
        verb = "has" if len(families) == 1 else "have"
        return f"with --model {run.network.model}: only {owners} {verb} it"

    return idle


def the_model_has_no_bottlenecks(run: RunConfig) -> str | None:
    model = run.network.model
    if MODELS[model].bottleneck:
        return None
    return f"with --model {model}: it has no bottlenecks"


def the_model_is_not_small(run: RunConfig) -> str | None:
    model = run.network.model
    return None if MODELS[model].small else f"with --model {model}: it is wide already"


def every_block_projects(run: RunConfig) -> str | None:
    return "with --shortcut-type C" if run.network.shortcut_type == "C" else None


def there_is_no_norm(run: RunConfig) -> str | None:
    if MODELS[run.network.model].family == "squeezenet":
        return "with --model squeezenet: it has no norms"
    return "with --norm-type none" if run.network.norm_type == "none" else None


def the_norm_is_not(kind: str) -> Idle:
    def idle(run: RunConfig) -> str | None:
        norm = run.network.norm_type
        return there_is_no_norm(run) or (None if norm == kind else f"with --norm-type {norm}")

    return idle


def the_model_never_has_a_norm(run: RunConfig) -> str | None:
    return there_is_no_norm(run) if MODELS[run.network.model].family == "squeezenet" else None


def norms_have_32_bits(run: RunConfig) -> str | None:
    return "with --precision 32.32" if run.precision.precision == "32.32" else None


def there_is_no_proxy(run: RunConfig) -> str | None:
    return None if run.family.proxy_norm else "without --proxy-norm"


_RESNETS = the_model_is_none_of("resnet", "resnext")
_EFFICIENTNET = the_model_is_none_of("efficientnet")
_RESNEXT = the_model_is_none_of("resnext")

# In the order of the option table. The first reason that holds is told.
IDLE_NETWORK: dict[str, tuple[Idle, ...]] = {
    "resnet_version": (the_model_has_no_bottlenecks,),
    "stem": (_RESNETS,),
    "shortcut_type": (_RESNETS,),
    "norm_type": (the_model_never_has_a_norm,),
    "norm_num_groups": (the_norm_is_not("group"),),
    "norm_eps": (there_is_no_norm,),
    "batchnorm_momentum": (the_norm_is_not("batch"),),
    "zero_init_last_norm": (
        the_model_has_no_bottlenecks,
        there_is_no_norm,
        every_block_projects,
    ),
    "stable_norm": (there_is_no_norm,),
    "enable_fast_groupnorm": (the_norm_is_not("group"),),
    "full_precision_norm": (norms_have_32_bits, there_is_no_norm),
    "cardinality": (_RESNEXT,),
    "group_dim": (the_model_is_none_of("resnext", "efficientnet"),),
    "expand_ratio": (_EFFICIENTNET,),
    "widenet": (_RESNEXT, the_model_is_not_small),
    "dropout_rate": (the_model_is_none_of("efficientnet", "mobilenet", "squeezenet"),),
    "block_survival_prob": (_EFFICIENTNET,),
    "squeeze_excite": (_EFFICIENTNET,),
    "depth_divisor": (_EFFICIENTNET,),
    "top_width": (_EFFICIENTNET,),
    "use_relu": (_EFFICIENTNET,),
    "width_coefficient": (_EFFICIENTNET,),
    "depth_coefficient": (_EFFICIENTNET,),
    "use_bypass": (the_model_is_none_of("squeezenet"),),
    "proxy_norm": (_EFFICIENTNET,),
    "proxy_epsilon": (_EFFICIENTNET, there_is_no_proxy),
    "proxy_recompute": (_EFFICIENTNET, there_is_no_proxy),
}
