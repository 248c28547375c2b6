"""Adapters: low-rank changes of a model's matrices, which alone learn while the model is frozen."""

from typing import Literal

from archetype.spec.base import Positive, Probability, Size
from archetype.spec.kinds import Part, part

__all__ = ["Adapter", "DoRA", "LoRA"]


class Adapter(Part):
    """Base of all adapters: B A beside a matrix W, A of `rank` rows and B of as many columns.

    Attributes:
        rank: r, of the change of each matrix.
        alpha: the change is multiplied by alpha / rank.
        dropout: of the vectors that A reads, while training.
        targets: which matrices, by their own name (q), or by patterns of whole names (blocks.[8-11].mixer.*).
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
    """The changed matrix with rows scaled to lengths that are learned: direction and magnitude apart (Liu 2024)."""

    kind: Literal["dora"] = "dora"
