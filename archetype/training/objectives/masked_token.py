"""Masked language modeling, the objective of BERT."""

from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from archetype.data.batches import Tokens
from archetype.data.corpus import Corpus
from archetype.data.packing import Documents
from archetype.models.spec import ModelSpec
from archetype.spec.kinds import part
from archetype.tokenizers import Tokenizer
from archetype.tokenizers.special_tokens import mask_id
from archetype.training.datasets import Data, RunningText
from archetype.training.objectives.base import IGNORED, Batch, ObjectiveConfig, ObjectiveInputs
from archetype.training.objectives.text import TextObjective, corpus_of


class MasksTokens(ObjectiveConfig):
    """Base of objectives that predict masked tokens."""

    def suits(self, spec: ModelSpec, data: Data) -> bool:
        return spec.fills_masks and isinstance(data, RunningText)

    def num_ids(self, tokenizer: Tokenizer, sequence_length: int) -> int:
        # a tokenizer without a mask token gets the id after its vocabulary
        return max(tokenizer.vocab_size, mask_id(tokenizer) + 1)


@part
class MaskedToken(MasksTokens):
    """Cross-entropy of masked tokens (Devlin 2018, section 3.1).

    Of the selected tokens, 80 % are replaced by the mask token, 10 % are replaced by a random token, and 10 % stay
    unchanged.

    Attributes:
        mask_probability: fraction of tokens that are selected for prediction.
    """

    kind: Literal["masked_token"] = "masked_token"
    mask_probability: Annotated[float, Field(gt=0, lt=1)] = 0.15

    def build(self, inputs: ObjectiveInputs) -> "MaskedTokenObjective":
        sizes = (inputs.batch_size, inputs.sequence_length, inputs.seed)
        tokenizer = inputs.text_tokenizer
        return MaskedTokenObjective(corpus_of(inputs), *sizes, self, mask_id(tokenizer), tokenizer.vocab_size)


class MaskedTokenObjective(TextObjective):
    def __init__(
        self,
        corpus: Corpus | Documents,
        batch_size: int,
        sequence_length: int,
        seed: int,
        config: MaskedToken,
        mask_id: int,
        vocab_size: int,
    ) -> None:
        super().__init__(corpus, batch_size, sequence_length, seed)
        # vocab_size: the tokenizer's, from which random replacements are drawn
        self.config, self.mask_id, self.vocab_size = config, mask_id, vocab_size

    def examples(self, windows: Tokens, step: int) -> Batch:
        """Return masked tokens and targets, both (B, T). Tokens that are not selected have the target IGNORED."""
        generator, tokens = self.generator(step), windows[:, :-1]
        order = generator.random(tokens.shape).argsort(axis=1)  # each row has the same number of targets
        selected = order < max(1, round(self.config.mask_probability * tokens.shape[1]))
        # below 0.8: mask; from 0.9: random token; between: unchanged
        draw = generator.random(tokens.shape)
        masked = np.where(selected & (draw < 0.8), self.mask_id, tokens)
        masked = np.where(selected & (draw >= 0.9), generator.integers(self.vocab_size, size=tokens.shape), masked)
        targets = np.where(selected, tokens, IGNORED)
        return torch.from_numpy(masked).long(), torch.from_numpy(targets).long()

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        masked, targets = batch
        return {"tokens": masked}, targets
