"""How much goes through a model at once, and what of it one stack works on."""

from typing import Literal, NamedTuple

from archetype.cost.formula import Formula, constant, symbol

AttentionPairs = Literal["computed", "allowed"]  # which pairs of positions are counted
ComputeType = Literal["float32", "bfloat16"]  # of matrix products in training
Phase = Literal["forward", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("forward", "prefill", "decode")

FLOAT32 = 4  # bytes of a number
INT64 = 8  # bytes of a token id, a position or a length


class Workload(NamedTuple):
    """Rows of equally many tokens, for a whole model."""

    batch: int
    length: int
    attention: AttentionPairs = "computed"

    @property
    def rows(self) -> Formula:
        """B."""
        return symbol("B", self.batch)

    @property
    def row_tokens(self) -> Formula:
        """T."""
        return symbol("T", self.length)

    def answered_tokens(self, phase: Phase) -> Formula:
        """Tokens of all rows whose logits are computed."""
        return self.rows * self.row_tokens if phase == "forward" else self.rows


class StackWork(NamedTuple):
    """What a stack works on in one pass: whole rows, or one new token at the end of each."""

    rows: Formula
    length: Formula  # tokens of a row, the new one included
    causal: bool
    attention: AttentionPairs = "computed"
    step: bool = False
    source: Formula | None = None  # tokens of each source, where there are sources
    layer: int = 0

    @property
    def queries(self) -> Formula:
        """New tokens of a row."""
        return constant(1) if self.step else self.length

    @property
    def tokens(self) -> Formula:
        """New tokens of all rows."""
        return self.rows * self.queries


class TrainingWork(NamedTuple):
    """What a stack works on in a training step, and how its products are computed."""

    rows: int
    length: int  # tokens of a row
    causal: bool
    compute_dtype: ComputeType
    source: int = 0  # tokens of each source
    layer: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return self.rows * self.length

    @property
    def itemsize(self) -> int:
        """Bytes of one number of a product's result."""
        return FLOAT32 if self.compute_dtype == "float32" else 2

    def input_bytes(self, features: int, projections: int = 1, tokens: int | None = None) -> int:
        """Bytes saved of the vectors that some projections read: one copy for all of them, or one cast for each.

        Args:
            features: of each vector.
            projections: how many read them.
            tokens: how many vectors (absent: one for each token).
        """
        copies = 1 if self.compute_dtype == "float32" else projections
        return (self.tokens if tokens is None else tokens) * features * copies * self.itemsize
