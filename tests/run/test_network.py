"""The layers of a process: frozen layers behave as in evaluation."""

import torch

from convoy.config.schema import build_config
from convoy.layers.dropout import Dropout, DropPath
from convoy.layers.norms import BatchNorm
from convoy.planning.plan import plan_run
from convoy.run.network import Network, build_network, freeze

OPTIONS = {
    "model": "efficientnet-cifar",
    "norm_num_groups": 4,
    "dropout_rate": 0.5,
    "block_survival_prob": 0.5,
}


def network(first: str) -> Network:
    plan = plan_run(build_config(OPTIONS | {"fine_tune_first_trainable_layer": first}))
    built = build_network(plan.network, 0, torch.device("cpu"))
    freeze(built, [layer.name for layer in plan.frozen_layers])
    return built


def training_modules(built_network: Network) -> dict[type, int]:
    """Count the layers that collect statistics or draw masks in training."""
    parts = list(built_network.slice.train().modules())
    norms = sum(isinstance(part, BatchNorm) and part.training and not part.frozen for part in parts)
    drops = sum(isinstance(part, DropPath) and part.is_active for part in parts)
    outs = sum(isinstance(part, Dropout) and part.is_active for part in parts)
    return {BatchNorm: norms, DropPath: drops, Dropout: outs}


def test_frozen_layers_collect_no_statistics_and_apply_no_dropout() -> None:
    everything, last = (
        training_modules(network("conv_stem")),
        training_modules(network("classifier")),
    )

    assert min(everything.values()) > 0
    assert last == {BatchNorm: 0, DropPath: 0, Dropout: 0}


def test_frozen_layers_have_the_same_outputs_in_training_and_evaluation() -> None:
    built_network = network("classifier")
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        training, evaluation = (
            built_network.slice.train(mode)(images)[0] for mode in (True, False)
        )

    assert torch.equal(training, evaluation)
