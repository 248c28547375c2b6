"""From logits to the next token of each row."""

from collections.abc import Collection
from copy import copy

import torch
from torch import Tensor

from archetype.errors import SpecError
from archetype.generate.grammar import Grammar
from archetype.generate.settings import Sampling


class Sampler:
    """How one text's tokens are chosen: its settings, its random numbers, the tokens that it has seen, its grammar.

    It draws from a generator of its own: what a text gets does not depend on who shares its batch.

    Args:
        sampling: the settings.
        prompt: token ids.
        vocab_size: of the model.
        device: of its logits.
        grammar: at its start, where the text has one.
        ends: tokens that end a text, and may not before `min_new_tokens`.

    Raises:
        SpecError: `logit_bias` names what is no token.
    """

    def __init__(
        self,
        sampling: Sampling,
        prompt: list[int],
        vocab_size: int,
        device: torch.device,
        grammar: Grammar | None = None,
        ends: Collection[int] = (),
    ) -> None:
        self.sampling, self.grammar = sampling, grammar
        self.ends, self.num_chosen = [id for id in ends if 0 <= id < vocab_size], 0
        self.counts: Tensor | None = None  # (V,), of the tokens chosen
        if sampling.presence_penalty or sampling.frequency_penalty:
            self.counts = torch.zeros(vocab_size, device=device)
        if not all(0 <= id < vocab_size for id in sampling.logit_bias):
            cause = f"holds a token outside the vocabulary of {vocab_size}"
            raise SpecError("logit_bias", cause, "is it the model's own tokenizer?")
        self.generator = torch.Generator().manual_seed(sampling.seed)
        self.seen: Tensor | None = None  # (V,)
        if sampling.repetition_penalty != 1.0:
            self.seen = torch.zeros(vocab_size, dtype=torch.bool, device=device)
            self.seen[prompt] = True
        self.key = (
            sampling.repetition_penalty, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p,
        )  # fmt: skip

    @property
    def adjusts_logits(self) -> bool:
        """Whether this text's logits are changed before the settings that rows share."""
        sampling = self.sampling
        too_short = bool(self.ends) and self.num_chosen < sampling.min_new_tokens
        return self.grammar is not None or self.counts is not None or bool(sampling.logit_bias) or too_short

    def adjust(self, logits: Tensor) -> None:
        """Apply what concerns this text alone to its logits (V,), in place."""
        sampling = self.sampling
        if self.num_chosen < sampling.min_new_tokens and self.grammar is None:  # whose text may have to end
            logits[self.ends] = -torch.inf
        if sampling.logit_bias:
            logits[list(sampling.logit_bias)] += logits.new_tensor(list(sampling.logit_bias.values()))
        if self.counts is not None:
            logits -= sampling.presence_penalty * (self.counts > 0) + sampling.frequency_penalty * self.counts
        if self.grammar is not None:
            logits.masked_fill_(self.grammar.forbidden(len(logits)).to(logits.device), -torch.inf)

    def consume(self, token: int) -> None:
        """Go on after a token that was chosen."""
        self.num_chosen += 1
        if self.counts is not None:
            self.counts[token] += 1
        if self.grammar is not None:
            self.grammar.consume(token)

    def fork(self) -> "Sampler":
        """One that will choose as this one, from the same logits."""
        twin = copy(self)
        twin.generator = torch.Generator()
        twin.generator.set_state(self.generator.get_state())
        twin.seen = None if self.seen is None else self.seen.clone()
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
    seen = [sampler.seen for sampler in samplers if sampler.seen is not None]
    if seen:
        logits = penalised(logits, torch.stack(seen), sampling.repetition_penalty)
    chosen = logits.argmax(-1) if sampling.greedy else _draw(filtered(logits, sampling), samplers)
    tokens: list[int] = chosen.tolist()
    for row, token in zip(seen, tokens, strict=False):
        row[token] = True
    return tokens


def _draw(logits: Tensor, samplers: list[Sampler]) -> Tensor:
    """Invert the cumulative distribution at one uniform number of each row's own generator."""
    draws = [torch.rand((), dtype=torch.float64, generator=sampler.generator) for sampler in samplers]
    mass = logits.double().softmax(-1).cumsum(-1)
    target = torch.stack(draws).to(mass.device)[:, None] * mass[:, -1:]
    return torch.searchsorted(mass, target, right=True).squeeze(-1).clamp(max=logits.shape[-1] - 1)


def penalised(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """The logits of tokens seen, made smaller (Keskar 2019, section 4.1)."""
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits (B, V) over temperature, with -inf where a token is ruled out."""
    # the largest becomes 0, so that no temperature is small enough to make infinities of them
    logits = (logits - logits.amax(-1, keepdim=True)) / max(sampling.temperature, torch.finfo(logits.dtype).tiny)
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p < 1:
        logits = _nucleus(logits, sampling.top_p)
    if sampling.min_p > 0:
        probabilities = logits.softmax(-1)
        least = sampling.min_p * probabilities.amax(-1, keepdim=True)
        logits = logits.masked_fill(probabilities < least, -torch.inf)
    return logits


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    """Rule out all but the fewest tokens whose probabilities reach `top_p` (Holtzman 2019, section 3.1)."""
    descending, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = descending.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # the mass of all likelier tokens
    unneeded = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= top_p)
    return logits.masked_fill(unneeded, -torch.inf)
