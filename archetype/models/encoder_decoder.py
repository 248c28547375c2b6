"""Encoder and decoder: a target text written with a view of a source text."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from archetype import spec
from archetype.models.embedding import Embedding, check_positions_fit
from archetype.models.heads import LanguageModelHead
from archetype.models.stack import Stack, last
from archetype.nn.block import Block
from archetype.nn.cache import DecoderBlockState, LayerState, State
from archetype.nn.context import EncoderOutput, ForwardContext


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
        num_tokens: Int[Tensor, "B"] | None = None,
        losses: list[Tensor] | None = None,
    ) -> tuple[EncoderOutput, list[LayerState]]:
        """The source's vectors; with a bridge also the last state of each recurrent layer.

        Args:
            source: tokens of each row, padded at the end where rows differ.
            num_tokens: how many of each row's tokens are no padding (absent: all).
            losses: is given what parts add to the loss that is trained on.
        """
        check_positions_fit(self.spec, source.shape[1])
        context = ForwardContext.of(source, num_tokens=num_tokens)
        x = (self.source_embedding or self.embedding)(source, context)
        start = self._zeros(x, self.encoder) if self.spec.state_bridge else None
        x, layers = self.encoder.run(x, context, start)
        if losses is not None:
            losses += context.losses
        return EncoderOutput(self.encoder.final_norm(x, context.valid), num_tokens), layers

    def new_state(
        self,
        source: Int[Tensor, "B S"],
        num_tokens: Int[Tensor, "B"] | None = None,
        capacity: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> State:
        """The state of targets that are about to begin: the source read, nothing written.

        Args:
            source: tokens of each row, padded at the end where rows differ.
            num_tokens: how many of each row's tokens are no padding (absent: all).
            capacity: of the longest target (absent: the context length).
            dtype: of what is remembered (absent: the model's).
        """
        capacity = min(capacity or self.spec.context_length, self.spec.context_length)
        seen, bridged = self.encode(source, num_tokens)
        rows, dtype = source.shape[0], dtype or self.embedding.token.weight.dtype
        layers = self.decoder.new_layers(rows, capacity, dtype, self.device)
        layers = [layer.to(dtype) for layer in bridged] if self.spec.state_bridge else layers
        for index, block in enumerate(self.decoder.blocks):
            assert isinstance(block, Block)
            if block.cross is not None:
                layers[index] = DecoderBlockState(layers[index], block.cross.read(seen).to(dtype))
        return State(torch.zeros(rows, dtype=torch.long, device=self.device), layers, capacity)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        state: State,
        num_tokens: Int[Tensor, "B"] | None = None,
        last_only: bool = False,
    ) -> tuple[Float[Tensor, "B t V"], State]:
        """Logits of the target's token after each position, and the state after these tokens.

        Args:
            tokens: the target's new tokens of each row, padded at the end where rows differ.
            state: from `new_state`, or of the tokens before.
            num_tokens: how many of each row's tokens are no padding (absent: all).
            last_only: only the logits after each row's last token, t = 1.
        """
        check_positions_fit(self.spec, tokens.shape[1])
        context = ForwardContext.of(tokens, state.lengths, num_tokens)
        logits, layers = self._decoded(tokens, context, state, last_only)
        return logits, state.advanced(context.ends, layers)

    def teach(
        self,
        source: Int[Tensor, "B S"],
        target: Int[Tensor, "B T"],
        source_num_tokens: Int[Tensor, "B"] | None = None,
        num_tokens: Int[Tensor, "B"] | None = None,
        losses: list[Tensor] | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits of the token after each position of whole targets, as in training: no state is kept."""
        check_positions_fit(self.spec, target.shape[1])
        seen, bridged = self.encode(source, source_num_tokens, losses)
        context = ForwardContext.of(target, num_tokens=num_tokens)
        context.source = seen
        bridge = State(context.positions[:, 0], bridged, target.shape[1]) if self.spec.state_bridge else None
        logits, _ = self._decoded(target, context, bridge, last_only=False)
        if losses is not None:
            losses += context.losses
        return logits

    def _decoded(
        self, tokens: Int[Tensor, "B T"], context: ForwardContext, state: State | None, last_only: bool
    ) -> tuple[Float[Tensor, "B t V"], list[LayerState]]:
        x, layers = self.decoder.run(self.embedding(tokens, context), context, state)
        x = self.decoder.final_norm(last(x, context)) if last_only else self.decoder.final_norm(x, context.valid)
        return self.lm_head(x, self.embedding.token.weight), layers

    def _zeros(self, x: Float[Tensor, "B S D"], stack: Stack) -> State:
        """States that remember nothing, of recurrent layers."""
        layers = stack.new_layers(x.shape[0], x.shape[1], x.dtype, x.device)
        return State(torch.zeros(x.shape[0], dtype=torch.long, device=x.device), layers, x.shape[1])
