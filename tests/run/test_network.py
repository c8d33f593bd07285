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
    modules = list(built_network.slice.train().modules())
    norms = [module for module in modules if isinstance(module, BatchNorm)]
    drop_paths = [module for module in modules if isinstance(module, DropPath)]
    dropouts = [module for module in modules if isinstance(module, Dropout)]
    return {
        BatchNorm: sum(norm.training and not norm.frozen for norm in norms),
        DropPath: sum(layer.is_active for layer in drop_paths),
        Dropout: sum(layer.is_active for layer in dropouts),
    }


def test_frozen_layers_collect_no_statistics_and_apply_no_dropout() -> None:
    all_trained, all_frozen = (
        training_modules(network("conv_stem")),
        training_modules(network("classifier")),
    )

    assert min(all_trained.values()) > 0
    assert all_frozen == {BatchNorm: 0, DropPath: 0, Dropout: 0}


def test_frozen_layers_have_the_same_outputs_in_training_and_evaluation() -> None:
    built_network = network("classifier")
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        training, evaluation = (
            built_network.slice.train(mode)(images)[0] for mode in (True, False)
        )

    assert torch.equal(training, evaluation)
