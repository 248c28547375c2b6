"""Views of attention in a trace: scores, masked scores and weights of a head, and statistics of all heads."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from archetype.errors import SpecError, nearest
from archetype.inspection import figures
from archetype.inspection.names import layer_path, shown_parts
from archetype.inspection.trace import Trace
from archetype.inspection.view import View, rounded
from archetype.nn.inspect import AttentionSteps
from archetype.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POOLED = 64  # largest side of a map in an overview
STATISTICS = ("entropy", "distance", "previous", "first", "induction")


def attention_paths(trace: Trace) -> list[str]:
    return [path for path, shown in shown_parts(trace.model).items() if shown.attention is not None]


def attention_path(trace: Trace, layer: int | str) -> str:
    """Return the path of a layer's attention part, given the layer's number or path, or the path of the part.

    Raises:
        SpecError: the layer has no attention.
    """
    paths = attention_paths(trace)
    if not paths:
        raise SpecError("attention", "this model has no attention", "choose another view")
    if layer in paths:
        return str(layer)
    if isinstance(layer, str) and layer.rpartition(".")[2] in ("mixer", "cross"):
        raise SpecError("layer", f"{layer} has no attention", nearest(layer, paths))
    path = layer_path(trace.model, layer)
    for start in (f"{path}.mixer", f"{path}.cross"):
        if inside := [part for part in paths if f"{part}.".startswith(f"{start}.")]:
            return inside[0]  # the first of parallel parts
    raise SpecError("layer", f"{path} has no attention", f"use one of {', '.join(paths)}")


@torch.no_grad()
def attention_steps(trace: Trace, path: str) -> AttentionSteps:
    steps = shown_parts(trace.model)[path].attention
    assert steps is not None
    return steps(trace.part(path))


def head_statistics(weights: Float[Tensor, "H T S"], ids: Tensor | None = None) -> dict[str, Float[Tensor, "H"]]:
    """Return statistics of each head, averaged over queries.

    Args:
        weights: attention weights.
        ids: token ids, (T,), if queries and keys are the same tokens. Otherwise, only entropy and first are defined.

    Returns:
        By name: entropy (nats); distance to the keys (positions); weight of the previous position, of the first
            position, and of the position after an earlier occurrence of the token (Olsson 2022; NaN without one).
    """
    weights = weights.float()
    length, keys = weights.shape[1:]  # T, S
    queries, key_positions = torch.arange(length, device=weights.device), torch.arange(keys, device=weights.device)
    undefined = weights.new_full(weights.shape[:1], torch.nan)
    # the smallest normal number instead of 0: 0 * log(tiny) is 0, as in the definition of entropy
    logs = weights.clamp(min=torch.finfo(weights.dtype).tiny).log_()
    statistics = {"entropy": -logs.mul_(weights).sum(-1).mean(-1), "first": weights[..., 0].mean(-1)}
    if ids is None:
        return statistics | dict.fromkeys(("distance", "previous", "induction"), undefined)
    statistics["distance"] = (weights * (queries[:, None] - key_positions).abs()).sum(-1).mean(-1)
    # (H, T - 1): query t, key t - 1
    statistics["previous"] = weights.diagonal(-1, 1, 2).mean(-1) if length > 1 else undefined
    before = (ids[:, None] == ids) & (key_positions < queries[:, None])  # (T, S): the same token, earlier
    after = nn.functional.pad(before[:, :-1], (1, 0))  # the position after it
    induced = (weights * after).sum(-1)[:, after.any(-1)]  # (H, queries with an earlier occurrence)
    statistics["induction"] = induced.mean(-1) if induced.shape[1] else undefined
    return statistics


@dataclass
class AttentionHead(View):
    """Scores and weights of one head.

    Attributes:
        path: path of the attention part.
        scores: scores before masking.
        masked: scores with biases, and with -inf for masked pairs.
        weights: attention weights after the softmax.
    """

    path: str
    head: int
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    scores: Float[Tensor, "T S"]
    masked: Float[Tensor, "T S"]
    weights: Float[Tensor, "T S"]

    def table(self) -> Table:
        rows = []
        best = self.weights.topk(min(4, len(self.keys)))
        for position, (token, values, indices) in enumerate(
            zip(self.queries, best.values.tolist(), best.indices.tolist(), strict=True)
        ):
            keys = "  ".join(
                f"{self.keys[i]}@{i} {value:.1%}" for value, i in zip(values, indices, strict=True) if value
            )
            rows.append((f"{position} {token}", keys))
        return Table((f"{self.path} head {self.head}", "attends to"), rows, text_columns=2)

    def record(self) -> dict[str, Any]:
        steps = {name: rounded(tensor) for name, tensor in self.tensors().items()}
        return {"path": self.path, "head": self.head, "queries": [*self.queries], "keys": [*self.keys], **steps}

    def tensors(self) -> dict[str, Tensor]:
        return {"scores": self.scores, "masked": self.masked, "weights": self.weights}

    def draw(self) -> "Figure":
        side = min(max(2.6, 0.2 * max(len(self.queries), len(self.keys))), 6.5)
        figure = figures.new_figure(3 * side + 2.6, side + 1.5)
        axes = figure.subplots(1, 3)
        finite = self.masked[self.masked.isfinite()]
        low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
        weights = self.weights.masked_fill(self.masked.isneginf(), torch.nan)  # not drawn
        steps = (
            (self.scores, "1  score  q·k", low, high, "cividis"),
            (self.masked, "2  masked", low, high, "cividis"),
            (weights, "3  weight, after the softmax", 0.0, 1.0, "viridis"),
        )
        for index, (axis, (cells, heading, start, end, colors)) in enumerate(zip(axes, steps, strict=True)):
            image = figures.heat_map(
                axis, cells, self.queries if index == 0 else (), self.keys, colors=colors, low=start, high=end
            )
            figures.title(axis, heading)
            figures.color_bar(figure, image, axis, "")
            axis.set_aspect("equal", adjustable="box")
            axis.set_xlabel("keys", fontsize=8)
        axes[0].set_ylabel("queries", fontsize=8)
        figure.suptitle(f"{self.path}, head {self.head}\n", x=0.01, ha="left", fontsize=12, color=figures.INK)
        return figure


@dataclass
class AttentionView(View):
    """Statistics and attention maps of all heads in some layers.

    Attributes:
        paths: paths of the attention parts.
        statistics: statistics of the heads by name, for each part.
        maps: attention weights of each part, max-pooled for long sequences.
        allowed: whether a cell of a map contains an unmasked pair.
    """

    paths: list[str]
    statistics: list[dict[str, Float[Tensor, "H"]]]
    maps: list[Float[Tensor, "H rows columns"]] = field(repr=False)
    allowed: list[Bool[Tensor, "H rows columns"]] = field(repr=False)

    def table(self) -> Table:
        return Table(
            ("layer", "head", *STATISTICS),
            [
                (path, str(head), *(_number(values[name][head]) for name in STATISTICS))
                for path, values in zip(self.paths, self.statistics, strict=True)
                for head in range(len(values["entropy"]))
            ],
        )

    def record(self) -> dict[str, Any]:
        return {
            "attention": [
                {"path": path} | {name: rounded(values[name]) for name in STATISTICS}
                for path, values in zip(self.paths, self.statistics, strict=True)
            ]
        }

    def tensors(self) -> dict[str, Tensor]:
        tensors = {f"{path}.maps": maps for path, maps in zip(self.paths, self.maps, strict=True)}
        for path, values in zip(self.paths, self.statistics, strict=True):
            tensors |= {f"{path}.{name}": values[name] for name in STATISTICS}
        return tensors

    def draw(self) -> "Figure":
        # one layer per row of figures, or several rows for many heads of a single layer
        heads = max(len(maps) for maps in self.maps)
        single = len(self.paths) == 1 and heads > 4
        across = min(heads, 4) if single else heads
        down = -(-heads // across) if single else len(self.paths)
        side = 2.2 if single else min(1.5, 14 / across)
        figure = figures.new_figure(across * side + 1.6, down * (side + 0.28) + 0.7)
        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
        image = None
        for row, (path, maps, allowed) in enumerate(zip(self.paths, self.maps, self.allowed, strict=True)):
            for head, cells in enumerate(maps.masked_fill(~allowed, torch.nan)):
                axes = grid[head // across, head % across] if single else grid[row, head]
                axes.set_axis_on()
                image = figures.heat_map(axes, cells, low=0.0, high=1.0)
                axes.set_xticks([]), axes.set_yticks([])
                if row == 0:
                    figures.title(axes, f"head {head}", 8)
                if head == 0 and not single:
                    axes.set_ylabel(_short(path), fontsize=8, color=figures.INK)
        if image is not None:
            figures.color_bar(figure, image, grid.ravel().tolist(), "weight")
        heading = f"{self.paths[0]}: " if single else ""
        figure.suptitle(
            f"{heading}attention of each head, queries down, keys across",
            x=0.01,
            ha="left",
            fontsize=11,
            color=figures.INK,
        )
        return figure


def attention_view(trace: Trace, layer: int | str | None = None, head: int | None = None) -> View:
    """Return the view of all heads, of the heads in one layer, or of a single head.

    Args:
        layer: number or path of a layer (default: all layers with attention).
        head: index of a head; requires `layer`.

    Raises:
        SpecError: the layer or head does not exist.
    """
    if head is not None and layer is None:
        raise SpecError("head", "needs a layer", "pass the layer as well")
    paths = attention_paths(trace) if layer is None else [attention_path(trace, layer)]
    if not paths:
        raise SpecError("attention", "this model has no attention", "choose another view")
    if head is not None:
        steps = attention_steps(trace, paths[0])
        count = steps.weights.shape[1]
        if not 0 <= head < count:
            raise SpecError("head", f"{head} is out of range", f"use 0 to {count - 1}")
        tokens = _tokens(trace, paths[0], steps.weights)
        return AttentionHead(
            paths[0], head, *tokens, *(part[0, head] for part in (steps.scores, steps.masked, steps.weights))
        )
    views = []
    for path in paths:
        steps = attention_steps(trace, path)
        views.append(_of_heads(trace, path, steps.weights[0], steps.masked[0]))
    return AttentionView(
        paths,
        [view.statistics[0] for view in views],
        [view.maps[0] for view in views],
        [view.allowed[0] for view in views],
    )


def attention_by_heads(trace: Trace, path: str) -> Iterator[AttentionView]:
    """Yield the view of a layer one head at a time. Together, these views equal `attention_view`."""
    steps = attention_steps(trace, path)
    for weights, masked in zip(steps.weights[0].split(1), steps.masked[0].split(1), strict=True):
        yield _of_heads(trace, path, weights, masked)


def _of_heads(trace: Trace, path: str, weights: Float[Tensor, "H T S"], masked: Tensor) -> AttentionView:
    allowed = _pooled((~masked.isneginf()).expand_as(weights).float()) > 0
    return AttentionView(
        [path], [head_statistics(weights, _ids(trace, path, weights))], [_pooled(weights.float())], [allowed]
    )


def _pooled(weights: Float[Tensor, "H T S"]) -> Float[Tensor, "H rows columns"]:
    # at most `POOLED` cells per side; the maximum, so that single sharp weights stay visible
    height, width = (min(POOLED, size) for size in weights.shape[1:])
    if weights.shape[1] % height == 0:  # pooling queries by a plain maximum first is faster
        weights = weights.unflatten(1, (height, -1)).amax(2)
    return nn.functional.adaptive_max_pool2d(weights, (height, width))


def _tokens(trace: Trace, path: str, weights: Tensor) -> tuple[tuple[str, ...], tuple[str, ...]]:
    # a stack that reads patches has positions instead of tokens
    tokens_of_sides = trace.inputs.tokens, trace.inputs.source_tokens
    queries = tokens_of_sides[1] if path.startswith("encoder.") else tokens_of_sides[0]
    keys = tokens_of_sides[1] if path.endswith(".cross") else queries
    names = []
    for tokens, size in ((queries, weights.shape[2]), (keys, weights.shape[3])):
        names.append(tokens if len(tokens) == size else tuple(map(str, range(size))))
    return names[0], names[1]


def _ids(trace: Trace, path: str, weights: Tensor) -> Tensor | None:
    # queries and keys are different tokens, so distances and repetitions have no meaning
    if path.endswith(".cross"):
        return None
    ids = trace.inputs.arguments.get("source") if path.startswith("encoder.") else trace.inputs.ids
    length = weights.shape[1]
    # a stack that reads patches compares positions
    return ids[0] if ids is not None and ids.shape[1] == length else torch.arange(length, device=weights.device)


def _number(value: Tensor) -> str:
    return "" if value.isnan() else f"{float(value):.3f}"


def _short(path: str) -> str:
    return path.replace("blocks.", "").removesuffix(".mixer")
