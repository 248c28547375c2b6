"""Summaries of all views of a traced pass, for the response to POST /api/inspect."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import TypedDict

from archetype.apps.serve.exchange import finite
from archetype.apps.serve.served_model import ServedModel
from archetype.inspection.attention import AttentionView
from archetype.inspection.residual import ResidualView


class Summary(TypedDict):
    id: str
    model: str
    kind: str
    tokens: list[dict[str, Any]]
    source_tokens: list[dict[str, Any]]
    views: list[str]
    norms: dict[str, Any] | None
    source_norms: dict[str, Any] | None
    attention: list[dict[str, Any]]
    heads: list[dict[str, Any]]


def numbers(tensor: Tensor) -> Any:
    """Convert a tensor to nested lists of exact numbers; null for values that are not finite."""
    values = tensor.detach().cpu()
    return finite(values.tolist()) if values.is_floating_point() else values.tolist()


def joined(heads: list[AttentionView]) -> AttentionView:
    """Join the attention heads of a layer into one view."""
    statistics = {name: torch.cat([head.statistics[0][name] for head in heads]) for name in heads[0].statistics[0]}
    maps, allowed = torch.cat([head.maps[0] for head in heads]), torch.cat([head.allowed[0] for head in heads])
    return AttentionView(heads[0].paths, [statistics], [maps], [allowed])


def as_bytes(layers: list[AttentionView]) -> Tensor:
    """Return uint8 attention maps of all heads, zero-padded to the largest: 0 is a masked pair, 1 to 255 a weight."""
    sides = [max((view.maps[0].shape[axis] for view in layers), default=0) for axis in (1, 2)]
    pooled = torch.zeros(sum(len(view.maps[0]) for view in layers), *sides, dtype=torch.uint8)
    start = 0
    for view in layers:
        maps = view.maps[0]
        bytes_ = (1 + maps.clamp(0, 1) * 254).round().masked_fill(~view.allowed[0], 0).to(torch.uint8).cpu()
        pooled[start : start + len(maps), : maps.shape[1], : maps.shape[2]] = bytes_
        start += len(maps)
    return pooled


def residual_norms(view: ResidualView) -> dict[str, Any]:
    """Return the norms of the residual stream and of the sublayer outputs added to it."""
    added = {name: numbers(values) for name, values in view.added.items()}
    shares = {name: numbers(values) for name, values in view.shares.items()}
    return {"layers": view.layers, "residual": numbers(view.norms)} | added | {"shares": shares}


def attended_tokens(path: str) -> tuple[str, str]:
    """Return the names of the `Summary` fields that hold the tokens of the queries and of the keys."""
    queries = "source_tokens" if path.startswith("encoder.") else "tokens"
    return queries, "source_tokens" if path.endswith(".cross") else queries


def named_tokens(model: ServedModel, names: tuple[str, ...], ids: Tensor | None) -> list[dict[str, Any]]:
    """Return each token with its id, text and bytes. Image patches have only names."""
    row = [None] * len(names) if ids is None or len(ids[0]) != len(names) else ids[0].tolist()
    tokens = []
    for name, id in zip(names, row, strict=True):
        data = name.encode() if id is None else model.bytes_of(id)
        tokens.append({"id": id, "text": data.decode("utf-8", "replace"), "name": name, "bytes": list(data)})
    return tokens
