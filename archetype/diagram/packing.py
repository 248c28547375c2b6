"""Packing of rectangles into a picture: each rectangle is placed as low as possible, then as far left as possible."""

from collections.abc import Iterator, Sequence
from itertools import permutations

FEW = 5  # number of rectangles up to which all orders are tried
STEPS = 24  # number of strip widths tried
Size = tuple[float, float]
Corner = tuple[float, float]


def packings(sizes: Sequence[Size], gap: float) -> Iterator[list[Corner]]:
    """Yield arrangements of rectangles in strips of increasing width, each as a list of lower left corners."""
    indices = range(len(sizes))
    orders = (
        list(permutations(indices))
        if len(sizes) <= FEW
        else [tuple(indices), *(tuple(sorted(indices, key=lambda index: -sizes[index][axis])) for axis in (0, 1))]
    )
    widest, whole = max(width for width, _ in sizes), sum(width + gap for width, _ in sizes)
    for step in range(STEPS + 1):
        strip = widest + (whole - widest) * step / STEPS
        for order in orders:
            yield _packed(sizes, order, strip, gap)


def _packed(sizes: Sequence[Size], order: Sequence[int], strip: float, gap: float) -> list[Corner]:
    corners = [(0.0, 0.0)] * len(sizes)
    edges: list[tuple[float, float, float]] = []  # left, right and upper edge
    for index in order:
        width, height = sizes[index]
        lefts = [0.0, *(right + gap for _, right, _ in edges)]
        fitting = []
        for x in lefts:
            if x == 0 or x + width <= strip:
                # the lowest y at which it is above everything that overlaps it horizontally
                floor = max(
                    (top + gap for left, right, top in edges if x < right + gap and left - gap < x + width), default=0.0
                )
                fitting.append((floor, x))
        # lowest, then leftmost
        y, x = min(fitting)
        corners[index] = (x, y)
        edges.append((x, x + width, y + height))
    return corners
