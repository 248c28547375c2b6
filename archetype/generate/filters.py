"""Temperature and the sampling filters: top-k, top-p, min-p, typical, top-H, epsilon and eta."""

import numpy as np
import torch
from torch import Tensor

from archetype.settings.generation import Sampling

MOST_OF_TOP_H = 100  # most likely tokens that top-H considers
BLOCK = 64  # tokens: a multiple of the numbers in a vector, so that sums without blocks of -inf have the same bits
LARGE = 2**13  # vocabulary of which blocks are left out
VERY_LARGE = 2**16  # ... after filters that have read all tokens, too


def candidates(logits: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor | None]:
    """Return filtered logits (B, V), or those of the blocks of tokens that are not filtered out, and these blocks."""
    size = logits.shape[-1]
    if (k := sampling.top_k) is not None and LARGE < size > 4 * k * BLOCK and not _needs_all(sampling):
        maxima, blocks = _blocks(logits).amax(-1).topk(2 * k + 1)
        largest = _scaled(maxima, sampling.temperature)
        if bool((largest[:, k - 1] > largest[:, -1]).all()):  # k tokens are more likely than all in other blocks
            inside, blocks = _inside(logits, blocks[:, :-1])
            return filtered(inside, sampling), blocks
    scaled = _scaled(logits, sampling.temperature)
    remaining = _kept(scaled, sampling)
    if size > VERY_LARGE and remaining is not scaled:
        maxima = _blocks(remaining).amax(-1)
        count = int((maxima > -torch.inf).sum(-1).max())
        if 2 * count * BLOCK < size:
            return _inside(remaining, maxima.topk(count).indices)
    return remaining, None


def _needs_all(sampling: Sampling) -> bool:
    # whether a filter sums in an order that is not that of the tokens, or prefers some of equal tokens
    return sampling.top_h is not None or sampling.typical_p < 1 or sampling.eta_cutoff > 0


def _blocks(logits: Tensor) -> Tensor:
    padding = -logits.shape[-1] % BLOCK
    padded = torch.nn.functional.pad(logits, (0, padding), value=-torch.inf) if padding else logits
    return padded.view(len(logits), -1, BLOCK)


def _inside(logits: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
    # the logits of some blocks, and these blocks in the order of their tokens
    blocks = blocks.sort().values
    return _blocks(logits).gather(1, blocks[..., None].expand(-1, -1, BLOCK)).flatten(1), blocks


def largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest numbers of each row (B, V) in descending order, and their columns, as `topk` does."""
    size = values.shape[-1]
    if LARGE < size > 16 * count * BLOCK:
        inside, blocks = _inside(values, _blocks(values).amax(-1).topk(count + 1).indices)
        best, places = inside.topk(count + 1)
        if bool((best[:, 1:] < best[:, :-1]).all()):  # of equal numbers, `topk` decides
            ids = blocks.gather(-1, places // BLOCK) * BLOCK + places % BLOCK
            return best[:, :-1], ids[:, :-1]
    best, ids = values.topk(min(count, size))
    return best, ids


def filtered(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return logits (B, V) divided by the temperature, with -inf for tokens that are filtered out."""
    return _kept(_scaled(logits, sampling.temperature), sampling)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    # subtract the maximum first, so that division by a small temperature cannot overflow to infinity
    limits = torch.finfo(logits.dtype)
    return (logits - logits.amax(-1, keepdim=True)) / min(max(temperature, limits.tiny), limits.max)


def _kept(logits: Tensor, sampling: Sampling) -> Tensor:
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
    # numpy sorts floats in vectors, 30 times as fast as torch
    descending = -torch.from_numpy(np.sort((-logits).cpu().numpy())).to(logits.device)  # (B, V)
    probabilities = descending.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # probability of all more likely tokens, in ascending order
    count = torch.searchsorted(before, before.new_full((len(before), 1), top_p)).clamp(min=1)
    least = descending.gather(-1, count - 1)
    unneeded = logits < least
    following = descending.gather(-1, count.clamp(max=logits.shape[-1] - 1))
    if bool((following == least).any()):  # of equal tokens, the first are kept
        tied = logits == least
        unneeded |= tied & (tied.cumsum(-1) > count - (logits > least).sum(-1, keepdim=True))
    return logits.masked_fill(unneeded, -torch.inf)


def _top_h(logits: Tensor, share: float) -> Tensor:
    # keeps the most likely tokens that hold at most this share of the entropy (Baghaei Potraghloo 2025)
    top, order = largest(logits, MOST_OF_TOP_H)
    logs = top.log_softmax(-1)
    parts = (-logs.exp() * logs).nan_to_num(0.0)
    is_allowed = parts.cumsum(-1) <= share * parts.sum(-1, keepdim=True)
    is_allowed[:, 0] = True  # at least one token is left
    return logits.masked_fill(~torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, is_allowed), -torch.inf)


def _typical(logits: Tensor, mass: float) -> Tensor:
    # keeps the tokens with information closest to the entropy, up to a total probability (Meister 2022)
    distance = (-logits.log_softmax(-1) - _entropy(logits)).abs()
    # numpy sorts integers in vectors: the bits of a distance, and then the token's id
    keys = distance.view(torch.int32).long() << 32 | torch.arange(logits.shape[-1], device=logits.device)
    order = torch.from_numpy(np.sort(keys.cpu().numpy())).to(logits.device) & 0xFFFFFFFF
    reached = logits.gather(-1, order).softmax(-1).cumsum(-1)
    last = (reached < mass).sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
    return logits.masked_fill(distance > distance.gather(-1, order.gather(-1, last)), -torch.inf)


def _above(logits: Tensor, least: Tensor) -> Tensor:
    # keeps tokens with at least this probability, and always the most likely one (Hewitt 2022)
    unlikely = logits.softmax(-1) < least.to(logits.device)
    return logits.masked_fill(unlikely & (logits < logits.amax(-1, keepdim=True)), -torch.inf)


def _entropy(logits: Tensor) -> Tensor:
    # (B, 1), in nats
    logs = logits.log_softmax(-1)
    return -(logs.exp() * logs).nansum(-1, keepdim=True)
