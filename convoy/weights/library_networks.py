"""The networks of torchvision and timm that convoy has too, by the options that define them.

Names and shapes of weights do not define a network: its norms have an eps, its convolutions a
padding, its bottlenecks a stride in one of two places. Two networks are the same if their layers
are, apart from initialization, momentum and dropout.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from convoy.config.schema import RunConfig
from convoy.config.sections.network import MODELS, FamilyConfig, NetworkConfig
from convoy.errors import ConfigError
from convoy.models.layers import (
    ConvSpec,
    DropoutSpec,
    DropPathSpec,
    InitRule,
    LayerPlan,
    LinearSpec,
    NormSpec,
    OpSpec,
)
from convoy.models.network import FAMILIES, IMAGE_CHANNELS

TORCHVISION, TIMM = "torchvision", "timm"
Layers = tuple[LayerPlan, ...]


@dataclass(frozen=True)
class LibraryNetwork:
    """A network of a library, and the model and options with which convoy builds it."""

    library: str
    name: str
    model: str
    options: Mapping[str, Any] = field(default_factory=dict)  # that differ from the defaults

    def __str__(self) -> str:
        return f"{self.library}'s {self.name}"

    @property
    def sections(self) -> tuple[NetworkConfig, FamilyConfig]:
        """The network options of convoy with which the two are the same."""
        network, family = NetworkConfig(model=self.model), FamilyConfig()
        family_names = {item.name for item in fields(FamilyConfig)}
        of_family = {name: value for name, value in self.options.items() if name in family_names}
        of_network = {name: value for name, value in self.options.items() if name not in of_family}
        return replace(network, **of_network), replace(family, **of_family)


_EPS = {"norm_eps": 1e-3}
_TF = {"norm_eps": 1e-3, "conv_padding": "same"}  # networks whose weights come from TensorFlow

# Checked with torchvision 0.29 and timm 1.0: the outputs of both are equal in float64.
LIBRARY_NETWORKS = (
    *(
        LibraryNetwork(library, f"resnet{depth}", f"resnet{depth}")
        for library in (TORCHVISION, TIMM)
        for depth in (18, 34, 50, 101, 152)
    ),
    *(
        network
        for library in (TORCHVISION, TIMM)
        for network in (
            LibraryNetwork(library, "resnext50_32x4d", "resnext50"),
            LibraryNetwork(library, "resnext101_32x8d", "resnext101", {"group_dim": 8}),
            LibraryNetwork(library, "resnext101_64x4d", "resnext101", {"cardinality": 64}),
        )
    ),
    LibraryNetwork(TIMM, "resnext101_32x4d", "resnext101"),
    LibraryNetwork(TIMM, "resnet26", "resnet26"),
    LibraryNetwork(TIMM, "resnet50_gn", "resnet50", {"norm_type": "group"}),
    LibraryNetwork(TORCHVISION, "mobilenet_v2", "mobilenet"),
    LibraryNetwork(TIMM, "mobilenetv2_100", "mobilenet"),
    *(
        network
        for size in ("large", "small")
        for model in (f"mobilenet-v3-{size}-published",)
        for network in (
            LibraryNetwork(TORCHVISION, f"mobilenet_v3_{size}", model, _EPS),
            LibraryNetwork(TIMM, f"mobilenetv3_{size}_100", model),
            LibraryNetwork(TIMM, f"tf_mobilenetv3_{size}_100", model, _TF),
        )
    ),
    *(
        network
        for number in range(8)
        for name, model in ((f"efficientnet_b{number}", f"efficientnet-b{number}"),)
        for network in (
            LibraryNetwork(TORCHVISION, name, model, _EPS if number >= 5 else {}),
            LibraryNetwork(TIMM, name, model),
            LibraryNetwork(TIMM, f"tf_{name}", model, _TF),
        )
    ),
)


def networks_of(model: str, *libraries: str) -> list[LibraryNetwork]:
    """The networks of these libraries that have the layers of a model."""
    return [
        network
        for network in LIBRARY_NETWORKS
        if network.model == model and network.library in libraries
    ]


def same_network(config: RunConfig, classes: int, *libraries: str) -> LibraryNetwork | None:
    """The network of these libraries that computes the same as the configured one, if any."""
    candidates = networks_of(config.network.model, *libraries)
    if not candidates:
        return None  # for example the user's own network
    ours = _inference_layers(config.network, config.family, classes)
    for network in candidates:
        if _inference_layers(*network.sections, classes) == ours:
            return network
    return None


def with_same_tensors(
    config: RunConfig, classes: int, networks: Sequence[LibraryNetwork]
) -> list[LibraryNetwork]:
    """The networks whose weights have the same names and shapes."""
    ours = _tensors(_build(config.network, config.family, classes))
    return [item for item in networks if _tensors(_build(*item.sections, classes)) == ours]


def different_options(config: RunConfig, network: LibraryNetwork) -> dict[str, tuple[Any, Any]]:
    """The options in which two networks differ, with our value and that of the library."""
    return dict(_different_options((config.network, config.family), network))


def _different_options(
    ours: tuple[NetworkConfig, FamilyConfig], network: LibraryNetwork
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    theirs = network.sections
    expected = _inference_layers(*theirs, classes=2)
    for name, value in vars(ours[0]).items():
        changed = replace(theirs[0], **{name: value})
        if name != "model" and _inference_layers(changed, theirs[1], classes=2) != expected:
            yield name, (value, vars(theirs[0])[name])
    for name, value in vars(ours[1]).items():
        widened = replace(theirs[1], **{name: value})
        if _inference_layers(theirs[0], widened, classes=2) != expected:
            yield name, (value, vars(theirs[1])[name])


def name_in(source: str, networks: Sequence[LibraryNetwork]) -> LibraryNetwork | None:
    """The network whose name is in that of a file or of a repository on the Hub."""
    text = source.replace("-", "_").lower()
    for network in sorted(networks, key=lambda network: -len(network.name)):
        if re.search(rf"(?<![a-z0-9]){network.name}(?![a-z0-9])", text):
            return network
    return None


def _build(network: NetworkConfig, family: FamilyConfig, classes: int) -> Layers:
    build = FAMILIES[MODELS[network.model].family]
    return build(network, IMAGE_CHANNELS, classes, family)


def _inference_layers(network: NetworkConfig, family: FamilyConfig, classes: int) -> Layers:
    """The layers, without what has no effect on the outputs of a trained network."""
    return tuple(
        replace(layer, operation=_for_inference(layer.operation))
        for layer in _build(network, family, classes)
        if not isinstance(layer.operation, DropoutSpec | DropPathSpec)
    )


def _for_inference(operation: OpSpec) -> OpSpec:
    match operation:
        case ConvSpec() | LinearSpec():
            return replace(operation, init=InitRule.TORCH_DEFAULT)
        case NormSpec():
            grouped = operation.kind == "group"
            return replace(
                operation,
                groups=operation.groups if grouped else 0,
                interleaved_groups=operation.interleaved_groups and grouped,
                momentum=0.0,
                zero_init=False,
                stable=True,
                initial_running_var=1.0,
            )
    return operation


def _tensors(layers: Layers) -> list[tuple[str, str, int]]:
    """What the names and shapes of weights tell about the layers, apart from statistics."""
    return [
        (layer.name, _norm_kind(layer.operation), layer.operation.parameters)
        for layer in layers
        if layer.operation.parameters
    ]


def _norm_kind(operation: OpSpec) -> str:
    return operation.kind if isinstance(operation, NormSpec) else ""


def explain_difference(config: RunConfig, classes: int, library: str) -> str:
    """Say why a library does not have the configured network, and which naming to use."""
    model = config.network.model
    similar = networks_of(model, library)
    reason = f"{library} has no network with the layers of {model}"
    if similar:
        closest = min(similar, key=lambda network: len(different_options(config, network)))
        reason = f"{closest} is another network: {describe_differences(config, closest)}"
    elif f"{model}-published" in MODELS:
        reason += f", only of {model}-published"
    same = same_network(config, classes, TORCHVISION, TIMM)
    alternative = "" if same is None else f"--naming {same.library}, whose {same.name} it is, or "
    return f"{reason}; use {alternative}--naming convoy"


def describe_differences(config: RunConfig, network: LibraryNetwork) -> str:
    """List the options of a library's network that are not ours: `--norm-eps 0.001, not 1e-05`."""
    return " and ".join(
        f"{_describe(name, theirs)}, not {ours}"
        if not isinstance(ours, bool)
        else _describe(name, theirs)
        for name, (ours, theirs) in different_options(config, network).items()
    )


