"""Contribution of each of the n tokens to the first hidden layer in a recorded pass."""

from collections.abc import Iterator

import torch

from archetype.models.ngram.spec import NGram
from archetype.nn.inspect import PartTrace, Series, Shown
from archetype.spec.registry import provides


def series(model: PartTrace) -> Iterator[Series]:
    if "hidden.0.in" not in model.activations:
        return
    n = model.module.spec.n
    slots = model.activations["hidden.0.in"][0].unflatten(-1, (n, -1))  # (T, n, D)
    weight = model.module.hidden[0].weight.unflatten(1, (n, -1))  # (F, n, D)
    norms = torch.einsum("tnd,fnd->tnf", slots, weight).float().norm(dim=-1)
    for offset, values in enumerate(norms.unbind(1)):
        back = n - 1 - offset
        yield Series("slots", "newest token" if back == 0 else f"{back} back", values)


provides("inspect", NGram)(Shown(series=series))
