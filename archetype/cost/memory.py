"""Bytes of the weights, and of what training holds: weights, gradients, AdamW's moments and activations."""

from typing import NamedTuple

from archetype import spec
from archetype.cost import activations
from archetype.cost.activations import Kept
from archetype.cost.dtypes import bytes_of
from archetype.cost.rows import all_parameters
from archetype.cost.saved_activations import Computed


class Memory(NamedTuple):
    """Bytes. In training all but the activations is float32."""

    weights: int  # in the type that was asked for
    parameters: int  # how many
    kept: Kept

    @property
    def gradients(self) -> int:
        """One number for each parameter."""
        return 4 * self.parameters

    @property
    def optimizer(self) -> int:
        """AdamW's two moments."""
        return 8 * self.parameters

    @property
    def training(self) -> int:
        """Weights, gradients and moments, before activations."""
        return 4 * self.parameters + self.gradients + self.optimizer

    def to_json(self) -> dict[str, int]:
        """By name."""
        return {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "training": self.training,
            "activations": self.kept.peak,
            "activations_recomputed": self.kept.peak_recomputed,
            "training_peak": self.training + self.kept.peak,
            "training_peak_recomputed": self.training + self.kept.peak_recomputed,
        }


def of_model(model: spec.ModelSpec, batch: int, length: int, dtype: str) -> Memory:
    """The memory of a model whose weights are of a type; training computes in bfloat16 where that has two bytes."""
    number = all_parameters(model).value
    return Memory(number * bytes_of(dtype), number, activations.of_model(model, batch, length, computed_in(dtype)))


def computed_in(dtype: str) -> Computed:
    """What a training step computes products in, for weights that are used in `dtype`."""
    return "bfloat16" if bytes_of(dtype) == 2 else "float32"
