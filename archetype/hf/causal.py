"""Causal language models for transformers."""

from typing import Any

from torch import Tensor
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from archetype.hf.base import ArchetypePreTrainedModel, check_kind, refuse
from archetype.hf.cache import NAME, cache_by_either_name
from archetype.hf.configuration import ArchetypeConfig
from archetype.hf.generating import Generating
from archetype.hf.model import ArchetypeModel

OF_LOSS = ("num_items_in_batch", "shift_labels", "ignore_index")  # arguments of the loss


class ArchetypeForCausalLM(Generating, ArchetypePreTrainedModel, GenerationMixin):
    def __init__(self, config: ArchetypeConfig) -> None:
        super().__init__(config)
        check_kind(self, config.architecture.continues_text, "generate text")
        self.model = ArchetypeModel(config, keeps_head=True)
        self.lm_head: Any = self.model.take_head()
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        cache: Any = None,
        **others: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits (B, T, V), and the mean next-token loss if there are labels.

        Args:
            input_ids: token ids (B, T), padded on either side.
            attention_mask: mask (B, past + T), 1 at tokens, 0 at padding.
            position_ids: positions in each sequence. Where they restart, a new document begins, attended separately.
            past_key_values: name of `cache` before transformers 5.24.
            labels: the same token ids (B, T), or -100 where no loss is computed.
            use_cache: whether to return a cache; ignored in training.
            logits_to_keep: number of last positions, or indices of positions, for which logits are computed (0: all).
            token_type_ids: type ids, which must be zeros.
            inputs_embeds: token vectors (B, T, D) instead of ids; only with a registered attention function.
            others: arguments for the loss, such as `num_items_in_batch`, which divides the sum, and for a registered
                attention function.

        Raises:
            SpecError: an argument is not supported, such as `output_attentions`.
        """
        of_loss = {name: others.pop(name) for name in OF_LOSS if name in others}
        refuse({"output_attentions": output_attentions})
        cached = self.config.use_cache if use_cache is None else use_cache
        result = self.model.run(
            input_ids,
            attention_mask,
            position_ids,
            token_type_ids,
            cache_by_either_name(cache, past_key_values),
            cached and labels is None,
            output_hidden_states,
            inputs_embeds=inputs_embeds,
            **others,
        )
        hidden = result.hidden  # (B, T, D)
        # slice(-0, None) is all positions
        positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, positions], self.model.network.token_table)  # (B, T or fewer, V)
        loss: Tensor | None = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=logits.shape[-1], **of_loss)
            if result.output.aux_loss is not None and self.training:  # such as the balance loss of experts
                loss = loss + result.output.aux_loss
        cache_output = {NAME: result.cache}
        return CausalLMOutputWithPast(loss=loss, logits=logits, hidden_states=result.hidden_states, **cache_output)
