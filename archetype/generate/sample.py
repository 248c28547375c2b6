"""From logits to the next token of each row."""

from collections.abc import Collection
from copy import copy

import torch
from torch import Tensor

from archetype.errors import ArchetypeError
from archetype.generate.filters import filtered
from archetype.generate.grammar import Grammar
from archetype.generate.logits_processors import LogitsProcessors
from archetype.generate.settings import Sampling

# settings that rows share, whose logits are then one batch
FILTERS = ("temperature", "top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")


class Sampler:
    """How one text's tokens are chosen: its settings, its random numbers, the tokens that it has seen, its grammar.

    It draws from a generator of its own: what a text gets does not depend on who shares its batch.

    Args:
        sampling: the settings.
        prompt: token ids.
        vocab_size: of the model.
        device: of its logits.
        grammar: at its start, where the text has one.
        ends: tokens that end a text.
        source: tokens of the source, where the model is an encoder-decoder (absent: the prompt).
        limit: tokens that are chosen at most (absent: `max_new_tokens`).

    Raises:
        SpecError: a setting names what is no token.
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
        self.error: ArchetypeError | None = None  # why no token can be chosen
        sampling.check_ids(vocab_size)
        self.processors = LogitsProcessors(
            sampling, prompt, prompt if source is None else source, [id for id in ends if 0 <= id < vocab_size],
            sampling.max_new_tokens if limit is None else limit, may_end=grammar is None,
        )  # fmt: skip
        self.counts: Tensor | None = None  # (V,), of the tokens chosen
        if sampling.presence_penalty or sampling.frequency_penalty:
            self.counts = torch.zeros(vocab_size, device=device)
        self.generator = torch.Generator().manual_seed(sampling.seed)
        self.key = tuple(getattr(sampling, name) for name in FILTERS)

    @property
    def adjusts_logits(self) -> bool:
        """Whether this text's logits are changed before the settings that rows share."""
        penalised = self.counts is not None or self.processors.is_active
        return penalised or self.grammar is not None or bool(self.sampling.logit_bias)

    def adjust(self, logits: Tensor) -> None:
        """Apply what concerns this text alone to its logits (V,), in place."""
        sampling = self.sampling
        if sampling.logit_bias:
            logits[list(sampling.logit_bias)] += logits.new_tensor(list(sampling.logit_bias.values()))
        if self.counts is not None:
            logits -= sampling.presence_penalty * (self.counts > 0) + sampling.frequency_penalty * self.counts
        self.processors(logits)
        if self.grammar is not None:
            try:
                logits.masked_fill_(self.grammar.forbidden(len(logits)).to(logits.device), -torch.inf)
            except ArchetypeError as error:
                self.error = error

    def consume(self, token: int) -> None:
        """Go on after a token that was chosen."""
        self.processors.consume(token)
        if self.counts is not None:
            self.counts[token] += 1
        if self.grammar is not None:
            self.grammar.consume(token)

    def fork(self) -> "Sampler":
        """One that will choose as this one, from the same logits."""
        twin = copy(self)
        twin.generator = torch.Generator()
        twin.generator.set_state(self.generator.get_state())
        twin.processors = self.processors.fork()
        twin.counts = None if self.counts is None else self.counts.clone()
        twin.grammar = None if self.grammar is None else self.grammar.fork()
        return twin


def sample(logits: Tensor, samplers: list[Sampler]) -> list[int]:
    """The next token of each row of logits (B, V), by that row's sampler; rows with equal settings are one batch."""
    adjusted = [row for row, sampler in enumerate(samplers) if sampler.adjusts_logits]
    if adjusted:
        logits = logits.to(torch.float32, copy=True)
    for row in adjusted:
        samplers[row].adjust(logits[row])
    groups: dict[object, list[int]] = {}
    for row, sampler in enumerate(samplers):
        groups.setdefault(sampler.key, []).append(row)
    tokens = [0] * len(samplers)
    for rows in groups.values():
        group = logits if len(groups) == 1 else logits[rows]
        for row, token in zip(rows, _sample(group.float(), [samplers[row] for row in rows]), strict=True):
            tokens[row] = token
    for sampler, token in zip(samplers, tokens, strict=True):
        sampler.consume(token)
    return tokens


def _sample(logits: Tensor, samplers: list[Sampler]) -> list[int]:
    """The same for rows with equal settings."""
    sampling = samplers[0].sampling
    chosen = logits.argmax(-1) if sampling.greedy else _draw(filtered(logits, sampling), samplers)
    tokens: list[int] = chosen.tolist()
    return tokens


def _draw(logits: Tensor, samplers: list[Sampler]) -> Tensor:
    """Invert the cumulative distribution at one uniform number of each row's own generator."""
    draws = [torch.rand((), dtype=torch.float64, generator=sampler.generator) for sampler in samplers]
    mass = logits.double().softmax(-1).cumsum(-1)
    target = torch.stack(draws).to(mass.device)[:, None] * mass[:, -1:]
    return torch.searchsorted(mass, target, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)
