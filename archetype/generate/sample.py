"""Sampling: the next token of each row from its logits."""

from collections.abc import Collection
from copy import copy

import torch
from torch import Tensor

from archetype.errors import ArchetypeError
from archetype.generate.filters import BLOCK, VERY_LARGE, candidates
from archetype.generate.grammar import Grammar
from archetype.generate.logits_processors import LogitsProcessors
from archetype.settings.generation import Sampling

# rows that agree in these settings are filtered as one batch
FILTERS = ("temperature", "top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")


class Sampler:
    """Sampling state of one sequence: settings, random generator, tokens seen so far, grammar.

    Each sequence has its own random generator: its tokens do not depend on the other sequences of the batch.

    Args:
        grammar: constraint in its initial state, if any.
        source: token ids of the source of an encoder-decoder (absent: the prompt).
        limit: maximal number of generated tokens (absent: `sampling.max_new_tokens`).

    Raises:
        SpecError: a setting refers to an id outside the vocabulary.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: list[int],
        vocab_size: int,
        device: torch.device,
        grammar: Grammar | None = None,
        ends: Collection[int] = (),
        source: list[int] | None = None,
        limit: int | None = None,
    ) -> None:
        self.sampling, self.grammar = sampling, grammar
        self.error: ArchetypeError | None = None  # set if no token can be chosen
        sampling.check_ids(vocab_size)
        self.processors = LogitsProcessors(
            sampling,
            prompt,
            prompt if source is None else source,
            [id for id in ends if 0 <= id < vocab_size],
            sampling.max_new_tokens if limit is None else limit,
            may_end=grammar is None,
        )
        self.counts: Tensor | None = None  # (V,) number of times each token was generated, and its penalty
        if sampling.presence_penalty or sampling.frequency_penalty:
            self.counts, self.penalties = torch.zeros(2, vocab_size, device=device)
        self.biased = torch.tensor(list(sampling.logit_bias), dtype=torch.long)
        self.biases = torch.tensor(list(sampling.logit_bias.values()), device=device)
        self.generator = torch.Generator().manual_seed(sampling.seed)
        self.key = tuple(getattr(sampling, name) for name in FILTERS)

    @property
    def adjusts_logits(self) -> bool:
        penalised = self.counts is not None or self.processors.is_active
        return penalised or self.grammar is not None or bool(self.sampling.logit_bias)

    def adjust(self, logits: Tensor) -> None:
        """Apply biases, penalties, processors and the grammar to the logits (V,) of this sequence, in place."""
        sampling = self.sampling
        if sampling.logit_bias:
            logits[self.biased] += self.biases
        if self.counts is not None:
            logits -= self.penalties
        self.processors(logits)
        if self.grammar is not None:
            try:
                logits += self.grammar.forbidden(len(logits)).to(logits.device)
            except ArchetypeError as error:
                self.error = error

    def consume(self, token: int) -> None:
        self.processors.consume(token)
        if self.counts is not None:
            count, sampling = self.counts[token : token + 1].add_(1), self.sampling
            self.penalties[token] = sampling.presence_penalty * (count > 0) + sampling.frequency_penalty * count
        if self.grammar is not None:
            self.grammar.consume(token)

    def fork(self) -> "Sampler":
        """Return an independent copy that makes the same choices from the same logits."""
        twin = copy(self)
        twin.generator = torch.Generator()
        twin.generator.set_state(self.generator.get_state())
        twin.processors = self.processors.fork()
        if self.counts is not None:
            twin.counts, twin.penalties = self.counts.clone(), self.penalties.clone()
        twin.grammar = None if self.grammar is None else self.grammar.fork()
        return twin


def sample(logits: Tensor, samplers: list[Sampler]) -> list[int]:
    """Return the next token of each row of logits (B, V). Rows with equal settings are filtered as one batch."""
    adjusted = [row for row, sampler in enumerate(samplers) if sampler.adjusts_logits]
    if adjusted:
        logits = logits.to(torch.float32, copy=True)
    for row in adjusted:
        samplers[row].adjust(logits[row])
    # large rows are filtered one by one: intermediate results of several would not stay in a processor's cache
    is_large = logits.shape[-1] > VERY_LARGE and logits.device.type == "cpu"
    groups: dict[object, list[int]] = {}
    for row, sampler in enumerate(samplers):
        groups.setdefault(row if is_large and not sampler.sampling.greedy else sampler.key, []).append(row)
    tokens = [0] * len(samplers)
    for rows in groups.values():
        group = logits if len(groups) == 1 else logits[rows]
        for row, token in zip(rows, _sample(group.float(), [samplers[row] for row in rows]), strict=True):
            tokens[row] = token
    for sampler, token in zip(samplers, tokens, strict=True):
        sampler.consume(token)
    return tokens


def _sample(logits: Tensor, samplers: list[Sampler]) -> list[int]:
    # all rows have equal settings
    sampling = samplers[0].sampling
    if sampling.greedy:  # numpy compares numbers in vectors
        best = logits.numpy().argmax(-1) if logits.device.type == "cpu" else logits.argmax(-1)
        return best.tolist()
    remaining, blocks = candidates(logits, sampling)
    tokens = _draw(remaining, samplers).tolist()
    if blocks is not None:
        tokens = [int(ids[token // BLOCK]) * BLOCK + token % BLOCK for ids, token in zip(blocks, tokens, strict=True)]
    return tokens


def _draw(logits: Tensor, samplers: list[Sampler]) -> Tensor:
    # inverse transform sampling, with one number from the generator of each row
    draws = [torch.rand((), dtype=torch.float64, generator=sampler.generator) for sampler in samplers]
    mass = logits.double().softmax(-1).cumsum(-1)
    target = torch.stack(draws).to(mass.device)[:, None] * mass[:, -1:]
    return torch.searchsorted(mass, target, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)
