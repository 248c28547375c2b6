"""LoRA and DoRA adapters of linear layers: install them in a model, and merge them into its matrices."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.errors import SpecError
from archetype.nn.dropout import dropout
from archetype.nn.parameter_names import NamePattern
from archetype.nn.random import generator_for
from archetype.parts.adapter import spec
from archetype.weights.linear import Linear, project
from archetype.weights.packed import PackedMatrix


class LoRALinear(Linear):
    """x W^T + b + (alpha / rank) dropout(x) A^T B^T (Hu 2021, section 4.1).

    Args:
        linear: layer whose weight and bias keep their names.
        adapter: specification with rank, alpha and dropout.
    """

    def __init__(self, linear: Linear, adapter: spec.Adapter) -> None:
        # not Linear's, which would allocate a second weight
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.scale, self.dropout = adapter.alpha / adapter.rank, adapter.dropout
        self.lora_A = nn.Parameter(self.weight.new_empty(adapter.rank, self.in_features))
        self.lora_B = nn.Parameter(self.weight.new_empty(self.out_features, adapter.rank))

    def reset(self, generator: torch.Generator | None) -> None:
        # A as torch initializes a linear layer; B is 0, so that outputs do not change at first
        bound = 1 / math.sqrt(self.in_features)
        with torch.no_grad():
            self.lora_A.uniform_(-bound, bound, generator=generator)
            self.lora_B.zero_()

    def change(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... F"]:
        """Return (alpha / rank) dropout(x) A^T B^T."""
        x = dropout(x, self.dropout, self.training)
        # (..., rank), then (..., F); B A is never multiplied out
        return project(project(x, self.lora_A), self.lora_B) * self.scale

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... F"]:
        return project(x, self.weight, self.bias) + self.change(x)

    def matrix(self) -> Float[Tensor, "F D"]:
        """Return the equivalent single matrix W + (alpha / rank) B A."""
        return self.weight + self.scale * (self.lora_B @ self.lora_A)


class DoRALinear(LoRALinear):
    """m (W + s B A) / |W + s B A| row by row. m is learned, and no gradient flows through the norm (Liu 2024, 4.3)."""

    def __init__(self, linear: Linear, adapter: spec.Adapter) -> None:
        super().__init__(linear, adapter)
        self.magnitude = nn.Parameter(self.weight.new_empty(self.out_features))

    def reset(self, generator: torch.Generator | None) -> None:
        # as LoRA; the magnitudes are the row norms of W
        super().reset(generator)
        with torch.no_grad():
            self.magnitude.copy_(self.weight.norm(dim=1))

    def row_scale(self) -> Float[Tensor, "F"]:
        """Return m / |W + s B A|."""
        length: Tensor = super().matrix().detach().norm(dim=1)  # a constant for the gradient (Liu 2024, section 4.3)
        return self.magnitude / length

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... F"]:
        # the scale of a row of the matrix is the scale of an output feature
        y = self.row_scale().to(x.dtype) * (project(x, self.weight) + self.change(x))
        return y if self.bias is None else y + self.bias

    def matrix(self) -> Float[Tensor, "F D"]:
        return self.row_scale()[:, None] * super().matrix()


MODULES: dict[type[spec.Adapter], type[LoRALinear]] = {spec.LoRA: LoRALinear, spec.DoRA: DoRALinear}


def adapted(model: nn.Module) -> Iterator[tuple[str, LoRALinear]]:
    for name, module in model.named_modules():
        if isinstance(module, LoRALinear):
            yield name, module


def adapter_parameters(model: nn.Module) -> set[str]:
    return {
        f"{name}.{parameter}"
        for name, module in adapted(model)
        for parameter, _ in module.named_parameters(recurse=False)
        if parameter not in ("weight", "bias")
    }


def install(model: nn.Module, adapter: spec.Adapter, seed: int = 0) -> None:
    """Install an adapter around every linear layer that its targets name. Outputs do not change before training.

    Raises:
        SpecError: a target names no linear layer, or a quantized layer.
    """
    linears = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    targets: set[str] = set()
    for target in adapter.targets:
        pattern = NamePattern(target)
        names = {name for name in linears if pattern.matches(name) or pattern.matches(name.rpartition(".")[2])}
        if not names:
            remedy = f"use some of {', '.join(sorted({name.rpartition('.')[2] for name in linears}))}"
            raise SpecError("adapter.targets", f"{target!r:.60} matches no linear layer of this model", remedy)
        targets |= names
    for name in sorted(targets):
        if isinstance(linears[name].weight, PackedMatrix):
            raise SpecError(name, "is quantized, and adapters need float weights", "use the unquantized model")
        module = MODULES[type(adapter)](linears[name], adapter)
        if module.weight.device.type != "meta":
            module.reset(generator_for(seed, f"{name}.lora_A", module.weight.device))
        _replace(model, name, module.train(linears[name].training))


@torch.no_grad()
def merge(model: nn.Module) -> None:
    """Replace adapted layers with plain layers whose matrices include the adapters."""
    for name, module in list(adapted(model)):
        with torch.device("meta"):  # allocates nothing; the parameters are replaced
            plain = Linear(module.in_features, module.out_features, bias=module.bias is not None)
        plain.weight, plain.bias = nn.Parameter(module.matrix()), module.bias
        _replace(model, name, plain.train(module.training))


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, module)
