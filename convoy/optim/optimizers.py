"""Update rules. State is plain tensors by weight name, so that it can be kept, cut and moved."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from convoy.config.sections.training import OptimizerConfig


class Sgd:
    """Gradient descent, with momentum when asked.

        h = g + decay · w        v ← momentum · v + h        w ← w − rate · v

    Weights with one dimension (norms and biases) do not decay.
    """

    def __init__(self, weights: Mapping[str, nn.Parameter], config: OptimizerConfig) -> None:
        self.weights = dict(weights)
        self.momentum = config.momentum
        self.decay = config.weight_decay
        self.velocity = (
            {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
            if config.momentum
            else {}
        )

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float) -> None:
        """Change the weights. The gradients are used up."""
        moves = list(gradients)
        weights: list[Tensor] = list(self.weights.values())
        decaying = [index for index, weight in enumerate(weights) if weight.dim() > 1]
        if self.decay and decaying:
            torch._foreach_add_(
                [moves[i] for i in decaying], [weights[i] for i in decaying], alpha=self.decay
            )
        if self.velocity:
            velocity = list(self.velocity.values())
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_add_(velocity, moves)
            moves = velocity
        torch._foreach_add_(weights, moves, alpha=-rate)

    def named_state(self) -> dict[str, Tensor]:
        """The state as a checkpoint names it."""
        return {f"{name}/velocity": tensor for name, tensor in self.velocity.items()}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over the state of a checkpoint."""
        for name, tensor in self.velocity.items():
            tensor.copy_(state[f"{name}/velocity"])
