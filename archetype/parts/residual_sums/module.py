"""Residual sums whose terms are normed or have factors."""

import math

import torch

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.place import Place
from archetype.nn.registry import build_norm, module_for
from archetype.nn.residual import OneStream
from archetype.parts.norm.module import normalize_stream
from archetype.parts.residual_sums import spec


@module_for(spec.NormedSum)
class NormedSum(OneStream):
    """n(x) + n'(y) after the output y of one sublayer."""

    def __init__(self, residual: spec.NormedSum, place: Place) -> None:
        super().__init__(residual, place)
        self.carried, self.added = (build_norm(norm, place.d_model) for norm in (residual.carried, residual.added))

    def write(self, stream: Vectors, y: Vectors, context: ForwardContext) -> Vectors:
        added = normalize_stream(self.added, y.to(stream.dtype), context)
        return normalize_stream(self.carried, stream, context) + added


@module_for(spec.ScaledSum)
class ScaledSum(OneStream):
    """sqrt(n / (n + 1)) x + y / sqrt(n + 1) after the output y of sublayer n, counted from 1 through the stack."""

    def __init__(self, residual: spec.ScaledSum, place: Place) -> None:
        super().__init__(residual, place)
        terms = place.content + 2  # with the embedding
        self.carried, self.added = math.sqrt((terms - 1) / terms), math.sqrt(1 / terms)

    def write(self, stream: Vectors, y: Vectors, context: ForwardContext) -> Vectors:
        return torch.add(stream * self.carried, y.to(stream.dtype), alpha=self.added)
