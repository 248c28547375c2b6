"""Recall at length: random keys and values at the start of a text, then random tokens, then the keys again.

A language model that has learned to look back continues each repeated key with its value, whatever the tokens mean.
"""

import numpy as np
import torch

from archetype.errors import DataError
from archetype.models.build import Model
from archetype.tokenizers import Tokenizer

NUM_PAIRS = 8  # of a key and a value in each text
NUM_TEXTS = 64
TOKENS_AT_ONCE = 2**13
SEED = 2


@torch.inference_mode()
def recalled(model: Model, tokenizer: Tokenizer, length: int) -> tuple[float, ...]:
    """Return how many of the `NUM_PAIRS` values a model finds again in each of `NUM_TEXTS` texts of `length` tokens.

    Raises:
        DataError: the text is shorter than its pairs, longer than the context, or the vocabulary is too small.
    """
    special = {*tokenizer.special_tokens.values(), *tokenizer.eos, tokenizer.bos}
    tokens = np.array([token for token in range(tokenizer.vocab_size) if token not in special])
    if not 4 * NUM_PAIRS <= length <= model.spec.context_length or len(tokens) <= 2 * NUM_PAIRS:
        cause = f"a text of {length} tokens of {len(tokens)} cannot be made for {NUM_PAIRS} pairs"
        raise DataError("metric.length", cause, f"use {4 * NUM_PAIRS} to {model.spec.context_length}")
    rows, targets = texts(tokens, length)
    right: list[float] = []
    at_once = max(1, TOKENS_AT_ONCE // length)
    for batch, expected in zip(rows.split(at_once), targets.split(at_once), strict=True):
        logits = model(batch.to(model.device)).logits[:, -2 * NUM_PAIRS :: 2]  # (B, pairs, V), at the repeated keys
        right += (logits.argmax(-1).cpu() == expected).sum(1).double().tolist()
    return tuple(right)


def texts(tokens: "np.ndarray[tuple[int], np.dtype[np.int64]]", length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return texts (N, length), and the values (N, pairs) that follow the keys at places -16, -14, ..., -2 of each."""
    generator = np.random.default_rng(SEED)
    rows = np.empty((NUM_TEXTS, length), dtype=np.int64)
    targets = np.empty((NUM_TEXTS, NUM_PAIRS), dtype=np.int64)
    for row, target in zip(rows, targets, strict=True):
        drawn = generator.permutation(tokens)
        keys, values, others = drawn[:NUM_PAIRS], drawn[NUM_PAIRS : 2 * NUM_PAIRS], drawn[2 * NUM_PAIRS :]
        order = generator.permutation(NUM_PAIRS)
        first, again = np.stack([keys, values], axis=1), np.stack([keys[order], values[order]], axis=1)
        between = generator.choice(others, size=length - 4 * NUM_PAIRS)
        row[:] = np.concatenate([first.reshape(-1), between, again.reshape(-1)])
        target[:] = values[order]
    return torch.from_numpy(rows), torch.from_numpy(targets)
