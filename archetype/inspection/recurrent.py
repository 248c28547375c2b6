"""The states of layers without attention: their sizes, steps of state spaces, gates, patches, slots of n-grams."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archetype.errors import SpecError
from archetype.inspection import figures
from archetype.inspection.names import layer_path, layers
from archetype.inspection.trace import Trace
from archetype.inspection.view import View, rounded
from archetype.models.megabyte.module import MegaByte
from archetype.models.ngram.module import NGram
from archetype.nn.cache import KVCache, LayerState
from archetype.nn.context import ForwardContext
from archetype.parts.recurrent.module import Recurrent
from archetype.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = ("delta", "rate", "log_decay")  # probes of which a step's mean is shown
GATES = {nn.LSTM: ("input", "forget", None, "output"), nn.GRU: ("reset", "update", None)}


class Series(NamedTuple):
    """Numbers of a part along the text: of each position (T,)."""

    path: str
    name: str
    values: Float[Tensor, "T"]


@dataclass
class RecurrentView(View):
    """Series of all parts, by path and name, and the tokens of the positions."""

    series: list[Series]
    tokens: tuple[str, ...]

    def table(self) -> Table:
        """A series a row."""
        rows = []
        for path, name, values in self.series:
            numbers = (float(values[0]), float(values.mean()), float(values.max()), float(values[-1]))
            rows.append((path, name, *(f"{number:.4g}" for number in numbers)))
        return Table(("part", "", "first", "mean", "most", "last"), rows, text_columns=2)

    def record(self) -> dict[str, Any]:
        series = [{"path": path, "name": name, "values": rounded(values)} for path, name, values in self.series]
        return {"tokens": [*self.tokens], "series": series}

    def tensors(self) -> dict[str, Tensor]:
        """The series by path and name."""
        return {f"{path}.{name}".lstrip("."): values for path, name, values in self.series}

    def draw(self) -> "Figure":
        """A part a row, a series a column."""
        paths = list(dict.fromkeys(path for path, *_ in self.series))
        columns = max(sum(path == own for own, *_ in self.series) for path in paths)
        width = max(2.6, min(7.0, 0.13 * len(self.tokens) + 1.2))
        figure = figures.new_figure(columns * width + 0.6, 1.55 * len(paths) + 0.8)
        grid = figure.subplots(len(paths), columns, squeeze=False)
        for row, path in enumerate(paths):
            own = [one for one in self.series if one.path == path]
            for column in range(columns):
                axes = grid[row, column]
                if column >= len(own):
                    axes.set_axis_off()
                    continue
                _, name, values = own[column]
                places = range(len(values))
                color = list(figures.COLORS.values())[1 + column % 4]
                axes.plot(places, values.tolist(), color=color, linewidth=1.3, marker=".", markersize=3)
                axes.fill_between(places, values.tolist(), alpha=0.12, color=color, linewidth=0)
                axes.set_ylim(min(0.0, float(values.min())), 1.0 if name.endswith(" gate") else None)
                figures.plain(axes, grid=True)
                figures.title(axes, f"{path} {name}".strip(), 8)
                if row == len(paths) - 1 and len(self.tokens) == len(values) <= figures.MAX_LABELS:
                    texts = [figures.label(token, 8) for token in self.tokens]
                    axes.set_xticks(list(places), texts, fontsize=6, rotation=90, family="monospace", parse_math=False)
        return figure


def recurrent_view(trace: Trace, layer: int | str | None = None) -> RecurrentView:
    """States and gates of the first row.

    Args:
        trace: of a text.
        layer: whose (absent: of all).

    Raises:
        SpecError: no part of this model remembers otherwise than by keys and values.
    """
    return view_of_series(trace, [series for part in recurrent_parts(trace, layer) for series in part])


@torch.no_grad()
def recurrent_parts(trace: Trace, layer: int | str | None = None) -> Iterator[list[Series]]:
    """The series of one layer after the other, each read token by token, and of the model; as for `recurrent_view`."""
    for path in layers(trace.model) if layer is None else [layer_path(trace.model, layer)]:
        yield [*_of_layer(trace, f"{path}.mixer")]
    if layer is None:
        yield [*_of_model(trace)]


def view_of_series(trace: Trace, series: list[Series]) -> RecurrentView:
    """The view of all series.

    Raises:
        SpecError: there are none.
    """
    if not series:
        raise SpecError("recurrent", "all that is remembered here are keys and values", "look at the attention")
    tokens = next((
        texts for texts in (trace.inputs.tokens, trace.inputs.source_tokens) if len(texts) == len(series[0].values)
    ), tuple(map(str, range(len(series[0].values)))))  # fmt: skip
    return RecurrentView(series, tokens)


def has_recurrent_view(trace: Trace) -> bool:
    """Whether a part remembers otherwise than by keys and values."""
    mixers = [f"{path}.mixer" for path in layers(trace.model)]
    return isinstance(trace.model, MegaByte | NGram) or any(
        isinstance(trace.model.get_submodule(path), Recurrent)
        or any(f"{path}.{name}" in trace for name in STEPS)
        or _state_before(trace, path) is not None
        for path in mixers
    )


def _of_layer(trace: Trace, path: str) -> Iterator[Series]:
    module = trace.model.get_submodule(path)
    for name, norms in state_norms(trace, path).items():
        yield Series(path, f"norm of {name}", norms[0])
    if isinstance(module, Recurrent):
        for name, gate in gates(trace, path).items():
            yield Series(path, f"{name} gate", gate[0].float().mean(-1))
    for name in STEPS:
        if f"{path}.{name}" in trace:
            values = trace[f"{path}.{name}"][0].float().flatten(1).mean(-1)
            assert len(values) == trace[f"{path}.in"].shape[1]
            yield Series(path, f"mean {name}", values)


def _of_model(trace: Trace) -> Iterator[Series]:
    """The contexts of MegaByte's patches; how much each slot of an n-gram moves its first layer."""
    if isinstance(trace.model, MegaByte):
        yield Series("patches", "norm of context", trace["contexts"][0].float().norm(dim=-1))
    if isinstance(trace.model, NGram) and "hidden.0.in" in trace:
        layer: nn.Linear = trace.model.hidden[0]  # type: ignore[assignment]
        slots = trace["hidden.0.in"][0].unflatten(-1, (trace.model.spec.n, -1))  # (T, n, D)
        weight = layer.weight.unflatten(1, (trace.model.spec.n, -1))  # (F, n, D)
        norms = torch.einsum("tnd,fnd->tnf", slots, weight).float().norm(dim=-1)
        for place, values in enumerate(norms.unbind(1)):
            back = trace.model.spec.n - 1 - place
            yield Series("slots", "newest token" if back == 0 else f"{back} back", values)


