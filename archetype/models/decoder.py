"""The decoder: embedding, blocks, a norm, and logits of the next token."""

from archetype import spec as specs
from archetype.models.causal import CausalModel
from archetype.models.embedding import Embedding, check_positions_fit
from archetype.models.heads import LanguageModelHead
from archetype.models.output import Output
from archetype.models.stack import Stack
from archetype.nn.cache import State
from archetype.nn.context import ForwardContext, Lengths, Tokens, last_tokens


class Decoder(Stack, CausalModel):
    """A stack of blocks in which no position attends to a later one (Radford 2018)."""

    spec: specs.Decoder

    def __init__(self, decoder: specs.Decoder) -> None:
        super().__init__(decoder.stacks[0])
        self.spec = decoder
        self.embedding = Embedding(decoder.embedding, decoder.vocab_size, decoder.context_length, decoder.d_model)
        self.lm_head = LanguageModelHead(decoder.head, decoder.vocab_size, decoder.d_model)

    def forward(
        self, tokens: Tokens, state: State | None = None, num_tokens: Lengths | None = None, last_only: bool = False
    ) -> Output:
        """Logits of the token after each position, (B, T, V), and the state after these tokens; see `CausalModel`."""
        check_positions_fit(self.spec, tokens.shape[1])
        context = ForwardContext.of(tokens, state.lengths if state else None, num_tokens)
        context.position_bias = self.position_bias
        x = self.embedding(tokens, context)  # (B, T, D)
        for block, cache in self.layers(state):
            x = block(x, context, cache)
        x = self.final_norm(last_tokens(x, context)) if last_only else self.final_norm(x, context)
        logits = self.lm_head(x, self.embedding.token.weight)  # (B, t, V)
        return Output(logits, state.advance(context.ends) if state else None, context.aux_loss, x)
