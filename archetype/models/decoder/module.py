"""The decoder: embedding, blocks, a norm, and logits of the next token."""

from torch import Tensor

from archetype.errors import SpecError
from archetype.models.causal import CausalModel
from archetype.models.decoder.spec import Decoder as DecoderSpec
from archetype.models.output import Output
from archetype.models.spec import ModelSpec
from archetype.models.stack.module import Stack
from archetype.nn.cache import State
from archetype.nn.context import ForwardContext, Lengths, Tokens, last_tokens
from archetype.nn.registry import build_embedding, module_for
from archetype.nn.shared_rows import PositionShares


def check_documents_are_separate(
    model: ModelSpec, field: str = "document_ids", remedy: str = "leave document_ids out"
) -> None:
    """Refuse documents of one row that are not to see each other, where a layer carries something from one to the next.

    Args:
        model: that reads them.
        field: that asks for them to be separate.
        remedy: how not to ask for it.

    Raises:
        SpecError: the model is no decoder, or names the layer.
    """
    if not isinstance(model, DecoderSpec):
        raise SpecError(field, f"texts of one row are not kept apart by a model of kind {model.kind}", remedy)
    for index, block in enumerate(model.stacks[0].layers):
        for place, content in (("mixer", block.mixer), ("feedforward", block.feedforward)):
            for part in content.each():
                if not part.separates_documents:
                    kind = getattr(part, "kind", f"a {place}")
                    cause = f"what {kind} computes of a document depends on the others of its row"
                    remedy = f"{remedy}, or use full attention or a window in every layer"
                    raise SpecError(f"layers[{index}].{place}", cause, remedy)


@module_for(DecoderSpec)
class Decoder(Stack, CausalModel):
    """A stack of blocks in which no position attends to a later one (Radford 2018)."""

    spec: DecoderSpec

    def __init__(self, decoder: DecoderSpec) -> None:
        super().__init__(decoder.stacks[0])
        self.spec = decoder
        self.embedding = build_embedding(decoder.embedding, decoder.vocab_size, decoder.context_length, decoder.d_model)
        self.add_head(decoder.head, decoder.vocab_size, decoder.d_model)

    def forward(
        self,
        tokens: Tokens,
        state: State | None = None,
        num_tokens: Lengths | None = None,
        last_only: bool = False,
        with_logits: bool = True,
        document_ids: Tokens | None = None,
        shares: PositionShares | None = None,
    ) -> Output:
        """Logits of the token after each position, (B, T, V), and the state after these tokens; see `CausalModel`.

        With a head for classes, their logits for each whole text, (B, Y). With `document_ids`, and without a state, no
        token sees one of another document: logits are as of each alone. With `shares` of processes, this one gives the
        logits of its positions.
        """
        if document_ids is not None:
            check_documents_are_separate(self.spec)
            if state is not None:
                raise SpecError("document_ids", "stand beside a state, which is that of one text", "give one of them")
        lengths = state.lengths if state else None
        context = ForwardContext.of(tokens, lengths, num_tokens, document_ids).shared_by(shares)
        x = self.run(self.embedding(context.own(tokens), context), context, state)  # (B, T, D)
        x = self.final_norm(last_tokens(x, context)) if last_only else self.final_norm(x, context)
        logits: Tensor | None = None
        if self.lm_head is not None and with_logits:
            logits = self.lm_head(x, self.token_table)  # (B, t, V)
        elif self.classifier is not None and with_logits:
            logits = self.classifier((x if last_only else last_tokens(x, context))[:, 0])  # (B, Y)
        return Output(logits, state.advance(context.ends) if state else None, context.aux_loss, x)
