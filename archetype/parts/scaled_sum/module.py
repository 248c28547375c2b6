"""Residual sums divided by the square root of the number of their terms."""

import math

import torch

from archetype.nn.context import ForwardContext, Vectors
from archetype.nn.place import Place
from archetype.nn.registry import module_for
from archetype.nn.residual import OneStream
from archetype.parts.scaled_sum import spec


@module_for(spec.ScaledSum)
class ScaledSum(OneStream):
    """sqrt(n / (n + 1)) x + y / sqrt(n + 1) after the output y of sublayer n, counted from 1 through the stack."""

    def __init__(self, residual: spec.ScaledSum, place: Place) -> None:
        super().__init__(residual, place)
        terms = place.content + 2  # with the embedding
        self.carried, self.added = math.sqrt((terms - 1) / terms), math.sqrt(1 / terms)

    def write(self, stream: Vectors, y: Vectors, context: ForwardContext) -> Vectors:
        return torch.add(stream * self.carried, y.to(stream.dtype), alpha=self.added)
