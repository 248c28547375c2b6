"""Temperature and the sampling filters: top-k, top-p, min-p, typical, top-H, epsilon and eta."""

import torch
from torch import Tensor

from archetype.settings.generation import Sampling

MOST_OF_TOP_H = 100  # most likely tokens that top-H considers


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return logits (B, V) divided by the temperature, with -inf for tokens that are filtered out."""
    # subtract the maximum first, so that division by a small temperature cannot overflow to infinity
    logits = (logits - logits.amax(-1, keepdim=True)) / max(sampling.temperature, torch.finfo(logits.dtype).tiny)
    if sampling.top_h is not None:
        logits = _top_h(logits, sampling.top_h)
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        kth = logits.topk(sampling.top_k).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if sampling.top_p < 1:
        logits = _nucleus(logits, sampling.top_p)
    if sampling.min_p > 0:
        probabilities = logits.softmax(-1)
        least = sampling.min_p * probabilities.amax(-1, keepdim=True)
        logits = logits.masked_fill(probabilities < least, -torch.inf)
    if sampling.typical_p < 1:
        logits = _typical(logits, sampling.typical_p)
    if sampling.epsilon_cutoff > 0:
        logits = _above(logits, torch.tensor(sampling.epsilon_cutoff))
    if sampling.eta_cutoff > 0:
        epsilon = torch.tensor(sampling.eta_cutoff)
        logits = _above(logits, torch.minimum(epsilon, epsilon.sqrt() * (-_entropy(logits)).exp()))
    return logits


def _nucleus(logits: Tensor, top_p: float) -> Tensor:
    # keeps the fewest most likely tokens whose probabilities sum to `top_p` (Holtzman 2019, section 3.1)
    descending, order = logits.sort(dim=-1, descending=True, stable=True)  # (B, V) each
    probabilities = descending.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # probability of all more likely tokens
    unneeded = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= top_p)
    return logits.masked_fill(unneeded, -torch.inf)


def _top_h(logits: Tensor, share: float) -> Tensor:
    # keeps the most likely tokens that hold at most this share of the entropy (Baghaei Potraghloo 2025)
    top, order = logits.topk(min(MOST_OF_TOP_H, logits.shape[-1]))
    logs = top.log_softmax(-1)
    parts = (-logs.exp() * logs).nan_to_num(0.0)
    is_allowed = parts.cumsum(-1) <= share * parts.sum(-1, keepdim=True)
    is_allowed[:, 0] = True  # at least one token is left
    return logits.masked_fill(~torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, is_allowed), -torch.inf)


def _typical(logits: Tensor, mass: float) -> Tensor:
    # keeps the tokens with information closest to the entropy, up to a total probability (Meister 2022)
    distance, order = (-logits.log_softmax(-1) - _entropy(logits)).abs().sort(dim=-1)
    reached = logits.gather(-1, order).softmax(-1).cumsum(-1)
    last = (reached < mass).sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
    unneeded = distance > distance.gather(-1, last)
    unneeded[:, 0] = False
    return logits.masked_fill(torch.zeros_like(unneeded).scatter(-1, order, unneeded), -torch.inf)


def _above(logits: Tensor, least: Tensor) -> Tensor:
    # keeps tokens with at least this probability, and always the most likely one (Hewitt 2022)
    unlikely = logits.softmax(-1) < least.to(logits.device)
    return logits.masked_fill(unlikely & (logits < logits.amax(-1, keepdim=True)), -torch.inf)


def _entropy(logits: Tensor) -> Tensor:
    # (B, 1), in nats
    logs = logits.log_softmax(-1)
    return -(logs.exp() * logs).nansum(-1, keepdim=True)
