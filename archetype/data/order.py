"""Random permutation that is computed on the fly in constant memory."""

from functools import lru_cache

import numpy as np

ROUNDS = 6
WORD = 2**64 - 1


class Permutation:
    """Keyed permutation of 0 ... n - 1 in constant memory: a Feistel network with cycle walking.

    Black and Rogaway 2002, section 4.
    """

    def __init__(self, n: int, *key: int) -> None:
        self.n = n
        self.half = max(1, ((n - 1).bit_length() + 1) // 2)  # bits of each half
        self.keys: list[int] = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64).tolist()

    def __call__(self, index: int) -> int:
        image = self._network(index)
        # The network permutes the smallest range of 4^k numbers that holds n. Outputs of n or more go through it again,
        # fewer than four times on average.
        while image >= self.n:
            image = self._network(image)
        return image

    def _network(self, x: int) -> int:
        mask = (1 << self.half) - 1
        left, right = x >> self.half, x & mask
        for key in self.keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        return left << self.half | right


@lru_cache(maxsize=256)
def permutation(n: int, *key: int) -> Permutation:
    return Permutation(n, *key)


def _mix(x: int) -> int:
    # each output bit depends on all input bits: the finalizer of SplitMix64 (Steele 2014)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)
