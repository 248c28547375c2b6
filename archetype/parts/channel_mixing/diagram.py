"""Drawing of channel mixing."""

from archetype.parts.channel_mixing.spec import ChannelMixing
from archetype.roles.drawing import Cell, Inside, X, inside_of, operation


@inside_of(ChannelMixing)
def channel_mixing(part: ChannelMixing, modules: frozenset[str]) -> Inside:
    """Draw the mix with the previous token, and the network of it (Peng 2023, figure 2)."""
    mixes = tuple(name for name in ("mix", "mix_receptance") if name in modules)
    width = 1 + part.receptance
    cells = [
        Cell("mix", 0, 0, (X,), width, "mix with x of t − 1", rows=mixes, lanes=width),
        Cell("up", 0, 1, ("mix",)),
        operation("hidden", 0, 2, ("up",), label="ReLU²"),
        Cell("down", 0, 3, ("hidden",)),
    ]
    if not part.receptance:
        return Inside(tuple(cells), "down")
    cells.append(Cell("receptance", 1, 1, ("mix@1",)))
    cells.append(operation("gated", 0, 4, ("down", "receptance"), 2, "down × σ(receptance)"))
    return Inside(tuple(cells), "gated")
