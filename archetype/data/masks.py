"""Masks for diffusion: of each block of a text, a number of tokens at random places."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class Masks(NamedTuple):
    """Which tokens are masked, and the weight of each token's loss: block length / masked tokens of its block.

    The number of masked tokens is uniform between 1 and the block length, so that the mean of the weighted losses over
    all tokens is an upper bound of the negative log-likelihood (Nie 2025, equation 6; Arriola 2025, equation 4). With
    blocks of one token, it is the negative log-likelihood itself.
    """

    is_masked: npt.NDArray[np.bool_]  # (B, T)
    weights: npt.NDArray[np.float32]  # (B, T)


def draw_masks(shape: tuple[int, int], block: int, generator: np.random.Generator, draw: int = 0, of: int = 1) -> Masks:
    """Draw the masks of B sequences of T tokens, whose last block may be shorter.

    The share of masked tokens is spread evenly over rows and draws, each of which has its own stratum.

    Args:
        shape: (B, T).
        block: block length.
        draw: index of this draw, if the same sequences are masked `of` times.
    """
    (rows, length), num_blocks = shape, -(-shape[1] // block)
    sizes = np.minimum(block, length - block * np.arange(num_blocks))  # (blocks,)
    strata = np.stack([generator.permutation(rows) for _ in range(num_blocks)], axis=1) + generator.random(
        (rows, num_blocks)
    )
    shares = (draw + strata / rows) / of  # (B, blocks), in [draw, draw + 1) / of
    counts = 1 + np.minimum((shares * sizes).astype(np.int64), sizes - 1)  # (B, blocks)
    keys = np.full((rows, num_blocks * block), np.inf)
    keys[:, :length] = generator.random(shape)
    ranks = keys.reshape(rows, num_blocks, block).argsort(axis=2).argsort(axis=2)  # of the tokens within their blocks
    is_masked = (ranks < counts[..., None]).reshape(rows, -1)[:, :length]
    weights = np.repeat(sizes / counts, block, axis=1)[:, :length]
    return Masks(is_masked, weights.astype(np.float32))
