"""Layers that stay as they are: those before `--fine-tune-first-trainable-layer`."""

from collections.abc import Sequence

from convoy.errors import ConfigError
from convoy.plan.layers import LayerPlan
from convoy.plan.stages import groups_of, place_of
from convoy.plan.wording import counted
from convoy.registry import suggest

OPTION = "--fine-tune-first-trainable-layer"


def frozen_layers(layers: Sequence[LayerPlan], wish: str | None) -> int:
    """How many layers come before the first one whose weights change."""
    if wish is None:
        return 0
    names = [layer.name for layer in layers]
    first = place_of(names, wish)
    if first is None:
        known = {*names, *(group for name in names for group in groups_of(name))}
        raise ConfigError(f"{OPTION} {wish!r} is no layer of this model; {suggest(wish, known)}")
    weighted = (at for at in range(first, len(layers)) if layers[at].operation.parameters)
    trained = next(weighted, None)
    if trained is None:
        last = next(layer for layer in reversed(layers) if layer.operation.parameters)
        raise ConfigError(
            f"{OPTION} {wish!r} leaves nothing to train: no layer from there on has weights; "
            f"the last one that has is {last.name}"
        )
    return trained


def frozen_as_text(layers: Sequence[LayerPlan], frozen: int) -> str:
    """How much stays, and where the training begins."""
    still = sum(layer.operation.parameters for layer in layers[:frozen])
    parameters = sum(layer.operation.parameters for layer in layers)
    return (
        f"{counted(frozen, 'layer')} with {still:,} of {parameters:,} parameters as they are, "
        f"training begins at {layers[frozen].name}"
    )
