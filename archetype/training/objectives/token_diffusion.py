"""Masked and block diffusion: predict the masked tokens of each block, weighted by the inverse of their share."""

from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from archetype.data.batches import Tokens
from archetype.data.corpus import Corpus
from archetype.data.masks import draw_masks
from archetype.data.packing import Documents
from archetype.models.encoder.spec import Encoder
from archetype.models.spec import ModelSpec
from archetype.spec.kinds import part
from archetype.tokenizers.special_tokens import mask_id
from archetype.training.objectives.base import IGNORED, Batch, Counts, LossOutput, ObjectiveInputs
from archetype.training.objectives.masked_token import MasksTokens
from archetype.training.objectives.text import TextObjective, corpus_of


@part
class MaskedDiffusion(MasksTokens):
    """Cross-entropy of masked tokens, divided by the share t of a sequence that is masked (LLaDA; Nie 2025).

    The loss is an upper bound of the negative log-likelihood per token. In a model with block-causal attention, each
    block has its own share, and is read together with the unmasked blocks before it (BD3-LM; Arriola 2025).
    """

    kind: Literal["masked_diffusion"] = "masked_diffusion"

    def build(self, inputs: ObjectiveInputs) -> "MaskedDiffusionObjective":
        sizes = (inputs.batch_size, inputs.sequence_length, inputs.seed)
        block = cast(Encoder, inputs.spec).block_length
        return MaskedDiffusionObjective(corpus_of(inputs), *sizes, block, mask_id(inputs.text_tokenizer))


class MaskedDiffusionObjective(TextObjective):
    """Masked tokens of windows of text, (B, T).

    Args:
        block: block length of the model; None if all positions see each other.
    """

    def __init__(
        self,
        corpus: Corpus | Documents,
        batch_size: int,
        sequence_length: int,
        seed: int,
        block: int | None,
        mask_id: int,
    ) -> None:
        super().__init__(corpus, batch_size, sequence_length, seed)
        self.block, self.mask_id, self.bytes_per_unit = block, mask_id, corpus.bytes_per_token

    def examples(self, windows: Tokens, step: int) -> Batch:
        """Return masked tokens, targets and weights, (B, T) each. Tokens that are not masked have the target IGNORED.

        Of the validation text, each token counts with the bits of its own prediction: windows do not overlap.
        """
        tokens = windows[:, :-1]
        is_masked, weights = draw_masks(tokens.shape, self.block or tokens.shape[1], self.generator(step))
        masked, targets = np.where(is_masked, self.mask_id, tokens), np.where(is_masked, tokens, IGNORED)
        return torch.from_numpy(masked).long(), torch.from_numpy(targets).long(), torch.from_numpy(weights)

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        masked, targets, _ = batch
        clean = {} if self.block is None else {"clean": torch.where(targets == IGNORED, masked, targets)}
        return {"tokens": masked, **clean}, targets

    def target_counts(self, batch: Batch) -> Counts:
        # the mean is over all tokens, of which only the masked ones have a loss
        return batch[1].numel(), int((batch[1] != IGNORED).sum())

    def guessing_loss(self, spec: ModelSpec) -> float | None:
        return float(np.log(cast(Any, spec).vocab_size))

    def compute_loss(self, model: nn.Module, batch: Batch, counts: Counts = ()) -> LossOutput:
        num_tokens, num_masked = counts or self.target_counts(batch)
        weights = batch[2] * (num_masked / num_tokens)
        loss = self.loss_of(model, *self.inputs_and_targets(batch), (num_masked,), weights)
        return LossOutput(loss.loss, num_tokens, None)
