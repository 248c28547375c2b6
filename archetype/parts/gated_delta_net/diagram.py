"""Drawing of a gated delta network."""

from archetype.parts.gated_delta_net.spec import GatedDeltaNet
from archetype.roles.drawing import Cell, Inside, X, inside_of


@inside_of(GatedDeltaNet)
def gated_delta_net(part: GatedDeltaNet, modules: frozenset[str]) -> Inside:
    """Draw queries, keys and values through a convolution, the delta rule, and a gated norm (Yang 2024b, figure 1)."""
    decay = {"head": "decay a, rate b", "channel": "decays a, rate b", "none": "rate b"}[part.decay]
    gate = {"none": "", "silu": " × SiLU(gate)", "sigmoid": " × σ(gate)"}[part.gate]
    gates = () if part.gate == "none" else (Cell("gate", 4, 0, (X,), rows=("gate", "gate_down", "gate_up")),)
    inputs = ("rule", *(cell.name for cell in gates))
    cells = (
        Cell("q", 0, 0, (X,)),
        Cell("k", 1, 0, (X,)),
        Cell("v", 2, 0, (X,)),
        Cell("decay", 3, 0, (X,), label=decay, rows=("a", "a_down", "a_up", "b", "dt_bias", "A_log")),
        *gates,
        Cell("conv", 0, 1, ("q", "k", "v"), 3, "conv, SiLU", rows=("conv",), lanes=3),
        Cell(
            "rule", 0, 2, ("conv", "decay"), 4, "gated delta rule", ("scores", "mixture", "memory"), shape="(B, T, HQ)"
        ),
        Cell("norm", 0, 3, inputs, 4 + len(gates), f"norm(y){gate}", slim=True, kind="norm", gives="o.in"),
        Cell("o", 2, 4, ("norm",)),
    )
    return Inside(cells, "o")