def _describe(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    match value:
        case bool():
            return f"it has {flag}" if value else f"it has no {flag}"
        case None:
            return f"it has the default {flag}"
    return f"it has {flag} {value}"


def find_candidates(
    config: RunConfig, classes: int, libraries: Sequence[str]
) -> list[LibraryNetwork]:
    """The networks that weights with these names can come from; of equal networks the first."""
    networks = networks_of(config.network.model, *libraries)
    candidates: list[LibraryNetwork] = []
    for network in with_same_tensors(config, classes, networks):
        if all(network.options != other.options for other in candidates):
            candidates.append(network)
    return candidates


def choose_origin(
    source: str, candidates: Sequence[LibraryNetwork], architecture: str | None
) -> LibraryNetwork | None:
    """The candidate with this name, the only one, or the one that the source is named after."""
    if architecture is not None:
        named = [network for network in candidates if network.name == architecture]
        if not named:
            known = " or ".join(network.name for network in candidates) or "no known network"
            raise ConfigError(f"--architecture {architecture}: {source} has the names of {known}")
        return named[0]
    if len(candidates) == 1:
        return candidates[0]
    return name_in(source, candidates)


def ambiguity(source: str, candidates: Sequence[LibraryNetwork]) -> str:
    """Say which networks the weights can come from, and how to choose."""
    names = " and ".join(map(str, candidates))
    first, *others = candidates
    options = {name for other in others for name in first.options.keys() ^ other.options.keys()}
    flags = " and ".join(f"--{name.replace('_', '-')}" for name in sorted(options))
    return (
        f"{source} can be the weights of {names}, which differ in {flags}: name one with "
        "--architecture, or give these options"
    )
