"""View of recurrent memory: norms of states, and series along a sequence that parts provide."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.errors import SpecError
from archetype.inspection import figures
from archetype.inspection.names import layer_path, layers, module_at, shown_parts
from archetype.inspection.trace import Trace
from archetype.inspection.view import View, rounded
from archetype.nn.cache import KVCache
from archetype.nn.context import ForwardContext
from archetype.nn.inspect import Series
from archetype.nn.layer_state import LayerState
from archetype.nn.selection import IndexedKVCache
from archetype.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class RecurrentView(View):
    series: list[Series]
    tokens: tuple[str, ...]

    def table(self) -> Table:
        rows = []
        for path, name, values in self.series:
            figures_of_series = (float(values[0]), float(values.mean()), float(values.max()), float(values[-1]))
            rows.append((path, name, *(f"{figure:.4g}" for figure in figures_of_series)))
        return Table(("part", "", "first", "mean", "max", "last"), rows, text_columns=2)

    def record(self) -> dict[str, Any]:
        series = [{"path": path, "name": name, "values": rounded(values)} for path, name, values in self.series]
        return {"tokens": [*self.tokens], "series": series}

    def tensors(self) -> dict[str, Tensor]:
        return {f"{path}.{name}".lstrip("."): values for path, name, values in self.series}

    def draw(self) -> "Figure":
        paths = list(dict.fromkeys(path for path, *_ in self.series))
        columns = max(sum(series.path == path for series in self.series) for path in paths)
        width = max(2.6, min(7.0, 0.13 * len(self.tokens) + 1.2))
        figure = figures.new_figure(columns * width + 0.6, 1.55 * len(paths) + 0.8)
        grid = figure.subplots(len(paths), columns, squeeze=False)
        for row, path in enumerate(paths):
            part_series = [series for series in self.series if series.path == path]
            for column in range(columns):
                axes = grid[row, column]
                if column >= len(part_series):
                    axes.set_axis_off()
                    continue
                _, name, values = part_series[column]
                steps = range(len(values))
                color = list(figures.COLORS.values())[1 + column % 4]
                axes.plot(steps, values.tolist(), color=color, linewidth=1.3, marker=".", markersize=3)
                axes.fill_between(steps, values.tolist(), alpha=0.12, color=color, linewidth=0)
                axes.set_ylim(min(0.0, float(values.min())), 1.0 if name.endswith(" gate") else None)
                figures.plain(axes, grid=True)
                figures.title(axes, f"{path} {name}".strip(), 8)
                if row == len(paths) - 1 and len(self.tokens) == len(values) <= figures.MAX_LABELS:
                    names = [figures.label(token, 8) for token in self.tokens]
                    axes.set_xticks(list(steps), names, fontsize=6, rotation=90, family="monospace", parse_math=False)
        return figure


def recurrent_view(trace: Trace, layer: int | str | None = None) -> RecurrentView:
    """Return the states and gates of the first row for one layer (default: for all layers).

    Raises:
        SpecError: the model has no memory except keys and values.
    """
    return view_of_series(trace, [series for part in recurrent_parts(trace, layer) for series in part])


@torch.no_grad()
def recurrent_parts(trace: Trace, layer: int | str | None = None) -> Iterator[list[Series]]:
    """Yield the series of each layer, processed token by token, then the model's series; see `recurrent_view`."""
    paths = recurrent_paths(trace)
    for block in layers(trace.model) if layer is None else [layer_path(trace.model, layer)]:
        series: list[Series] = []
        for path in (path for path in paths if path.startswith(f"{block}.")):
            norms = state_norms(trace, path).items()
            series += [Series(path, f"norm of {name}", values[0]) for name, values in norms]
            series += _shown(trace, path)
        yield series
    if layer is None:
        yield [*_shown(trace, "")]


def view_of_series(trace: Trace, series: list[Series]) -> RecurrentView:
    if not series:
        raise SpecError("recurrent", "the only memory is keys and values", "use the view attention")
    tokens = next(
        (side for side in (trace.inputs.tokens, trace.inputs.source_tokens) if len(side) == len(series[0].values)),
        tuple(map(str, range(len(series[0].values)))),
    )
    return RecurrentView(series, tokens)


def has_recurrent_view(trace: Trace) -> bool:
    return shown_parts(trace.model)[""].series is not None or bool(recurrent_paths(trace))


def recurrent_paths(trace: Trace) -> list[str]:
    parts = {path: shown for path, shown in shown_parts(trace.model).items() if path}
    return [path for path, shown in parts.items() if shown.series is not None or _state_before(trace, path) is not None]


def _shown(trace: Trace, path: str) -> Iterable[Series]:
    series = shown_parts(trace.model)[path].series
    return () if series is None else series(trace.part(path))


def state_norms(trace: Trace, path: str) -> dict[str, Float[Tensor, "B T"]]:
    """Return the norm of each tensor in a mixer's state after every position, processed token by token."""
    norms: dict[str, list[Tensor]] = {}
    # none for keys and values, and for bidirectional parts
    for tensors in states(trace, path):
        for name, tensor in tensors.items():
            norms.setdefault(name, []).append(tensor.float().flatten(1).norm(dim=1))  # (B,)
    return {name: torch.stack(values, 1) for name, values in norms.items()}


def states(trace: Trace, path: str) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of a mixer's state after each position, by name. Each step overwrites the previous tensors."""
    if (state := _state_before(trace, path)) is None:
        return
    module, x, call = module_at(trace.model, path), trace[f"{path}.in"], trace.calls[path].context
    # what earlier layers of this pass left for later ones, such as keys and values
    left = {} if call is None else {layer: value for layer, value in call.left.items() if isinstance(value, Tensor)}
    first_row = torch.arange(x.shape[0], device=x.device)
    for position in range(x.shape[1]):
        token = x[:, position : position + 1]  # (B, 1, D)
        context = ForwardContext.of(token, torch.full_like(first_row, position))
        context.left = {layer: value[:, position : position + 1] for layer, value in left.items()}
        if call is not None and call.tokens is not None:
            context.tokens = call.tokens[:, position : position + 1]
        module(token, context, state)
        yield {name: tensor for _, name, tensor in state.tensors() if tensor.is_floating_point()}


def _state_before(trace: Trace, path: str) -> LayerState | None:
    module: Any = module_at(trace.model, path)
    # a bidirectional part reads the whole text before its first output
    if getattr(module, "directions", 1) > 1 or not hasattr(module, "new_state"):
        return None
    empty = module.new_state(1, 1, trace.model.dtype, trace.model.device)
    if empty is None or isinstance(empty, KVCache | IndexedKVCache):
        return None
    x, cache = trace[f"{path}.in"], trace.calls[path].cache  # a recorded state is copied: each step changes it
    state: LayerState = module.new_state(x.shape[0], x.shape[1], x.dtype, x.device)
    return state if cache is None else cache.select(torch.arange(x.shape[0], device=x.device))
