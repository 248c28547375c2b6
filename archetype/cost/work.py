"""How much goes through a model, or through one of its stacks, at once."""

from typing import Literal, NamedTuple

from archetype.cost.formula import Formula, constant

AttentionPairs = Literal["computed", "allowed"]  # which pairs of positions are counted
ComputeType = Literal["float32", "bfloat16"]  # of matrix products in training
Phase = Literal["forward", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("forward", "prefill", "decode")

FLOAT32 = 4  # bytes of a number
INT64 = 8  # bytes of a token id, a position or a length


class TrainingWork(NamedTuple):
    """One training step, and how its products are computed."""

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

    def input_bytes(self, features: int, *, tokens: int | None = None) -> int:
        """Bytes saved of the vectors that projections read, however many do.

        Args:
            features: of each vector.
            tokens: how many vectors (absent: one for each token).
        """
        return (self.tokens if tokens is None else tokens) * features * self.itemsize


class Work(NamedTuple):
    """One pass.

    - `forward`: whole rows without a state, and logits of every token.
    - `prefill`: the same on an empty state, and logits of each row's last token only.
    - `decode`: one more token at the end of each row.
    """

    rows: Formula  # B
    length: Formula  # T, the new token included
    phase: Phase
    attention: AttentionPairs = "computed"
    causal: bool = True
    source: Formula | None = None  # tokens of each source, where there are sources
    layer: int = 0

    @property
    def queries(self) -> Formula:
        """New tokens of a row."""
        return constant(1) if self.phase == "decode" else self.length

    @property
    def tokens(self) -> Formula:
        """New tokens of all rows."""
        return self.rows * self.queries

    @property
    def answered_tokens(self) -> Formula:
        """Tokens of all rows whose logits are computed."""
        return self.tokens if self.phase == "forward" else self.rows

    def in_training(self, compute_dtype: ComputeType) -> TrainingWork:
        """The same in a training step."""
        source = self.source.value if self.source else 0
        return TrainingWork(self.rows.value, self.length.value, self.causal, compute_dtype, source)
