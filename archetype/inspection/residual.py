"""View of the residual stream: its norm after each layer, and the additions of each sublayer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from archetype.errors import SpecError
from archetype.inspection import figures
from archetype.inspection.lens import residual_names
from archetype.inspection.names import module_at, stacks
from archetype.inspection.trace import Trace
from archetype.inspection.view import View, rounded
from archetype.models.block.module import Block
from archetype.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CONTENTS = ("mixer", "cross", "feedforward")
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative error of a sum; 3e-2 for 16-bit types


def added_by(trace: Trace, path: str) -> dict[str, Tensor] | None:
    """Return the vectors that each sublayer adds to the stream; None if the layer is not a sum of this kind.

    With an output scale, they are what is left of the additions after it.
    """
    block = module_at(trace.model, path)
    if not isinstance(block, Block) or block.added is None or not block.adds_up:
        return None
    present = [content for content in CONTENTS if getattr(block, content, None) is not None]
    factor = output_scale(block)
    parts = {
        content: trace[f"{path}.{content}{block.added}.out"] * (block.residual_scale * factor) for content in present
    }
    before, after = trace[f"{path}.in"], trace[f"{path}.out"]
    difference = (before * factor + sum(parts.values()) - after).abs().max()
    # checked, since an extension may override the wiring that it derives from
    scale = max(float(x.abs().max()) for x in (before, after, *parts.values()))
    return parts if float(difference) <= TOLERANCE.get(after.dtype, 3e-2) * scale else None


def output_scale(block: Block) -> float:
    """Return the factor on the whole output of a block, 1 if it has none."""
    return 1.0 if block.output_scale is None else float(block.output_scale.detach())


def main_stack(trace: Trace) -> str:
    """Return the path of the decoder, of MegaByte's global model, or of the only stack."""
    paths = stacks(trace.model)
    if not paths:
        kind = trace.model.spec.kind
        raise SpecError("residual", f"a model of kind {kind} has no residual stream", "choose another view")
    return next((path for path in ("decoder", "global_model") if path in paths), next(iter(paths)))


@dataclass
class ResidualView(View):
    """Norms of the residual stream.

    Attributes:
        layers: labels of the embedding and of each layer.
        tokens: tokens at the positions.
        norms: norms after the embedding and after each layer.
        added: norm of each sublayer's addition (mixer, cross, feedforward) by layer; NaN if the layer lacks it.
        shares: projection of the addition onto the vector after the layer, relative to that vector's squared norm. With
            the share of the vector before the layer, they sum to 1.
    """

    layers: list[str]
    tokens: tuple[str, ...]
    norms: Float[Tensor, "layers T"]
    added: Mapping[str, Float[Tensor, "layers T"]]
    shares: Mapping[str, Float[Tensor, "layers T"]]

    def table(self) -> Table:
        headings = ["", "norm", *(f"{name} {measure}" for name in self.added for measure in ("norm", "share"))]
        # means over positions
        rows = [["embedding", f"{float(self.norms[0].mean()):.3f}", *("" for _ in headings[2:])]]
        for index, layer in enumerate(self.layers[1:]):
            cells = [layer, f"{float(self.norms[index + 1].mean()):.3f}"]
            for name in self.added:
                norm, share = float(self.added[name][index].mean()), float(self.shares[name][index].mean())
                cells += ["" if norm != norm else f"{norm:.3f}", "" if share != share else f"{share:.1%}"]
            rows.append(cells)
        return Table(headings, rows)

    def record(self) -> dict[str, Any]:
        added = {name: {"norm": rounded(self.added[name]), "share": rounded(self.shares[name])} for name in self.added}
        return {"layers": self.layers, "tokens": [*self.tokens], "norms": rounded(self.norms), "added": added}

    def tensors(self) -> dict[str, Tensor]:
        tensors = {"norms": self.norms}
        for name in self.added:
            tensors |= {f"{name}.norm": self.added[name], f"{name}.share": self.shares[name]}
        return tensors

    def draw(self) -> "Figure":
        width = max(4.0, min(9.0, 0.22 * len(self.tokens) + 2.0))
        height = max(3.2, 0.26 * len(self.layers) + 1.3)
        figure = figures.new_figure(width + 4.4, height)
        left, right = figure.subplots(1, 2, width_ratios=(width, 3.8))
        image = figures.heat_map(left, self.norms.flip(0), self.layers[::-1], self.tokens, colors="cividis")
        figures.title(left, "Norm of the residual stream after each layer")
        figures.color_bar(figure, image, left, "norm")
        self.draw_on(right)
        return figure

    def draw_on(self, axes: "Axes") -> None:
        depth = range(1, len(self.layers))
        axes.plot(
            range(len(self.layers)), self.norms.mean(1).tolist(), color=figures.INK, linewidth=1.6, label="stream"
        )
        for name, norms in self.added.items():
            if not norms.isnan().all():
                color = figures.COLORS[name]
                axes.plot(
                    depth, norms.mean(1).tolist(), color=color, linewidth=1.3, marker="o", markersize=3, label=name
                )
        figures.plain(axes, grid=True)
        axes.set_ylim(bottom=0)
        axes.set_xticks(range(0, len(self.layers), max(1, len(self.layers) // 8)))
        axes.set_xticklabels(["emb" if tick == 0 else str(int(tick) - 1) for tick in axes.get_xticks()])
        axes.set_xlabel("after layer", fontsize=8)
        axes.legend(fontsize=8, frameon=False)
        figures.title(axes, "Norm, and what each part adds")


@torch.no_grad()
def residual_view(trace: Trace, stack: str | None = None) -> ResidualView:
    """Return the norms of the residual stream for the first row.

    Args:
        stack: path of a stack, such as "encoder" (default: the decoder, MegaByte's global model, or the only stack).

    Raises:
        SpecError: the model has no layers.
    """
    stack = main_stack(trace) if stack is None else stack
    if stack not in stacks(trace.model):
        raise SpecError("stack", f"no stack is named {stack!r}", f"use one of {', '.join(stacks(trace.model))}")
    points = residual_names(trace, stack)
    leave = stacks(trace.model)[stack].leave
    # (T, D) each, also of several residual streams
    after = [leave(trace[name])[0].float() for name in points.values()]
    norms = torch.stack([x.norm(dim=-1) for x in after])
    names = [name.removesuffix(".out") for name in [*points.values()][1:]]
    contents = [c for c in CONTENTS if any(f"{name}.{c}.out" in trace for name in names)]
    undefined = torch.full_like(norms[0], torch.nan)
    added: dict[str, list[Tensor]] = {content: [] for content in contents}
    shares: dict[str, list[Tensor]] = {content: [] for content in contents}
    for name, x in zip(names, after[1:], strict=True):
        parts = added_by(trace, name)
        for content in contents:
            output = trace[f"{name}.{content}.out"][0].float() if f"{name}.{content}.out" in trace else None
            part = None if parts is None or content not in parts else parts[content][0].float()
            # without a sum, the norm of what the content returns, perhaps to several streams
            size = part if part is not None else output
            added[content].append(undefined if size is None else size.flatten(1).norm(dim=-1))
            shares[content].append(undefined if part is None else (part * x).sum(-1) / x.square().sum(-1))
    side = trace.inputs.source_tokens if stack == "encoder" else trace.inputs.tokens
    tokens = side if len(side) == norms.shape[1] else tuple(map(str, range(norms.shape[1])))
    stacked = ({c: torch.stack(v) for c, v in columns.items()} for columns in (added, shares))
    return ResidualView([*points], tokens, norms, *stacked)
