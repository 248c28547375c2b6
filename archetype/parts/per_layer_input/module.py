"""Gate that mixes the embedding's per-layer vectors into the stream."""

from typing import ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.parts.feedforward.module import gated_product
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.per_layer_input import spec
from archetype.weights.linear import Linear


@module_for(spec.PerLayerInput)
class PerLayerInput(nn.Module):
    """norm'(down(f(gate(norm(x))) * p)): a gated network with a table's row p instead of a second projection.

    Of several residual streams, x is the active one, and all but the first get the output (Gemma 3n).
    """

    probes: ClassVar = {"hidden": "... D_p"}

    def __init__(self, feedforward: spec.PerLayerInput, place: Place) -> None:
        super().__init__()
        self.gate = Linear(place.d_model, feedforward.features, bias=False)
        self.down = Linear(feedforward.features, place.d_model, bias=False)
        self.product = gated_product(GatedMLP(d_ff=feedforward.features, activation=feedforward.activation))
        norms = (feedforward.input_norm, feedforward.added_norm)
        self.input_norm, self.added_norm = (build_norm(norm, place.d_model) for norm in norms)
        self.num_streams, self.active = feedforward.num_streams, feedforward.active

    def forward(
        self, x: Float[Tensor, "B T ... D"], context: ForwardContext, state: LayerState | None = None
    ) -> Float[Tensor, "B T ... D"]:
        """Return the update of `x`: vectors (B, T, D), or streams (B, T, n, D)."""
        active = x if self.num_streams == 1 else x[:, :, self.active].contiguous()
        gate: Tensor = self.gate(self.input_norm(active, context))  # (B, T, D_p)
        layer_input = context.layer_inputs[context.layer].to(gate.dtype)  # (B, T, D_p), p of this layer
        hidden = context.probe(self, "hidden", self.product(context.kernels, gate, layer_input))
        y: Tensor = self.added_norm(self.down(hidden), context)
        if self.num_streams == 1:
            return y
        others = y[:, :, None].expand(-1, -1, self.num_streams - 1, -1)
        return nn.functional.pad(others, (0, 0, 1, 0))  # nothing for the first stream
