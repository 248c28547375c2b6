"""The encoder-decoder: generates a target text conditioned on a source text."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from archetype.models.block.module import Block
from archetype.models.encoder_decoder import spec
from archetype.models.output import Output, TokenModel
from archetype.models.stack.module import Stack
from archetype.nn.context import EncoderOutput, ForwardContext, Lengths, Tokens, last_tokens
from archetype.nn.registry import build_embedding, module_for
from archetype.nn.state import State, with_source


@module_for(spec.EncoderDecoder)
class EncoderDecoder(TokenModel):
    """Encoder-decoder with a state bridge (Sutskever 2014) or cross-attention (Bahdanau 2014; Vaswani 2017)."""

    def __init__(self, model: spec.EncoderDecoder) -> None:
        super().__init__()
        self.spec = model
        self.embedding = build_embedding(model.embedding, model.vocab_size, model.context_length, model.d_model)
        self.source_embedding: Any = None  # module or None
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
        """Encode source tokens, padded at the end. A state bridge adds the last state of each recurrent layer."""
        x = self._embed_source(source, context)  # (B, S, D)
        bridge: State | None = None
        if self.spec.state_bridge:
            layers = self.encoder.new_layers(x.shape[0], x.shape[1], x.dtype, x.device)
            bridge = State(torch.zeros(x.shape[0], dtype=torch.long, device=x.device), layers, x.shape[1])
        x = self.encoder.run(x, context, bridge)
        return self.encoder.final_norm(x, context), bridge

    def _embed_source(self, source: Int[Tensor, "B S"], context: ForwardContext) -> Float[Tensor, "B S D"]:
        # one table for both sides, one for both with separate positions, or two tables
        if self.source_embedding is None:
            return self.embedding(source, context)
        if self.spec.embedding.is_shared:
            return self.source_embedding.placed(self.embedding.token(source), context)
        return self.source_embedding(source, context)

    def new_state(
        self,
        source: Int[Tensor, "B S"],
        num_tokens: Lengths | None = None,
        capacity: int | None = None,
        dtype: torch.dtype | None = None,
        num_beams: int = 1,
    ) -> State:
        """Encode sources and return the state of targets before their first token.

        Args:
            source: token ids (B, S), padded at the end.
            num_tokens: number of tokens in each row, padding excluded (absent: no padding).
            capacity: maximal length of a target (absent: the context length).
            dtype: data type of the state (absent: the model's); keys and values have `cache_dtype` if it is set.
            num_beams: targets of each source, in consecutive rows that share its keys and values.
        """
        vectors, bridge = self.encode(source, self.context(source, num_tokens=num_tokens))
        return self.state_of(EncoderOutput(vectors, num_tokens), bridge, capacity, dtype, num_beams)

    def state_of(
        self,
        source: EncoderOutput,
        bridge: State | None,
        capacity: int | None = None,
        dtype: torch.dtype | None = None,
        num_beams: int = 1,
    ) -> State:
        """Return the state of targets for encoded sources. Takes the arguments of `new_state`."""
        capacity = min(capacity or self.spec.context_length, self.spec.context_length)
        batch, dtype = source.vectors.shape[0] * num_beams, dtype or self.dtype  # one row per beam
        if bridge is None:
            layers = self.decoder.new_layers(batch, capacity, dtype, self.device)
        else:
            sources = torch.arange(batch, device=self.device) // num_beams  # the source of each row
            # each beam starts from the state of its source
            layers = [layer.to(dtype).select(sources) for layer in bridge.layers]
        context = self.context(source.vectors, num_tokens=source.num_tokens)
        for index, block in enumerate(self.decoder.blocks):
            assert isinstance(block, Block)
            if block.cross is not None:
                # projected once per source, not per step
                keys = block.cross.project(source, context).stored_as(block.cross.cache_dtype or dtype)
                layers[index] = with_source(layers[index], keys, num_beams)
        return State(torch.zeros(batch, dtype=torch.long, device=self.device), layers, capacity)

    def empty_state(self, batch: int, capacity: int, source_length: int, num_beams: int = 1) -> State:
        """Allocate rows for targets whose sources are not known yet. Rows of a `new_state` are inserted later."""
        num_rows, dtype, device = batch * num_beams, self.dtype, self.device
        layers = self.decoder.new_layers(num_rows, capacity, dtype, device)
        for index, block in enumerate(self.decoder.blocks):
            assert isinstance(block, Block)
            if block.cross is not None:
                source = block.cross.empty_source(batch, source_length, dtype, device)
                layers[index] = with_source(layers[index], source, num_beams)
        return State(torch.zeros(num_rows, dtype=torch.long, device=device), layers, capacity)

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
        """Return logits of the target token after each position, (B, T, V), or of classes, (B, Y).

        Pass `source` with whole targets, as in training, or the `state` of a target that is being generated.

        Args:
            target: new target tokens (B, T), padded at the end.
            state: from `new_state` or the previous pass; it is updated in place and must be replaced by `output.state`.
            num_tokens: number of target tokens in each row, padding excluded (absent: no padding).
            last_only: compute only the logits after each row's last token, (B, 1, V).
            with_logits: whether to compute the head; otherwise only its input vectors.
            source: source tokens (B, S), padded at the end.
            source_num_tokens: number of source tokens in each row, padding excluded (absent: no padding).
        """
        context = self.context(target, state.lengths if state else None, num_tokens)
        layers = state
        if state is None:
            assert source is not None, "a target needs its source, or a state that has read it"
            source_context = self.context(source, num_tokens=source_num_tokens)
            vectors, layers = self.encode(source, source_context)
            context.encoder_output = EncoderOutput(vectors, source_num_tokens)
            # one list, so that losses of the encoder's parts are added too
            context.aux_losses = source_context.aux_losses
        x = self.decoder.run(self.embedding(target, context), context, layers)  # (B, T, D)
        x = self.decoder.final_norm(last_tokens(x, context)) if last_only else self.decoder.final_norm(x, context)
        logits = self.head_logits(x, context) if with_logits else None
        return Output(logits, state.advance(context.ends) if state else None, context.aux_loss, x)
