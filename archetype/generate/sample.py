"""From logits to the next token of each row."""

import torch
from torch import Tensor

from archetype.generate.settings import Sampling


class Sampler:
    """Chooses the next tokens of rows that were given the same settings.

    Each row draws from a generator of its own, all with the same seed: what a row gets does not depend on who shares
    its batch.
    """

    def __init__(self, sampling: Sampling, prompts: list[list[int]], vocab_size: int, device: torch.device) -> None:
        self.sampling = sampling
        self.generators = [torch.Generator().manual_seed(sampling.seed) for _ in prompts]
        self.seen: Tensor | None = None
        if sampling.repetition_penalty != 1.0:
            self.seen = torch.zeros(len(prompts), vocab_size, dtype=torch.bool, device=device)
            for row, prompt in enumerate(prompts):
                self.seen[row, prompt] = True

    def next(self, logits: Tensor, rows: list[int]) -> list[int]:
        """One token for each of `rows`, from logits (rows, V)."""
        logits = logits.float()
        if self.seen is not None:
            logits = penalised(logits, self.seen[rows], self.sampling.repetition_penalty)
        chosen = logits.argmax(-1) if self.sampling.greedy else self._draw(filtered(logits, self.sampling), rows)
        if self.seen is not None:
            self.seen[rows, chosen] = True
        return [int(token) for token in chosen]

    def _draw(self, logits: Tensor, rows: list[int]) -> Tensor:
        """Invert the cumulative distribution at one uniform number of each row's own generator."""
        uniform = torch.stack([torch.rand((), dtype=torch.float64, generator=self.generators[row]) for row in rows])
        mass = logits.double().softmax(-1).cumsum(-1)
        target = uniform.to(mass.device)[:, None] * mass[:, -1:]
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
