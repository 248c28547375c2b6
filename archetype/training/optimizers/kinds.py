"""Optimizers that a recipe can select."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from archetype.distribution import install_command
from archetype.errors import SpecError
from archetype.settings.training import LearningRate
from archetype.spec.base import MAX_FLOAT, Flag, NotNegative, Positive, Probability, Size
from archetype.spec.kinds import part
from archetype.training.optimizers.algorithms import TOGETHER, LionOptimizer, MuonOptimizer, Several, orthogonal_dtype
from archetype.training.optimizers.base import Optimizer
from archetype.training.optimizers.groups import Grouped, torch_groups


@part
class AdamW(Optimizer):
    """Adam with decoupled weight decay of matrices (Loshchilov 2017).

    Attributes:
        weight_decay: weight decay of matrices, relative to the learning rate.
        betas: decay of the running means of gradients and of squared gradients.
        eps: constant added to the root of the mean squared gradient.
        state_bits: bits per state value; 8 bits, in blocks of 256 values (Dettmers 2021), need the extra `torchao`.
    """

    kind: Literal["adamw"] = "adamw"
    weight_decay: NotNegative = 0.1
    betas: tuple[Probability, Probability] = (0.9, 0.95)
    eps: Positive = 1e-8
    state_bits: Literal[8, 32] = 32

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        groups, options = self.parameter_groups(model), dict[str, Any](betas=self.betas, eps=self.eps)
        if self.state_bits == 32:
            return torch.optim.AdamW(groups, lr=self.learning_rate, **options, fused=True)
        try:
            from torchao.optim import AdamW8bit
        except ImportError:
            cause, remedy = "an 8-bit state needs torchao", f"{install_command('torchao')}, or use 32"
            raise SpecError("optimizer.state_bits", cause, remedy) from None
        return AdamW8bit(groups, lr=self.learning_rate, **options)

    def state_bytes(self, grouped: Sequence[Grouped]) -> int:
        sizes = [each.parameter.numel() for each in grouped]
        if self.state_bits == 32:
            return 8 * sum(sizes)
        # torchao keeps small parameters and those that blocks do not divide in float32
        # 8-bit codes of two moments, and a float32 scale per block of 256
        return sum(2 * (size + size // 64) if size >= 4096 and size % 256 == 0 else 8 * size for size in sizes)


@part
class Muon(Optimizer):
    """Orthogonalized momentum for hidden matrices (Jordan 2024), AdamW for all other parameters.

    Muon's updates are scaled to the root mean square of AdamW's updates (Liu 2025), so that both share the learning
    rate and the weight decay.

    Attributes:
        weight_decay: weight decay of matrices, relative to the learning rate.
        momentum: decay of the running mean of gradients.
        nesterov: whether to use Nesterov momentum.
        num_iterations: number of Newton-Schulz iterations.
        betas: AdamW's `betas` for all other parameters.
        eps: AdamW's `eps` for all other parameters.
    """

    width_exponent: ClassVar[float | None] = 0.5  # an update's spectral norm grows with the root of the width
    kind: Literal["muon"] = "muon"
    weight_decay: NotNegative = 0.1
    momentum: Probability = 0.95
    nesterov: Flag = True
    num_iterations: Size = 5
    betas: tuple[Probability, Probability] = (0.9, 0.95)
    eps: Positive = 1e-8

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        parts: dict[bool, list[Grouped]] = {True: [], False: []}
        for grouped in self.grouped(model):
            parts[_is_matrix(grouped)].append(grouped)
        optimizers: list[torch.optim.Optimizer] = []
        if parts[True]:
            options = dict[str, Any](momentum=self.momentum, nesterov=self.nesterov, num_iterations=self.num_iterations)
            optimizers.append(MuonOptimizer(torch_groups(parts[True]), options | {"lr": self.learning_rate}))
        if parts[False]:
            groups, options = torch_groups(parts[False]), dict[str, Any](betas=self.betas, eps=self.eps)
            optimizers.append(torch.optim.AdamW(groups, lr=self.learning_rate, **options, fused=True))
        return Several(optimizers)

    def state_bytes(self, grouped: Sequence[Grouped]) -> int:
        # one momentum per matrix, two moments of all other parameters
        return sum((4 if _is_matrix(each) else 8) * each.parameter.numel() for each in grouped)

    def workspace_bytes(self, grouped: Sequence[Grouped]) -> int:
        matrices = [each.parameter for each in grouped if _is_matrix(each)]
        most, itemsize = 0, orthogonal_dtype(matrices[0]).itemsize if matrices else 0
        for shape, count in Counter(matrix.shape for matrix in matrices).items():
            numel = shape.numel()
            together = numel * min(count, max(1, TOGETHER // numel))
            squares = together * min(shape) // max(shape)
            # matrices of one shape: updates and their stack, then two more of its size, and two products X Xt
            most = max(most, (8 if self.nesterov else 4) * together, 4 * together + 2 * itemsize * (together + squares))
        return most


@part
class Adafactor(Optimizer):
    """Adafactor: second moments factored into rows and columns, without momentum (Shazeer 2018).

    Attributes:
        beta2_decay: exponent of the step in the decay of the mean square.
        clip_threshold: root mean square above which an update is scaled down.
    """

    share_of_adamw: ClassVar[float | None] = None  # relative to each matrix's own size: 1e-2 (Shazeer 2018, section 8)
    kind: Literal["adafactor"] = "adafactor"
    learning_rate: LearningRate = 1e-2
    beta2_decay: Annotated[float, Field(le=0, ge=-1)] = -0.8
    clip_threshold: Annotated[float, Field(ge=1, le=MAX_FLOAT)] = 1.0

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adafactor(
            self.parameter_groups(model), lr=self.learning_rate, beta2_decay=self.beta2_decay, d=self.clip_threshold
        )

    def state_bytes(self, grouped: Sequence[Grouped]) -> int:
        # one number per row and column of a matrix, and per element of a vector
        shapes = [each.parameter.shape for each in grouped]
        return sum(
            4 * math.prod(shape[:-2]) * (shape[-1] + shape[-2]) if len(shape) > 1 else 4 * math.prod(shape)
            for shape in shapes
        )

    def workspace_bytes(self, grouped: Sequence[Grouped]) -> int:
        return max((8 * each.parameter.numel() for each in grouped), default=0)


@part
class Lion(Optimizer):
    """Lion: updates by the sign of an interpolated momentum (Chen 2023, algorithm 2).

    Attributes:
        weight_decay: weight decay of matrices, relative to the learning rate.
        betas: weight of the momentum in the update, and decay of the momentum.
    """

    share_of_adamw: ClassVar[float | None] = 0.1  # 3 to 10 times smaller (Chen 2023, section 5)
    kind: Literal["lion"] = "lion"
    learning_rate: LearningRate = 1e-4
    weight_decay: NotNegative = 1.0
    betas: tuple[Probability, Probability] = (0.9, 0.99)

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        return LionOptimizer(self.parameter_groups(model), {"lr": self.learning_rate, "betas": self.betas})

    def state_bytes(self, grouped: Sequence[Grouped]) -> int:
        return sum(4 * each.parameter.numel() for each in grouped)

    def workspace_bytes(self, grouped: Sequence[Grouped]) -> int:
        return max((4 * each.parameter.numel() for each in grouped), default=0)


@part
class SGD(Optimizer):
    """Stochastic gradient descent with momentum (Robbins 1951).

    Attributes:
        momentum: decay of the running sum of gradients; 0 disables momentum.
        nesterov: whether to use Nesterov momentum (Nesterov 1983).
    """

    width_exponent: ClassVar[float | None] = None
    share_of_adamw: ClassVar[float | None] = None  # gradients are not normalized: 0.1 (He 2016, section 3.4)
    kind: Literal["sgd"] = "sgd"
    learning_rate: LearningRate = 1e-1
    momentum: Probability = 0.9
    nesterov: Flag = False

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        nesterov = self.nesterov and self.momentum > 0
        groups = self.parameter_groups(model)
        return torch.optim.SGD(groups, lr=self.learning_rate, momentum=self.momentum, nesterov=nesterov)

    def state_bytes(self, grouped: Sequence[Grouped]) -> int:
        return sum(4 * each.parameter.numel() for each in grouped) if self.momentum else 0

    def workspace_bytes(self, grouped: Sequence[Grouped]) -> int:
        return max((4 * each.parameter.numel() for each in grouped), default=0)


def _is_matrix(grouped: Grouped) -> bool:
    return grouped.role == "hidden" and grouped.parameter.dim() == 2
