"""Specification of multi-token prediction."""

from collections.abc import Sequence

from archetype.models.block.spec import Block
from archetype.models.stack.spec import StackView
from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.roles.norm import VectorNorm
from archetype.spec.base import NotNegative, Size, Spec
from archetype.spec.errors import invalid


class FurtherTokens(Spec):
    """Prediction of `count` tokens after the next token, each by a separate block (DeepSeek-AI 2024b, section 2.2).

    At each position, block k reads the head's input for the previous token and the embedding of that token, both
    normalized, concatenated and projected to d_model. Embedding and head are shared with the model. Training adds
    loss_weight / count times the cross-entropy of each block; the blocks can also draft for speculative decoding.

    Attributes:
        count: number of predicted tokens after the next.
        block: one layer, repeated with separate weights (absent: like the model's last layer, with separate keys).
        norm: norm of the two inputs of a block's projection, and of the block's output.
        loss_weight: weight of the mean loss of all further tokens.
    """

    count: Size = 1
    block: Block | None = None
    norm: VectorNorm = RMSNorm()
    loss_weight: NotNegative = 0.3

    def stack(self, layers: Sequence[Block], d_model: int) -> StackView:
        """Return the blocks as a separate stack without a final norm, since each block ends with a norm."""
        block = self.block or layers[-1].model_copy(update={"mixer": layers[-1].mixer.own})
        blocks = (block.own,) * self.count
        field = "further_tokens.block"
        return StackView("further_tokens.", blocks, NoNorm(), d_model, causal=True, block_field=field)

    def check(self, stack: StackView) -> None:
        """Call `invalid` for a block that cannot follow the layers."""
        if self.block is not None and self.block != self.block.own:
            invalid("further_tokens.block.weights_of", "this block cannot share weights", "remove it")
        if stack.sources:
            cause = "reads another layer, which a block of further_tokens cannot do"
            invalid("further_tokens.block.mixer", cause, "use a mixer that reads no other layer")
        if stack.relative_bias is not None:
            cause = "only the model's layers share a table of relative positions"
            invalid("further_tokens.block.mixer.position", cause, "use a block with other positions, such as rotary")
        stack.check()
