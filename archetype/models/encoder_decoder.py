"""Encoder and decoder: a target text written with a view of a source text."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype import spec
from archetype.models.embedding import Embedding, refuse_beyond_table
from archetype.models.heads import LanguageModelHead
from archetype.models.stack import Stack, last
from archetype.nn.block import Block
from archetype.nn.cache import Crossed, LayerState, State
from archetype.nn.context import Source, Span


class EncoderDecoder(nn.Module):
    """Sutskever 2014 with a bridge of states, Bahdanau 2014 with attention, Vaswani 2017 with nothing else."""

    def __init__(self, model: spec.EncoderDecoder) -> None:
        super().__init__()
        self.spec = model
        self.embedding = Embedding(model.embedding, model.vocab_size, model.context_length, model.d_model)
        self.source_embedding: Embedding | None = None
        if not model.embedding.shared:
            vocab_size = model.source_vocab_size or model.vocab_size
            self.source_embedding = Embedding(model.embedding, vocab_size, model.context_length, model.d_model)
        encoder, decoder = model.stacks
        self.encoder, self.decoder = Stack(encoder), Stack(decoder)
        self.lm_head = LanguageModelHead(model.head, model.vocab_size, model.d_model)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.embedding.token.weight.device

    def encode(
        self,
        source: Int[Tensor, "B S"],
        counts: Int[Tensor, "B"] | None = None,
        losses: list[Tensor] | None = None,
    ) -> tuple[Source, list[LayerState]]:
        """The source's vectors; with a bridge also the last state of each recurrent layer.

        Args:
            source: tokens of each row, padded at the end where rows differ.
            counts: how many of each row's tokens are no padding (absent: all).
            losses: is given what parts add to the loss that is trained on.
        """
        refuse_beyond_table(self.spec, source.shape[1])
        span = Span.of(source, counts=counts)
        x = (self.source_embedding or self.embedding)(source, span)
        start = self._zeros(x, self.encoder) if self.spec.bridge else None
        x, layers = self.encoder.run(x, span, start)
        if losses is not None:
            losses += span.losses
        return Source(self.encoder.final_norm(x, span.valid), counts), layers

    def new_state(
        self,
        source: Int[Tensor, "B S"],
        counts: Int[Tensor, "B"] | None = None,
        capacity: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """The state of targets that are about to begin: the source read, nothing written.

        Args:
            source: tokens of each row, padded at the end where rows differ.
            counts: how many of each row's tokens are no padding (absent: all).
            capacity: of the longest target (absent: the context length).
            dtype: of what is remembered (absent: the model's).
        """
        capacity = min(capacity or self.spec.context_length, self.spec.context_length)
        seen, bridged = self.encode(source, counts)
        rows, dtype = source.shape[0], dtype or self.embedding.token.weight.dtype
        layers = self.decoder.new_layers(rows, capacity, dtype, self.device)
        layers = [layer.kept_as(dtype) for layer in bridged] if self.spec.bridge else layers
        for index, block in enumerate(self.decoder.blocks):
            assert isinstance(block, Block)
            if block.cross is not None:
                layers[index] = Crossed(layers[index], block.cross.read(seen).kept_as(dtype))
        return State(torch.zeros(rows, dtype=torch.long, device=self.device), layers, capacity)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        state: State,
        counts: Int[Tensor, "B"] | None = None,
        last_only: bool = False,
    ) -> tuple[Float[Tensor, "B t V"], State]:
        """Logits of the target's token after each position, and the state after these tokens.

        Args:
            tokens: the target's new tokens of each row, padded at the end where rows differ.
            state: from `new_state`, or of the tokens before.
            counts: how many of each row's tokens are no padding (absent: all).
            last_only: only the logits after each row's last token, t = 1.
        """
        refuse_beyond_table(self.spec, tokens.shape[1])
        span = Span.of(tokens, state.lengths, counts)
        logits, layers = self._decoded(tokens, span, state, last_only)
        return logits, state.advanced(span.ends, layers)

    def teach(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B T"],
        source_counts: Int[Tensor, "B"] | None = None,
        counts: Int[Tensor, "B"] | None = None,
        losses: list[Tensor] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits of the token after each position of whole targets, as in training: no state is kept."""
        refuse_beyond_table(self.spec, target.shape[1])
        seen, bridged = self.encode(source, source_counts, losses)
        span = Span.of(target, counts=counts)
        span.source = seen
        bridge = State(span.positions[:, 0], bridged, target.shape[1]) if self.spec.bridge else None
        logits, _ = self._decoded(target, span, bridge, last_only=False)
        if losses is not None:
            losses += span.losses
        return logits

    def _decoded(
        self, tokens: Int[Tensor, "B T"], span: Span, state: State | None, last_only: bool
    ) -> tuple[Float[Tensor, "B t V"], list[LayerState]]:
        x, layers = self.decoder.run(self.embedding(tokens, span), span, state)
        x = self.decoder.final_norm(last(x, span)) if last_only else self.decoder.final_norm(x, span.valid)
        return self.lm_head(x, self.embedding.token.weight), layers

    def _zeros(self, x: Float[Tensor, "B S D"], stack: Stack) -> State:
        """States that remember nothing, of recurrent layers."""
        layers = stack.new_layers(x.shape[0], x.shape[1], x.dtype, x.device)
        return State(torch.zeros(x.shape[0], dtype=torch.long, device=x.device), layers, x.shape[1])
