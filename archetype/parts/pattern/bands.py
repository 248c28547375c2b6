"""Tiles of banded patterns: runs of queries with the keys around them."""

from collections.abc import Iterator

from archetype.roles.pattern import Shape, Tile


def runs(positions: range, size: int) -> Iterator[range]:
    """Cut positions into runs of at most `size`."""
    for start in range(positions.start, positions.stop, size):
        yield range(start, min(start + size, positions.stop))


def runs_shape(length: int, size: int, keys: int) -> Shape:
    """Return the shape of a sequence cut into runs of at most `size` queries with `keys` keys each."""
    return Shape(-(-length // size), min(size, length), keys)


def band_tiles(positions: range, behind: int, ahead: int) -> Iterator[Tile]:
    """Yield runs of queries with their keys. Runs of a quarter of the band's width waste a fifth of each tile."""
    for run in runs(positions, _band_run(behind, ahead)):
        yield Tile(run, (range(max(positions.start, run.start - behind), min(positions.stop, run.stop + ahead)),))


def band_shape(length: int, behind: int, ahead: int) -> Shape:
    """Return the shape of `band_tiles`. The run with the most keys is at an end or near the first or last uncut run."""
    size = _band_run(behind, ahead)
    last = -(-length // size) - 1
    uncut_behind, uncut_ahead = -(-behind // size), (length - ahead) // size - 1  # first and last uncut run
    candidates = {0, last, *(run + step for run in (uncut_behind, uncut_ahead) for step in (-1, 0, 1))}
    keys = (
        min(length, (run + 1) * size + ahead) - max(0, run * size - behind) for run in candidates if 0 <= run <= last
    )
    return runs_shape(length, size, max(keys, default=0))


def _band_run(behind: int, ahead: int) -> int:
    return min(128, max(16, (behind + ahead + 1) // 4))


def num_band_pairs(length: int, reach: int) -> int:
    """Return the number of pairs of positions whose distance is 1 to `reach`, in one direction."""
    reach = min(reach, length - 1)
    return reach * length - reach * (reach + 1) // 2
