"""Feed-forward part that reads the embedding's per-layer vectors."""

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from archetype.parts.activation.spec import GELUTanh
from archetype.parts.norm.spec import NoNorm
from archetype.roles.activation import FixedActivation
from archetype.roles.feedforward import FeedForward
from archetype.roles.norm import VectorNorm
from archetype.spec.base import Index, Size
from archetype.spec.errors import invalid
from archetype.spec.kinds import part
from archetype.spec.sizes import Width


@part
class PerLayerInput(FeedForward):
    """norm'(down(activation(gate(norm(x))) * p)), where p is the token's vector from `embedding.per_layer` (Gemma 3n).

    A separate block without a mixer adds the output to the layer's output; in Gemma 4, the block normalizes it. With
    `num_streams`, x is the active one of several residual streams, and all but the first one get the output (Gemma 3n).

    Attributes:
        features: width of p, as in `embedding.per_layer`.
        activation: activation of the gate.
        num_streams: number of residual streams (1: the vector that a sublayer reads).
        active: index of the stream that is read.
        input_norm: norm of the input (Gemma 3n: `affine`, a learned factor of each feature).
        added_norm: norm of the output.
    """

    title: ClassVar[str] = "Per-layer input"
    kind: Literal["per_layer_input"] = "per_layer_input"
    features: Width
    activation: FixedActivation = GELUTanh()
    num_streams: Size = 1
    active: Index = 0
    input_norm: VectorNorm = NoNorm()
    added_norm: VectorNorm = NoNorm()

    @model_validator(mode="after")
    def _active_stream_exists(self) -> Self:
        if self.active >= self.num_streams:
            invalid("active", f"there are only {self.num_streams} streams", "use the index of a stream")
        return self

    @property
    def reads_streams(self) -> int:
        return self.num_streams if self.num_streams > 1 else 0

    @property
    def layer_features(self) -> int:
        return self.features
