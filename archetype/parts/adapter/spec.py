"""Adapters: low-rank updates of a model's matrices, which are trained while the model is frozen."""

from typing import Literal

from archetype.spec.base import Positive, Probability, Size
from archetype.spec.kinds import Part, part


class Adapter(Part):
    """Base of adapters: an update B A of a matrix W, with A (rank, inputs) and B (outputs, rank).

    Attributes:
        rank: rank r of each update.
        alpha: scaling numerator: each update is multiplied by alpha / rank.
        dropout: dropout probability of the inputs of A in training.
        targets: matrices to adapt, by name (q) or by patterns of full names (blocks.[8-11].mixer.*).
    """

    kind: str
    rank: Size = 8
    alpha: Positive = 16.0
    dropout: Probability = 0.0
    targets: tuple[str, ...] = ("q", "v")


@part
class LoRA(Adapter):
    """x W^T + alpha / rank x A^T B^T (Hu 2021)."""

    kind: Literal["lora"] = "lora"


@part
class DoRA(Adapter):
    """LoRA that learns the norm of each row of the adapted matrix separately from its direction (Liu 2024)."""

    kind: Literal["dora"] = "dora"
