"""View of mixtures of experts: the experts of each token, and how evenly tokens are distributed."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from archetype.errors import SpecError
from archetype.inspection import figures
from archetype.inspection.names import layer_path, shown_parts
from archetype.inspection.trace import Trace
from archetype.inspection.view import View, rounded
from archetype.nn.inspect import Routing
from archetype.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class ExpertsView(View):
    routings: list[Routing]
    tokens: tuple[str, ...]

    def table(self) -> Table:
        rows = []
        for routing in self.routings:
            load = "  ".join(f"{value:.0%}" for value in routing.load.tolist())
            # the largest load relative to the mean load 1 / E
            entropy, imbalance = float(routing.entropy.mean()), len(routing.load) * float(routing.load.max())
            rows.append((routing.path, load, f"{entropy:.3f}", f"{imbalance:.2f}"))
        return Table(("mixture", "load of each expert", "router entropy", "max / mean load"), rows, text_columns=2)

    def record(self) -> dict[str, Any]:
        names = ("weights", "load", "entropy")
        mixtures = [
            {"path": routing.path, "chosen": routing.chosen.tolist()}
            | {name: rounded(getattr(routing, name)) for name in names}
            for routing in self.routings
        ]
        return {"tokens": [*self.tokens], "mixtures": mixtures}

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{routing.path}.{name}": getattr(routing, name)
            for routing in self.routings
            for name in ("chosen", "weights", "load", "entropy")
        }

    def draw(self) -> "Figure":
        width = max(4.5, min(11.0, 0.24 * len(self.tokens) + 1.5))
        heights = [max(1.3, 0.17 * len(routing.load) + 0.5) for routing in self.routings]
        figure = figures.new_figure(width + 2.4, sum(heights) + 1.4)
        grid = figure.subplots(
            len(heights), 2, squeeze=False, width_ratios=(width, 1.6), height_ratios=heights, sharey="row"
        )
        image = None
        for row, routing in enumerate(self.routings):
            left, right = grid[row]
            experts = [*map(str, range(len(routing.load)))]
            names = self.tokens if row == len(heights) - 1 else ()
            image = figures.heat_map(
                left, routing.gates.T, experts, names, colors="magma", low=0.0, high=float(routing.weights.max())
            )
            figures.title(left, f"{routing.path}: weight of each expert", 9)
            right.barh(range(len(routing.load)), routing.load.tolist(), color=figures.COLORS["feedforward"], height=0.7)
            # load of even routing
            right.axvline(1 / len(routing.load), color=figures.INK, linewidth=0.8, linestyle=":")
            figures.plain(right)
            figures.title(right, "load", 9)
            right.tick_params(labelleft=False, left=False)
            figures.color_bar(figure, image, left, "")
        return figure


def mixture_paths(trace: Trace) -> list[str]:
    return [path for path, shown in shown_parts(trace.model).items() if shown.routing is not None]


@torch.no_grad()
def experts_view(trace: Trace, layer: int | str | None = None) -> ExpertsView:
    """Return the routing of all tokens in a layer's mixture of experts (default: in all layers).

    Raises:
        SpecError: the model or layer has no mixture of experts.
    """
    start = "" if layer is None else f"{layer_path(trace.model, layer)}."
    routings = [_routing(trace, path) for path in mixture_paths(trace) if path.startswith(start)]
    if not routings:
        raise SpecError("experts", "the model has no mixture of experts", "choose another view")
    count = len(routings[0].chosen)
    tokens = trace.inputs.tokens if len(trace.inputs.tokens) == count else tuple(map(str, range(count)))
    return ExpertsView(routings, tokens)


def _routing(trace: Trace, path: str) -> Routing:
    routing = shown_parts(trace.model)[path].routing
    assert routing is not None
    return routing(trace.part(path))
