"""Gates of an LSTM or GRU, recomputed from inputs and outputs, since the kernel does not expose them."""

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.nn.inspect import PartTrace, Series, Shown
from archetype.parts.recurrent.spec import GRU, LSTM, RNN
from archetype.spec.registry import provides

GATES = {nn.LSTM: ("input", "forget", None, "output"), nn.GRU: ("reset", "update", None)}


def gates(part: PartTrace) -> dict[str, Float[Tensor, "B T h"]]:
    """Return each gate by name, with both directions concatenated; empty for a plain RNN."""
    cell, x, y = part.module.cell, part.activations["in"], part.activations["out"]
    names = next((names for kind, names in GATES.items() if isinstance(cell, kind)), ())
    size = cell.hidden_size
    directions = []
    for direction in range(part.module.directions):
        suffix = "_reverse" if direction else ""
        ih, hh, b, c = (
            getattr(cell, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        output = y[..., direction * size : (direction + 1) * size]
        first = torch.zeros_like(output[:, :1])
        if part.state is not None:
            first = part.state.hidden[:, None, direction * size : (direction + 1) * size].to(output)  # type: ignore[attr-defined]
        # the hidden vector that each step reads, (B, T, h): the output one position earlier, or later if reading
        # backwards
        before = torch.cat((output[:, 1:], first), 1) if direction else torch.cat((first, output[:, :-1]), 1)
        sums = nn.functional.linear(x, ih, b) + nn.functional.linear(before, hh, c)
        # all gates that are named have a sigmoid; the candidate (name None) has tanh and is left out
        directions.append(sums.sigmoid().split(size, dim=-1))
    return {
        name: torch.cat([parts[index] for parts in directions], -1)
        for index, name in enumerate(names)
        if name is not None
    }


def series(part: PartTrace) -> Iterator[Series]:
    """Yield the mean of each gate over its features."""
    for name, gate in gates(part).items():
        yield Series(part.path, f"{name} gate", gate[0].float().mean(-1))


provides("inspect", RNN, LSTM, GRU)(Shown(series=series, inside=gates))
