"""Tiles of bands: runs of queries with the keys around them."""

from collections.abc import Iterator

from archetype.roles.pattern import Shape, Tile


def runs(positions: range, size: int) -> Iterator[range]:
    """The positions in runs of at most `size`."""
    for start in range(positions.start, positions.stop, size):
        yield range(start, min(start + size, positions.stop))


def runs_shape(length: int, size: int, keys: int) -> Shape:
    """The shape of a text in runs of at most `size` queries, each with some keys."""
    return Shape(-(-length // size), min(size, length), keys)


def band_tiles(positions: range, behind: int, ahead: int) -> Iterator[Tile]:
    """Runs of queries with the keys around them. A quarter of the band's width wastes a fifth of each tile."""
    for run in runs(positions, _band_run(behind, ahead)):
        yield Tile(run, (range(max(positions.start, run.start - behind), min(positions.stop, run.stop + ahead)),))


def band_shape(length: int, behind: int, ahead: int) -> Shape:
    """The shape of `band_tiles` of a text. The most keys are those of a run near where the text cuts off no more."""
    size = _band_run(behind, ahead)
    last = -(-length // size) - 1
    uncut_behind, uncut_ahead = -(-behind // size), (length - ahead) // size - 1  # the first such run, and the last
    candidates = {0, last, *(run + step for run in (uncut_behind, uncut_ahead) for step in (-1, 0, 1))}
    keys = (
        min(length, (run + 1) * size + ahead) - max(0, run * size - behind) for run in candidates if 0 <= run <= last
    )
    return runs_shape(length, size, max(keys, default=0))


def _band_run(behind: int, ahead: int) -> int:
    return min(128, max(16, (behind + ahead + 1) // 4))


def num_band_pairs(length: int, reach: int) -> int:
    """Pairs of positions that are 1 to `reach` apart, one direction."""
    reach = min(reach, length - 1)
    return reach * length - reach * (reach + 1) // 2
