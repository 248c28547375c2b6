"""A random order of many things that takes no memory: a permutation that is computed, not stored."""

from functools import lru_cache

import numpy as np

ROUNDS = 6
WORD = 2**64 - 1


class Permutation:
    """A permutation of 0 ... n - 1 by a Feistel network with cycle walking (Black and Rogaway 2002, section 4).

    The network permutes the smallest range of 4^k numbers that holds n; a number that comes out beyond n goes through
    it again, fewer than four times on average.

    Args:
        n: how many numbers.
        key: whole numbers that determine the order, such as a seed and an epoch.
    """

    def __init__(self, n: int, *key: int) -> None:
        self.n = n
        self.half = max(1, ((n - 1).bit_length() + 1) // 2)  # bits of each side
        self.keys: list[int] = np.random.SeedSequence(key).generate_state(ROUNDS, np.uint64).tolist()

    def __call__(self, number: int) -> int:
        """Where a number stands in the order."""
        place = self._network(number)
        while place >= self.n:
            place = self._network(place)
        return place

    def _network(self, x: int) -> int:
        mask = (1 << self.half) - 1
        left, right = x >> self.half, x & mask
        for key in self.keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        return left << self.half | right


@lru_cache(maxsize=256)
def permutation(n: int, *key: int) -> Permutation:
    """The permutation of n numbers of a key; the last ones are remembered."""
    return Permutation(n, *key)


def _mix(x: int) -> int:
    """64 bits, each of which depends on all (the finalizer of SplitMix64, Steele 2014)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)
