"""Amount of work in one pass through a model or one of its stacks."""

from typing import Literal, NamedTuple

from archetype.cost.formula import Formula, constant

AttentionPairs = Literal["computed", "allowed"]  # which pairs of positions are counted
ComputeType = Literal["float32", "bfloat16"]  # data type of matrix products in training
Phase = Literal["forward", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("forward", "prefill", "decode")

FLOAT32 = 4  # bytes per number
INT64 = 8  # bytes per token id, position or length


class TrainingWork(NamedTuple):
    """A training step."""

    rows: int
    length: int  # tokens per sequence
    causal: bool
    compute_dtype: ComputeType
    source: int = 0  # tokens per source
    layer: int = 0

    @property
    def tokens(self) -> int:
        return self.rows * self.length

    @property
    def itemsize(self) -> int:
        # bytes of a number in the result of a matrix product
        return FLOAT32 if self.compute_dtype == "float32" else 2

    def input_bytes(self, features: int, *, tokens: int | None = None) -> int:
        """Return the bytes of `tokens` vectors (default: all), saved once for all projections that read them."""
        return (self.tokens if tokens is None else tokens) * features * self.itemsize


class Work(NamedTuple):
    """One pass through the model.

    - `forward`: whole sequences without a state, with the logits of every token.
    - `prefill`: whole sequences with an empty state, with the logits of each sequence's last token only.
    - `decode`: one more token at the end of each sequence.
    """

    rows: Formula  # B
    length: Formula  # T, including the new token
    phase: Phase
    attention: AttentionPairs = "computed"
    causal: bool = True
    source: Formula | None = None  # tokens per source, if there are sources
    layer: int = 0

    @property
    def queries(self) -> Formula:
        # new tokens per sequence
        return constant(1) if self.phase == "decode" else self.length

    @property
    def tokens(self) -> Formula:
        return self.rows * self.queries

    @property
    def answered_tokens(self) -> Formula:
        # tokens whose logits are computed
        return self.tokens if self.phase == "forward" else self.rows

    def in_training(self, compute_dtype: ComputeType) -> TrainingWork:
        source = self.source.value if self.source else 0
        return TrainingWork(self.rows.value, self.length.value, self.causal, compute_dtype, source)
