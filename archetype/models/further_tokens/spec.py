"""Multi-token prediction: how many further tokens a decoder predicts, and by which blocks."""

from collections.abc import Sequence

from archetype.models.block.spec import Block
from archetype.models.stack.spec import StackView
from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.roles.norm import VectorNorm
from archetype.spec.base import NotNegative, Size, Spec, invalid

__all__ = ["FurtherTokens"]


class FurtherTokens(Spec):
    """Predictions of `count` tokens after the next one, each by a block of its own (DeepSeek-AI 2024b, section 2.2).

    Block k reads, at each position, the vector that the head reads for the token before, and the embedding of that
    token: both normalized, side by side, and projected to d_model. Embedding and head are the model's own. Training
    adds loss_weight / count times the cross-entropy of each; the model may also draft its own text with them.

    Attributes:
        count: tokens after the next that are predicted.
        block: one layer, of which each has its own weights (absent: as the model's last layer, reading no other).
        norm: of the two vectors that a block's projection reads, and of what the block gives to the head.
        loss_weight: of the mean of all further losses.
    """

    count: Size = 1
    block: Block | None = None
    norm: VectorNorm = RMSNorm()
    loss_weight: NotNegative = 0.3

    def stack(self, layers: Sequence[Block], d_model: int) -> StackView:
        """The blocks, as they stand beside the layers of a model; each ends with a norm of its own."""
        block = self.block or layers[-1].model_copy(update={"mixer": layers[-1].mixer.own})
        blocks = (block.own,) * self.count
        field = "further_tokens.block"
        return StackView("further_tokens.", blocks, NoNorm(), d_model, causal=True, block_field=field)

    def check(self, stack: StackView) -> None:
        """Check, inside a validator, that the block can stand behind the layers."""
        if self.block is not None and self.block != self.block.own:
            invalid("further_tokens.block.weights_of", "the block has weights of its own", "leave it out")
        if stack.sources:
            cause = "it reads what another layer leaves, and the block stands alone"
            invalid("further_tokens.block.mixer", cause, "give a mixer that reads no other layer")
        if stack.relative_bias is not None:
            cause = "a table of relative positions belongs to the layers"
            invalid("further_tokens.block.mixer.position", cause, "give a block with other positions, such as rotary")
        stack.check()
