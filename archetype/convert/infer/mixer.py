"""Inference of a layer's mixer with the reader of its kind (`infer.py` in the mixer's folder)."""

from dataclasses import dataclass
from typing import Any

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.position import read_latent_rotary, read_pattern, read_position
from archetype.convert.infer.tensors import Layer, Names
from archetype.errors import CheckpointError
from archetype.parts.norm.spec import L2Norm, LayerNorm, RMSNorm
from archetype.parts.position.spec import Rotary
from archetype.roles.activation import Activation
from archetype.roles.checkpoint import CheckpointMixer, Shape
from archetype.roles.pattern import Pattern
from archetype.roles.position import MixerPosition


@dataclass(frozen=True)
class ModelDims:
    """Model sizes needed to read one layer.

    Attributes:
        context_length: context length in tokens.
        transposed: whether matrices are stored as (inputs, outputs).
    """

    d_model: int
    context_length: int
    transposed: bool


class InferredMixer(CheckpointMixer):
    """Keys and tensors of one mixer of a layer. `names` maps Archetype's names to the file's tensor names."""

    def __init__(self, info: CheckpointInfo, layer: Layer, dims: ModelDims, names: Names) -> None:
        shapes = {param: info.shapes[name] for param, name in names.items()}
        super().__init__(shapes, names, dims.d_model, dims.transposed, info.config, info.quirks)
        self.info, self.layer, self.context_length = info, layer, dims.context_length

    def sides(self, param: str) -> Shape:
        """Return (rows, columns) of a matrix that the mixer requires."""
        self.shape(param)
        return self.info.sides(self.names[param])

    def size(self, keys: tuple[str, ...]) -> int | None:
        """Return the size under the first of these keys in the file; this layer's entry if the size is a list."""
        return self.info.size(keys, self.layer.number)

    @property
    def number(self) -> int:
        """Index of the layer."""
        return self.layer.number

    def block_of(self, layer: int) -> int:
        return layer * (1 + bool(self.layer.further))

    def entry(self, key: str) -> Any:
        """Return the value of a key, for this layer if it is a list; None if the key is absent."""
        values = self.config.get(key)
        if not isinstance(values, list):
            return values
        if self.layer.number >= len(values):
            raise self.config.error(key, f"has no entry for layer {self.layer.number}", "fix the file")
        return values[self.layer.number]

    def norm(self, bias: bool, weight: bool = True) -> LayerNorm | RMSNorm | L2Norm:
        """Return a norm of the kind that the model uses."""
        return self.info.norm(bias, weight)

    def activation(self) -> Activation:
        """Return the activation of the model's gated networks."""
        return self.info.activation(gated=True)

    @property
    def eps(self) -> float:
        """Epsilon of the norms."""
        return self.info.norm(bias=False).eps

    def position(self, head_dim: int) -> MixerPosition:
        return read_position(self.info, self.layer.number, head_dim, self.context_length)

    def rotary(self, dim: int, head_dim: int) -> Rotary:
        """Return rotary positions of all `dim` features of one part of a head of `head_dim`."""
        return read_latent_rotary(self.info, self.layer.number, dim, head_dim, self.context_length)

    def pattern(self) -> Pattern:
        return read_pattern(self.info, self.layer.number)

    def settle(self, name: str, values: tuple[Any, ...], why: str) -> Any:
        """Choose a layout that neither keys nor tensors determine."""
        return self.info.settle(name, values, why)

    def assume(self, field: str, value: object, why: str) -> None:
        """Record the value of a field that neither keys nor tensors determine."""
        self.info.assume(f"layers[*].mixer.{field}", value, why)

    def missing(self, part: str) -> CheckpointError:
        """Return the error for a layer that needs an unsupported part."""
        return self.info.missing(self.layer.prefix, part)
