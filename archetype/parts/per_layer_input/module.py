"""Gate that mixes the embedding's per-layer vectors into the stream."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.parts.feedforward.module import gated_product
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.per_layer_input import spec
from archetype.weights.linear import Linear


@module_for(spec.PerLayerInput)
class PerLayerInput(nn.Module):
    """down(f(gate(x)) * p): a gated network with a table's row p instead of a second projection (Gemma 3n)."""

    probes: ClassVar = {"hidden": "... D_p"}

    def __init__(self, feedforward: spec.PerLayerInput, place: Place) -> None:
        super().__init__()
        self.gate = Linear(place.d_model, feedforward.features, bias=False)
        self.down = Linear(feedforward.features, place.d_model, bias=False)
        self.product = gated_product(GatedMLP(d_ff=feedforward.features, activation=feedforward.activation))

    def forward(
        self, x: Float[Tensor, "B T D"], context: ForwardContext, state: LayerState | None = None
    ) -> Float[Tensor, "B T D"]:
        gate: Tensor = self.gate(x)  # (B, T, D_p)
        layer_input = context.layer_inputs[context.layer].to(gate.dtype)  # (B, T, D_p), p of this layer
        return self.down(context.probe(self, "hidden", self.product(context.kernels, gate, layer_input)))