def state_norms(trace: Trace, path: str) -> dict[str, Float[Tensor, "B T"]]:
    """The norm of each tensor of a mixer's state after every position, read token by token.

    Keys and values are no such state, and what reads a text from both ends has none.
    """
    if (state := _state_before(trace, path)) is None:
        return {}
    module, x = trace.model.get_submodule(path), trace[f"{path}.in"]
    rows = torch.arange(x.shape[0], device=x.device)
    norms: dict[str, list[Tensor]] = {}
    for place in range(x.shape[1]):
        token = x[:, place : place + 1]
        module(token, ForwardContext.of(token, torch.full_like(rows, place)), state)
        for _, name, tensor in state.tensors():
            if tensor.is_floating_point():
                norms.setdefault(name, []).append(tensor.float().flatten(1).norm(dim=1))
    return {name: torch.stack(values, 1) for name, values in norms.items()}


def _state_before(trace: Trace, path: str) -> LayerState | None:
    """The state with which a mixer began to read; None where it has keys and values, or reads from both ends."""
    module: Any = trace.model.get_submodule(path)
    if getattr(module, "directions", 1) > 1 or not hasattr(module, "new_state"):
        return None
    if isinstance(module.new_state(1, 1, trace.model.dtype, trace.model.device), KVCache):
        return None
    x, cache = trace[f"{path}.in"], trace.calls[path].cache
    state: LayerState = module.new_state(x.shape[0], x.shape[1], x.dtype, x.device)
    return state if cache is None else cache.select(torch.arange(x.shape[0], device=x.device))


@torch.no_grad()
def gates(trace: Trace, path: str) -> dict[str, Float[Tensor, "B T h"]]:
    """The gates of an LSTM or a GRU, from what its kernel read and gave; of two directions, one after the other."""
    module = trace.model.get_submodule(path)
    assert isinstance(module, Recurrent)
    cell, x, y = module.cell, trace[f"{path}.in"], trace[f"{path}.out"]
    names = next((names for kind, names in GATES.items() if isinstance(cell, kind)), ())
    cache = trace.calls[path].cache
    size = cell.hidden_size
    directions = []
    for number in range(module.directions):
        suffix = "_reverse" if number else ""
        ih, hh, b, c = (
            getattr(cell, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        own = y[..., number * size : (number + 1) * size]
        first = torch.zeros_like(own[:, :1])
        if cache is not None:
            first = cache.hidden[:, None, number * size : (number + 1) * size].to(own)  # type: ignore[attr-defined]
        before = torch.cat((own[:, 1:], first), 1) if number else torch.cat((first, own[:, :-1]), 1)
        sums = nn.functional.linear(x, ih, b) + nn.functional.linear(before, hh, c)
        directions.append(sums.sigmoid().split(size, dim=-1))
    return {
        name: torch.cat([parts[place] for parts in directions], -1)
        for place, name in enumerate(names)
        if name is not None
    }
