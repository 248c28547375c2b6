"""A permutation that is computed has each number once, and another order for each key."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from archetype.data.order import Permutation


@given(st.integers(1, 700), st.integers(0, 2**62), st.integers(0, 10**6))
def test_every_number_has_a_place_of_its_own(n: int, seed: int, epoch: int) -> None:
    assert sorted(map(Permutation(n, seed, epoch), range(n))) == list(range(n))


def test_orders_differ_and_neighbours_do_not_stay_together() -> None:
    n = 10**12
    one, other = Permutation(n, 0, 0), Permutation(n, 0, 1)
    places = [one(number) for number in range(1000)]
    assert places != [other(number) for number in range(1000)]
    assert all(0 <= place < n for place in places) and len(set(places)) == 1000
    assert abs(sum(places) / 1000 / n - 0.5) < 0.05  # uniform: the standard error is 0.009
    assert sum(abs(a - b) < n // 100 for a, b in pairwise(places)) < 50  # 20 are expected


def test_orders_stay_what_they_were() -> None:
    """A run that is resumed by a later version goes on in the order in which it began."""
    assert list(map(Permutation(16, 3), range(16))) == [8, 7, 15, 6, 9, 14, 13, 2, 12, 3, 0, 4, 11, 10, 1, 5]
    assert list(map(Permutation(1000, 5, 1), range(8))) == [239, 674, 923, 690, 539, 675, 785, 956]
    assert Permutation(10**12, 0, 7)(123_456_789) == 587_902_293_870
