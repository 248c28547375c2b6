"""A layer's mixer, as its kind's `infer.py` reads it from keys and tensors."""

from dataclasses import dataclass
from typing import Any

from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.position import read_latent_rotary, read_pattern, read_position
from archetype.convert.infer.tensors import Layer
from archetype.errors import CheckpointError
from archetype.parts.norm.spec import LayerNorm, RMSNorm
from archetype.parts.position.spec import Rotary
from archetype.roles.checkpoint import CheckpointMixer, Shape
from archetype.roles.pattern import Pattern
from archetype.roles.position import MixerPosition


@dataclass(frozen=True)
class ModelDims:
    """The facts of the model that the reading of one layer needs.

    Attributes:
        d_model: width.
        context_length: in tokens.
        transposed: matrices are kept as (inputs, outputs).
    """

    d_model: int
    context_length: int
    transposed: bool


class InferredMixer(CheckpointMixer):
    """The mixer of one layer, with all that the checkpoint says.

    Args:
        info: of the checkpoint.
        layer: its tensors.
        dims: of the model.
    """

    def __init__(self, info: CheckpointInfo, layer: Layer, dims: ModelDims) -> None:
        shapes = {param: info.shapes[name] for param, name in layer.mixer.items()}
        super().__init__(shapes, layer.mixer, dims.d_model, dims.transposed, info.config, info.quirks)
        self.info, self.layer, self.context_length = info, layer, dims.context_length

    def sides(self, param: str) -> Shape:
        """Rows and columns of a matrix that the mixer must have."""
        self.shape(param)
        return self.info.sides(self.layer.mixer[param])

    def size(self, keys: tuple[str, ...]) -> int | None:
        """A size, by the first of these keys that the file has; of a list, this layer's."""
        return self.info.size(keys, self.layer.number)

    def norm(self, bias: bool, weight: bool = True) -> LayerNorm | RMSNorm:
        """A norm of the kind that the model has."""
        return self.info.norm(bias, weight)

    @property
    def eps(self) -> float:
        """The number below the root of the model's norms."""
        return self.info.norm(bias=False).eps

    def position(self, head_dim: int) -> MixerPosition:
        """How attention with heads of so many features knows positions in this layer."""
        return read_position(self.info, self.layer.number, head_dim, self.context_length)

    def rotary(self, dim: int) -> Rotary:
        """Rotary positions of features that all turn."""
        return read_latent_rotary(self.info, dim, self.context_length)

    def pattern(self) -> Pattern:
        """Which pairs of positions are seen in this layer."""
        return read_pattern(self.info, self.layer.number)

    def settle(self, name: str, values: tuple[Any, ...], why: str) -> Any:
        """One of several layouts that neither keys nor tensors tell apart."""
        return self.info.settle(name, values, why)

    def assume(self, field: str, value: object, why: str) -> None:
        """Note the value of a field that neither keys nor tensors give."""
        self.info.assume(f"layers[*].mixer.{field}", value, why)

    def missing(self, part: str) -> CheckpointError:
        """An error at this layer that names what is missing."""
        return self.info.missing(self.layer.prefix, part)
