"""The decoder: embedding, blocks, final norm, and logits of the next token."""

from collections.abc import Iterator

from torch import Tensor

from archetype.errors import SpecError
from archetype.models.causal import CausalModel
from archetype.models.decoder.spec import Decoder as DecoderSpec
from archetype.models.further_tokens.module import FurtherTokens, HiddenCache
from archetype.models.output import Output
from archetype.models.spec import ModelSpec
from archetype.models.stack.module import Stack
from archetype.nn.context import ForwardContext, Lengths, Tokens, last_tokens
from archetype.nn.registry import build_embedding, module_for
from archetype.nn.shared_rows import PositionShares
from archetype.nn.state import State
from archetype.roles.content import Content


def check_documents_are_separate(
    model: ModelSpec, field: str = "document_ids", remedy: str = "remove document_ids"
) -> None:
    """Raise an error if packed documents would influence each other in some layer.

    Args:
        field: field that requests separate documents, for the message.
        remedy: alternative to separate documents, for the message.

    Raises:
        SpecError: the model is not a decoder, or has a layer that mixes documents (named in the message).
    """
    if not isinstance(model, DecoderSpec):
        raise SpecError(field, f"a model of kind {model.kind} does not separate packed documents", remedy)
    for path, content in _contents(model):
        for part in content.each():
            if not part.separates_documents:
                kind = getattr(part, "kind", "a part")
                cause = f"{kind} does not separate packed documents"
                remedy = f"{remedy}, or use full attention or a window in every layer"
                raise SpecError(path, cause, remedy)


def _contents(model: DecoderSpec) -> Iterator[tuple[str, Content]]:
    # contents of each layer and of the blocks for further tokens, with their paths
    for stack in filter(None, (*model.stacks, model.further_stack)):
        for index, block in enumerate(stack.layers):
            yield f"{stack.field(index)}.mixer", block.mixer
            yield f"{stack.field(index)}.feedforward", block.feedforward


@module_for(DecoderSpec)
class Decoder(Stack, CausalModel):
    """A stack of blocks with causal attention (Radford 2018)."""

    spec: DecoderSpec

    def __init__(self, decoder: DecoderSpec) -> None:
        (stack,) = decoder.stacks
        super().__init__(stack)
        self.spec = decoder
        self.embedding = build_embedding(
            decoder.embedding, decoder.vocab_size, decoder.context_length, decoder.d_model, stack.readers
        )
        self.add_head(decoder.head, decoder.vocab_size, decoder.d_model)
        self.further_tokens: FurtherTokens | None = None
        if decoder.further_tokens is not None and (further := decoder.further_stack) is not None:
            self.further_tokens = FurtherTokens(decoder.further_tokens, further)

    def new_draft_state(self, batch: int, capacity: int) -> State:
        """Return `new_state` with additional state for multi-token prediction."""
        assert self.further_tokens is not None
        state = self.new_state(batch, capacity)
        state.layers += self.further_tokens.new_layers(batch, state.capacity, self.dtype, self.device)
        return state

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
        """Return logits of the token after each position, (B, T, V), and the state; see `CausalModel`.

        A classification head returns logits of each sequence, (B, Y), or token, (B, T, Y); an embedding head returns
        vectors of whole sequences, (B, D_s). With `document_ids`, and without a state, packed documents do not attend
        to each other. With `shares` (context parallelism) the output covers the positions of this process. In training
        without a state the output also has the vectors of further tokens.
        """
        if document_ids is not None:
            check_documents_are_separate(self.spec)
            if state is not None:
                raise SpecError(
                    "document_ids",
                    "cannot be combined with a state, which contains a single document",
                    "use exactly one of them",
                )
        lengths = state.lengths if state else None
        context = self.context(tokens, lengths, num_tokens, document_ids).shared_by(shares)
        embedded = self.embedding(context.own(tokens), context)  # (B, T, D)
        x = self._read_by_head(self.run(embedded, context, state), context, state, last_only)  # (B, t, D)
        # in generation, `FurtherTokens.step` runs separately, after the next token is chosen
        further: tuple[Tensor, ...] = ()
        if self.further_tokens is not None and self.training and state is None and not last_only:
            further = self.further_tokens(x, embedded, context)
        logits = self.head_logits(x, context) if with_logits else None
        is_whole = with_logits and state is None and not last_only
        vectors = self.sentence_head(x, num_tokens) if self.sentence_head is not None and is_whole else None
        return Output(logits, state.advance(context.ends) if state else None, context.aux_loss, x, further, vectors)

    def _read_by_head(self, x: Tensor, context: ForwardContext, state: State | None, last_only: bool) -> Tensor:
        # (B, T, D), or (B, 1, D) of each row's last token; a draft state stores the vectors of all positions
        # a draft state has one more layer, for multi-token prediction
        _, *further = state.layers[len(self.blocks) - 1 :] if state else [None]
        if not further:
            return self.final_norm(last_tokens(x, context)) if last_only else self.final_norm(x, context)
        x, cache = self.final_norm(x, context), further[0]
        assert isinstance(cache, HiddenCache)
        cache.append(x, context)  # (B, T, D)
        return last_tokens(x, context) if last_only else x
