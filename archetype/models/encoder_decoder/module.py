"""Encoder and decoder: a target text written with a view of a source text."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archetype.models.block.module import Block
from archetype.models.encoder_decoder import spec
from archetype.models.output import Output, TokenModel
from archetype.models.stack.module import Stack
from archetype.nn.cache import State, with_source
from archetype.nn.context import EncoderOutput, ForwardContext, Lengths, Tokens, Vectors, last_tokens
from archetype.nn.registry import build_embedding, module_for


@module_for(spec.EncoderDecoder)
class EncoderDecoder(TokenModel):
    """Sutskever 2014 with a bridge of states, Bahdanau 2014 with attention, Vaswani 2017 with nothing else."""

    def __init__(self, model: spec.EncoderDecoder) -> None:
        super().__init__()
        self.spec = model
        self.embedding = build_embedding(model.embedding, model.vocab_size, model.context_length, model.d_model)
        self.source_embedding: Any = None  # a module, or None
        if not model.embedding.is_shared:
            vocab_size = model.source_vocab_size or model.vocab_size
            self.source_embedding = build_embedding(model.embedding, vocab_size, model.context_length, model.d_model)
        elif (placement := model.embedding.source_placement) is not None:
            self.source_embedding = build_embedding(placement, 0, model.context_length, model.d_model)
        encoder, decoder = model.stacks
        self.encoder, self.decoder = Stack(encoder), Stack(decoder)
        self.add_head(model.head, model.vocab_size, model.d_model)

    def encode(
        self, source: Int[Tensor, "B S"], context: ForwardContext
    ) -> tuple[Float[Tensor, "B S D"], State | None]:
        """The source's vectors; with a bridge also the last state of each recurrent layer.

        Args:
            source: tokens of each row, padded at the end where rows differ.
            context: of the source.
        """
        x = self._embed_source(source, context)
        bridge: State | None = None
        if self.spec.state_bridge:
            layers = self.encoder.new_layers(x.shape[0], x.shape[1], x.dtype, x.device)
            bridge = State(torch.zeros(x.shape[0], dtype=torch.long, device=x.device), layers, x.shape[1])
        x = self.encoder.run(x, context, bridge)
        return self.encoder.final_norm(x, context), bridge

    def _embed_source(self, source: Int[Tensor, "B S"], context: ForwardContext) -> Float[Tensor, "B S D"]:
        if self.source_embedding is None:
            return self.embedding(source, context)  # type: ignore[no-any-return]
        if self.spec.embedding.is_shared:
            return self.source_embedding.placed(self.embedding.token(source), context)  # type: ignore[no-any-return]
        return self.source_embedding(source, context)  # type: ignore[no-any-return]

    def class_logits(self, hidden: Vectors, context: ForwardContext) -> Float[Tensor, "B Y"]:
        """Logits of classes, by the vector of each target's last token."""
        last = hidden if hidden.shape[1] == 1 else last_tokens(hidden, context)
        return self.classifier(last[:, 0])  # type: ignore[no-any-return]

    def new_state(
        self,
        source: Int[Tensor, "B S"],
        num_tokens: Lengths | None = None,
        capacity: int | None = None,
        dtype: torch.dtype | None = None,
        num_beams: int = 1,
    ) -> State:
        """The state of targets that are about to begin: the source is read, nothing is written.

        Args:
            source: tokens of each row, padded at the end where rows differ.
            num_tokens: how many of each row's tokens are not padding (absent: all).
            capacity: of the longest target (absent: the context length).
            dtype: of the cache (absent: the model's).
            num_beams: targets of each source, in neighbouring rows that share the source's keys and values.
        """
        vectors, bridge = self.encode(source, ForwardContext.of(source, num_tokens=num_tokens))
        return self.state_of(EncoderOutput(vectors, num_tokens), bridge, capacity, dtype, num_beams)

    def state_of(
        self,
        source: EncoderOutput,
        bridge: State | None,
        capacity: int | None = None,
        dtype: torch.dtype | None = None,
        num_beams: int = 1,
    ) -> State:
        """As `new_state`, of sources that are encoded."""
        capacity = min(capacity or self.spec.context_length, self.spec.context_length)
        rows, dtype = source.vectors.shape[0] * num_beams, dtype or self.dtype
        if bridge is None:
            layers = self.decoder.new_layers(rows, capacity, dtype, self.device)
        else:
            sources = torch.arange(rows, device=self.device) // num_beams
            layers = [layer.to(dtype).select(sources) for layer in bridge.layers]
        for index, block in enumerate(self.decoder.blocks):
            assert isinstance(block, Block)
            if block.cross is not None:
                keys = block.cross.project(source).to(dtype)
                layers[index] = with_source(layers[index], keys, num_beams)
        return State(torch.zeros(rows, dtype=torch.long, device=self.device), layers, capacity)

    def empty_state(self, batch: int, capacity: int, source_length: int, num_beams: int = 1) -> State:
        """Rows for targets whose sources are yet to be read: the rows of a `new_state` join in their place.

        Args:
            batch: number of sources.
            capacity: of the longest target.
            source_length: of the longest source.
            num_beams: targets of each source.
        """
        rows, dtype, device = batch * num_beams, self.dtype, self.device
        layers = self.decoder.new_layers(rows, capacity, dtype, device)
        for index, block in enumerate(self.decoder.blocks):
            assert isinstance(block, Block)
            if block.cross is not None:
                source = block.cross.empty_source(batch, source_length, dtype, device)
                layers[index] = with_source(layers[index], source, num_beams)
        return State(torch.zeros(rows, dtype=torch.long, device=device), layers, capacity)

    def forward(
        self,
        target: Tokens,
        state: State | None = None,
        num_tokens: Lengths | None = None,
        last_only: bool = False,
        with_logits: bool = True,
        *,
        source: Int[Tensor, "B S"] | None = None,
        source_num_tokens: Lengths | None = None,
    ) -> Output:
        """Logits of the target's token after each position, (B, T, V), or with a head for classes theirs, (B, Y).

        Whole targets, as in training, are given with their `source`; a target that is being written, with its `state`.

        Args:
            target: the target's new tokens of each row, padded at the end where rows differ.
            state: from `new_state`, or of the tokens before; it is spent, and `output.state` replaces it.
            num_tokens: how many of each row's tokens are not padding (absent: all).
            last_only: only the logits after each row's last token, (B, 1, V).
            with_logits: whether the head is computed, and not only the vectors that it reads.
            source: tokens of each source, padded at the end where rows differ.
            source_num_tokens: how many of each source's tokens are not padding (absent: all).
        """
        context = ForwardContext.of(target, state.lengths if state else None, num_tokens)
        layers = state
        if state is None:
            assert source is not None, "a target needs its source, or a state that has read it"
            source_context = ForwardContext.of(source, num_tokens=source_num_tokens)
            vectors, layers = self.encode(source, source_context)
            context.encoder_output = EncoderOutput(vectors, source_num_tokens)
            context.aux_losses = source_context.aux_losses
        x = self.decoder.run(self.embedding(target, context), context, layers)
        x = self.decoder.final_norm(last_tokens(x, context)) if last_only else self.decoder.final_norm(x, context)
        logits: Tensor | None = None
        if self.lm_head is not None and with_logits:
            logits = self.lm_head(x, self.token_table)  # (B, t, V)
        elif with_logits:
            logits = self.class_logits(x, context)
        return Output(logits, state.advance(context.ends) if state else None, context.aux_loss, x)
