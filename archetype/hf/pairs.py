"""Encoder-decoder models for transformers."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import ModelOutput, Seq2SeqLMOutput

from archetype.errors import SpecError
from archetype.hf.base import ArchetypePreTrainedModel, check_kind, refuse
from archetype.hf.cache import NAME, ArchetypeCache, cache_by_either_name, cache_of
from archetype.hf.configuration import ArchetypeConfig
from archetype.hf.generating import Generating
from archetype.hf.model import ArchetypeModel
from archetype.hf.rows import Rows
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.models.output import Output
from archetype.nn.context import EncoderOutput, ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.nn.state import State


@dataclass
class SourceOutput(ModelOutput):
    """Output of the encoder. transformers repeats its tensors if a source has several targets.

    Attributes:
        last_hidden_state: vectors (B, S, D).
        bridge: last state of a recurrent encoder, flattened to (B, N).
    """

    last_hidden_state: Tensor | None = None
    bridge: Tensor | None = None


class SourceEncoder(nn.Module):
    """Encoder, called by transformers before generation."""

    def __init__(self, network: EncoderDecoder) -> None:
        super().__init__()
        self.network = network

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **others: Any) -> SourceOutput:
        """Return the encoder's vectors (B, S, D) at the columns of their tokens."""
        rows = Rows.of(attention_mask, input_ids.shape[1])
        source = rows.moved(input_ids)
        vectors, bridge = self.network.encode(source, ForwardContext.of(source, num_tokens=rows.num_tokens))
        flat = None if bridge is None else torch.cat([x.flatten(1) for x in tensors(bridge.layers)], 1)  # (B, N)
        return SourceOutput(last_hidden_state=rows.restored(vectors), bridge=flat)


class ArchetypeForSeq2SeqLM(Generating, ArchetypePreTrainedModel, GenerationMixin):
    def __init__(self, config: ArchetypeConfig) -> None:
        super().__init__(config)
        check_kind(self, config.architecture.reads_source, "read a source")
        self.model = ArchetypeModel(config, keeps_head=True)
        self.lm_head: Any = self.model.take_head()
        self.post_init()

    def get_encoder(self, modality: str | None = None) -> SourceEncoder:
        return SourceEncoder(self.model.network)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Any = None,
        **others: Any,
    ) -> Seq2SeqLMOutput:
        """Return logits (B, T, V) for the target, and the mean loss if there are labels.

        Args:
            input_ids: source token ids (B, S), padded on either side.
            attention_mask: mask (B, S), 1 at source tokens, 0 at padding.
            decoder_input_ids: target token ids (B, T) (default: `decoder_start_token_id` and the labels but the last).
            decoder_attention_mask: mask of the targets, including earlier columns.
            encoder_outputs: output of `get_encoder()` for the source (default: computed).
            past_key_values: name of `cache` before transformers 5.24.
            labels: target token ids (B, T); -100 where no loss is computed.
            use_cache: whether to return a cache; ignored in training.
            cache: cache from an earlier pass that has read the source.
            others: `num_items_in_batch`, which divides the loss.

        Raises:
            SpecError: an argument is not supported.
        """
        items = others.pop("num_items_in_batch", None)
        refuse(others)
        if input_ids is None and encoder_outputs is None:
            raise SpecError("input_ids", "is missing", "pass the tokens of the source")
        if decoder_input_ids is None:
            decoder_input_ids = self._after_start(labels)
        leaves_cache = self.config.use_cache if use_cache is None else use_cache
        continues = bool(leaves_cache) and labels is None and not self.training
        cache = cache_of(cache_by_either_name(cache, past_key_values), continues)
        rows = Rows.of(decoder_attention_mask, decoder_input_ids.shape[1])
        target, network = rows.moved(decoder_input_ids), self.model.network
        output: Output
        if cache is None and input_ids is not None and encoder_outputs is None:
            source = Rows.of(attention_mask, input_ids.shape[1])
            # source and target in one pass, as in training; a cache is not filled
            output = network(
                target,
                None,
                rows.num_tokens,
                with_logits=False,
                source=source.moved(input_ids),
                source_num_tokens=source.num_tokens,
            )
        else:
            cache = ArchetypeCache(target.shape[1]) if cache is None else cache
            if cache.state is None and encoder_outputs is None:
                encoder_outputs = self.get_encoder()(input_ids, attention_mask)
            state = cache.with_room(
                target.shape[1],
                self.architecture.context_length,
                lambda room: self._state(encoder_outputs, attention_mask, room),
            )
            output = network(target, state, rows.num_tokens, with_logits=False)
            cache.commit(output.state, target.shape[1])
        assert output.hidden is not None
        logits = self.lm_head(rows.restored(output.hidden), network.token_table)  # (B, T, V)
        loss: Tensor | None = None
        if labels is not None:
            sum_or_mean = "mean" if items is None else "sum"
            loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction=sum_or_mean)
            loss = loss if items is None else loss / items
            if output.aux_loss is not None and self.training:
                loss = loss + output.aux_loss
        hidden = None if encoder_outputs is None else encoder_outputs.last_hidden_state  # (B, S, D)
        cache_output = {NAME: cache if leaves_cache else None}
        return Seq2SeqLMOutput(loss=loss, logits=logits, encoder_last_hidden_state=hidden, **cache_output)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        return self._after_start(labels)

    def _after_start(self, labels: Tensor | None) -> Tensor:
        start = getattr(self.config, "decoder_start_token_id", None)
        if labels is None or start is None:
            missing = "decoder_input_ids" if labels is None else "config.decoder_start_token_id"
            raise SpecError(
                missing, "is missing", "pass decoder_input_ids, or set decoder_start_token_id and pass labels"
            )
        before = labels.masked_fill(labels == -100, self.config.pad_token_id or 0)[:, :-1]  # -100 is not a token
        return nn.functional.pad(before, (1, 0), value=start)

    def _state(self, encoded: Any, mask: Tensor | None, room: int) -> State:
        # before the first token of the targets
        if encoded is None:
            raise SpecError(NAME, "is shorter than the target", "pass max_new_tokens to generate")
        vectors, network = encoded.last_hidden_state, self.model.network
        rows, bridge = Rows.of(mask, vectors.shape[1]), None
        if encoded.get("bridge") is not None:
            layers = network.encoder.new_layers(len(vectors), vectors.shape[1], vectors.dtype, vectors.device)
            fill(layers, encoded["bridge"])
            lengths = torch.zeros(len(vectors), dtype=torch.long, device=vectors.device)
            bridge = State(lengths, layers, vectors.shape[1])
        source = EncoderOutput(rows.moved(vectors), rows.num_tokens)
        return network.state_of(source, bridge, room)


def tensors(layers: list[LayerState]) -> list[Tensor]:
    """Return the state tensors of recurrent layers, in order."""
    return [tensor for layer in layers for _, _, tensor in layer.tensors()]


def fill(layers: list[LayerState], flat: Tensor) -> None:
    """Copy a flattened state, (B, N), into the tensors returned by `tensors`."""
    targets = tensors(layers)
    parts = flat.split([target[0].numel() for target in targets], dim=1)
    for target, part in zip(targets, parts, strict=True):
        target.copy_(part.reshape(target.shape))
