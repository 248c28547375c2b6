"""Masked language models for transformers."""

from typing import Any

from torch import Tensor
from transformers.modeling_outputs import MaskedLMOutput

from archetype.hf.base import ArchetypePreTrainedModel, check_kind
from archetype.hf.configuration import ArchetypeConfig
from archetype.hf.model import ArchetypeModel


class ArchetypeForMaskedLM(ArchetypePreTrainedModel):
    def __init__(self, config: ArchetypeConfig) -> None:
        super().__init__(config)
        check_kind(self, config.architecture.fills_masks, "fill masks")
        self.model = ArchetypeModel(config, keeps_head=True)
        self.lm_head: Any = self.model.take_head()
        self.post_init()

    def forward(
        self, input_ids: Tensor | None = None, labels: Tensor | None = None, **arguments: Any
    ) -> MaskedLMOutput:
        """Return logits (B, T, V), and the mean loss over all labels other than -100.

        Args:
            input_ids: token ids (B, T), padded on either side.
            labels: original token ids (B, T) at masked positions; -100 elsewhere.
            arguments: same as for `ArchetypeModel.run`, and `num_items_in_batch`, which divides the loss.
        """
        items = arguments.pop("num_items_in_batch", None)
        result = self.model.run(input_ids, **arguments)
        logits = self.lm_head(result.hidden, self.model.network.token_table)  # (B, T, V)
        loss: Tensor | None = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=logits.shape[-1], num_items_in_batch=items)
        return MaskedLMOutput(loss=loss, logits=logits, hidden_states=result.hidden_states)
