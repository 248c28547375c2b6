"""Cost of decoders."""

from archetype.cost.registry import cost_of
from archetype.models.cost import EmbeddedModelCost
from archetype.models.decoder import spec
from archetype.models.further_tokens.cost import FurtherTokensCost
from archetype.parts.head.cost import HeadCost


@cost_of(spec.Decoder)
class DecoderCost(EmbeddedModelCost):
    """Cost of a causal stack between an embedding and a head."""

    def __init__(self, model: spec.Decoder) -> None:
        super().__init__(model, model.vocab_size)
        self.head = HeadCost.of(model.head, self.d, model.vocab_size)
        if model.further_tokens is not None and (stack := model.further_stack) is not None:
            self.further_tokens = FurtherTokensCost(model.further_tokens, stack, self.head)

    def state(self, length: int, source: int | None = None) -> tuple[int, int]:
        return self.stacks[0].state(length), self.stacks[0].state_integers(length)

    def unread_state(self, length: int) -> int:
        return self.stacks[0].unread_state(length)
