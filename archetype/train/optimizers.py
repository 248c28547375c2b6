"""AdamW, and its state as named tensors."""

import torch
from torch import Tensor, nn

from archetype.train.recipe import AdamW


def build_optimizer(model: nn.Module, settings: AdamW) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices, none on norms and biases."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,
    )


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state under the parameters' names: `blocks.0.mixer.q.weight:exp_avg`."""
    return {
        f"{name}:{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give the optimizer the state that `optimizer_tensors` took."""
    for name, parameter in model.named_parameters():
        own = {key.rpartition(":")[2]: value for key, value in tensors.items() if key.rpartition(":")[0] == name}
        optimizer.state[parameter] = own
