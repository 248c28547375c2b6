"""Drawing of Mamba-2."""

from archetype.parts.mamba2.spec import Mamba2
from archetype.roles.drawing import Cell, Inside, X, inside_of


@inside_of(Mamba2)
def mamba2(part: Mamba2, modules: frozenset[str]) -> Inside:
    """Draw a scan in chunks and its gate with a norm (Dao 2024, figure 6)."""
    gates = {"after_gate": "norm(y × SiLU(z))", "before_gate": "norm(y) × SiLU(z)", "none": "y × SiLU(z)"}
    ssd_modules = ("scores", "mixture", "memory", "dt_bias", "A_log", "D")
    cells = (
        Cell("in_proj", 0, 0, (X,), 3),
        Cell("conv", 0, 1, ("in_proj",), label="conv, SiLU", rows=("conv",)),
        Cell("ssd", 0, 2, ("conv", "in_proj@1"), 2, "SSD in chunks", ssd_modules, shape="(B, T, HP)"),
        Cell("norm", 0, 3, ("ssd", "in_proj@2"), 3, gates[part.norm], slim=True, kind="norm", gives="out_proj.in"),
        Cell("out_proj", 1, 4, ("norm",)),
    )
    return Inside(cells, "out_proj")
