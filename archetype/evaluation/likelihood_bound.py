"""Upper bound of a text's negative log-likelihood under a model that fills masks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from archetype.data.masks import draw_masks
from archetype.data.preparation import prepared
from archetype.errors import DataError
from archetype.evaluation.score import PerToken
from archetype.generate.encoder import mask_of
from archetype.machine.time_budget import in_time
from archetype.models.decoder.module import Decoder
from archetype.models.encoder.module import Encoder
from archetype.tokenizers import Tokenizer

TOKENS_AT_ONCE = 4096  # tokens of a batch
MAX_LOGITS = 2**26  # logits of a forward pass; limits the default window length for large vocabularies


@dataclass(frozen=True)
class LikelihoodBound(PerToken):
    """Upper bound of the negative log-likelihood of a text, estimated from random masks.

    Attributes:
        COLUMNS: names of the columns of `cells`.
        loss: bound per token, in nats.
        error: standard error of `loss`, from the differences between draws; 0 if the bound is exact.
        num_tokens: number of tokens.
        num_bytes: number of UTF-8 bytes of the text.
        losses: (num_tokens,) contribution of each token, averaged over draws, in float64.
    """

    COLUMNS: ClassVar = ("tokens", "bound per token", "standard error", "perplexity", "bits per byte")
    loss: float
    error: float
    num_tokens: int
    num_bytes: int
    losses: Tensor = field(repr=False, compare=False)

    def record(self) -> dict[str, float]:
        names = ("loss", "error", "num_tokens", "num_bytes", "perplexity", "bits_per_byte")
        return {name: getattr(self, name) for name in names}

    @property
    def cells(self) -> list[str]:
        """Cells of a row of a table with the columns `COLUMNS`."""
        numbers = [f"{self.loss:.4f}", f"{self.error:.4f}", f"{self.perplexity:.3f}", f"{self.bits_per_byte:.4f}"]
        return [f"{self.num_tokens:,}", *numbers]


def together(bounds: Sequence[LikelihoodBound]) -> LikelihoodBound:
    """Combine the bounds of several texts into the mean over all their tokens."""
    num_tokens, losses = sum(each.num_tokens for each in bounds), torch.cat([each.losses for each in bounds])
    error = math.sqrt(sum((each.error * each.num_tokens) ** 2 for each in bounds)) / num_tokens
    return LikelihoodBound(float(losses.mean()), error, num_tokens, sum(each.num_bytes for each in bounds), losses)


@torch.inference_mode()
def likelihood_bound(
    model: Encoder | Decoder, tokenizer: Tokenizer, text: str, length: int | None = None, draws: int = 32, seed: int = 0
) -> LikelihoodBound:
    """Estimate an upper bound of -log p(text), in windows that do not overlap.

    Each draw masks a uniform number of tokens in each block of a window, at random places, and sums the cross-entropy
    of the masked tokens, times block length / masked tokens (Nie 2025, equation 6). A model with block-causal
    attention reads the blocks before without masks; with blocks of one token, a single draw is the exact value. If a
    time budget ends, the bound is that of the text so far.

    Args:
        model: model in evaluation mode.
        length: tokens per window (default: the model's context, or less for a large vocabulary).
        draws: number of masks of each window.
        seed: seed of the masks.

    Raises:
        SpecError: the head does not predict masked tokens, or the vocabulary has no mask.
        DataError: the text has no token, or a size is out of range.
    """
    mask, ids, context = mask_of(model, tokenizer), tokenizer.encode(text), model.spec.context_length
    assert isinstance(model, Encoder)  # only encoders predict masked tokens
    length = min(context, max(1, MAX_LOGITS // model.spec.vocab_size)) if length is None else length
    for name, size, most in (("length", length, context), ("draws", draws, 2**20)):
        if not 1 <= size <= most:
            raise DataError(name, f"{size} is not between 1 and {most}", "choose a value in this range")
    block = model.spec.block_length
    if not ids:
        raise DataError("text", "has no token", "use a longer text")
    draws = 1 if block == 1 else draws
    generator, totals, losses = np.random.default_rng(seed), torch.zeros(draws, dtype=torch.float64), list[Tensor]()
    rows_at_once = max(1, TOKENS_AT_ONCE // length)
    for start in in_time(prepared(range(0, len(ids), length))):
        window = torch.tensor(ids[start : start + length])
        masks = [draw_masks((1, len(window)), block or len(window), generator, draw, draws) for draw in range(draws)]
        parts = []
        for first in range(0, draws, rows_at_once):
            rows = masks[first : first + rows_at_once]
            is_masked = torch.from_numpy(np.concatenate([row.is_masked for row in rows]))  # (rows, T)
            weights = torch.from_numpy(np.concatenate([row.weights for row in rows])).double()
            clean = window.expand(len(rows), -1).to(model.device)
            tokens = clean.masked_fill(is_masked.to(model.device), mask)
            logits = model(tokens, clean=None if block is None else clean).logits.float()
            nats = torch.nn.functional.cross_entropy(logits.transpose(1, 2), clean, reduction="none").double().cpu()
            parts.append(torch.where(is_masked, nats * weights, 0.0))
        in_draws = torch.cat(parts)  # (draws, T)
        totals += in_draws.sum(1)
        losses.append(in_draws.mean(0))
    per_token = torch.cat(losses)
    num_tokens = len(per_token)
    of_draws = totals / num_tokens
    error = float(of_draws.std() / math.sqrt(draws)) if draws > 1 else 0.0
    num_bytes = len((text if num_tokens == len(ids) else tokenizer.decode(ids[:num_tokens])).encode())
    return LikelihoodBound(float(of_draws.mean()), error, num_tokens, num_bytes, per_token)
