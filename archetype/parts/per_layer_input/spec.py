"""Feed-forward part that reads the embedding's per-layer vectors."""

from typing import ClassVar, Literal

from archetype.parts.activation.spec import GELUTanh
from archetype.roles.activation import FixedActivation
from archetype.roles.feedforward import FeedForward
from archetype.spec.kinds import part
from archetype.spec.sizes import Width


@part
class PerLayerInput(FeedForward):
    """down(activation(gate(x)) * p), where p is the token's vector from `embedding.per_layer` (Gemma 3n).

    Gemma adds the normalized output to each layer's output: a separate block without a mixer, with `output_norm`.

    Attributes:
        features: width of p, as in `embedding.per_layer`.
        activation: activation of the gate.
    """

    title: ClassVar[str] = "Per-layer input"
    kind: Literal["per_layer_input"] = "per_layer_input"
    features: Width
    activation: FixedActivation = GELUTanh()

    @property
    def layer_features(self) -> int:
        return self.features
