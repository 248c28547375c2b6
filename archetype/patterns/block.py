"""Patterns of strides and blocks: Sparse Transformers and BigBird."""

import random
from functools import lru_cache
from typing import Any

from archetype import spec
from archetype.patterns.rule import (
    MaskContext,
    PatternRule,
    Piece,
    Positions,
    Tile,
    band_tiles,
    every_pair,
    num_band_pairs,
    rule_for,
    runs,
)


@rule_for(spec.Strided)
class StridedRule(PatternRule[spec.Strided]):
    """Near positions, and every `stride`-th one."""

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        """Near, or a whole number of strides away."""
        return (abs(i - j) < self.spec.stride) | ((i - j) % self.spec.stride == 0)

    def pieces(self, context: MaskContext) -> tuple[Piece, ...]:
        """The near ones as a band; those strides away by remainder: equal remainders see each other."""
        text, near = range(context.length), self.spec.stride - 1
        columns = tuple(
            Tile(column, (column,))
            for remainder in range(min(self.spec.stride, context.length))
            for column in [range(remainder, context.length, self.spec.stride)]
        )
        return (
            Piece(tuple(band_tiles(text, near, 0 if context.causal else near)), lambda i, j: abs(i - j) <= near),
            Piece(columns, lambda i, j: abs(i - j) > near),
        )

    def pairs(self, context: MaskContext) -> int:
        """Distances below the stride, and its multiples."""
        n = context.length
        one_way = num_band_pairs(n, self.spec.stride - 1) + sum(range(n - self.spec.stride, 0, -self.spec.stride))
        return n + (one_way if context.causal else 2 * one_way)


@rule_for(spec.Fixed)
class FixedRule(PatternRule[spec.Fixed]):
    """The own block, and the last positions of all blocks."""

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        """In the same block, or in a block's summary."""
        return (i // self.spec.stride == j // self.spec.stride) | (
            j % self.spec.stride >= self.spec.stride - self.spec.num_summary
        )

    def pieces(self, context: MaskContext) -> tuple[Piece, ...]:
        """Each block with itself; and everyone with the summaries of the blocks before (or of all others)."""
        n, s = context.length, self.spec.stride
        blocks = tuple(Tile(block, (block,)) for block in runs(range(n), s))
        across = []
        for run in runs(range(n), max(s, 64)):
            stop = run.stop if context.causal else n
            across.append(Tile(run, tuple(range(place, stop, s) for place in range(s - self.spec.num_summary, s))))
        return (
            Piece(blocks, lambda i, j: i // s == j // s),
            Piece(tuple(across), lambda i, j: i // s != j // s),
        )

    def pairs(self, context: MaskContext) -> int:
        """Within the blocks, and from everyone later (or from all others) to each summary."""
        n, total = context.length, 0
        for block in runs(range(n), self.spec.stride):
            own, later = len(block), n - block.stop
            summary = max(0, own - (self.spec.stride - self.spec.num_summary))
            total += own * (own + 1) // 2 + summary * later if context.causal else own * own + summary * (n - own)
        return total


@rule_for(spec.BigBird)
class BigBirdRule(PatternRule[spec.BigBird]):
    """Neighbouring, global and random blocks."""

    depends_on_layer = True  # the random blocks are drawn for each
    depends_on_length = True  # and for each number of blocks, the last of which all see

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        """Whether the query's row of blocks has the key's block."""
        rows = self.rows(context)
        row, column = i // self.spec.block, j // self.spec.block
        if isinstance(row, int):
            return column in rows[row]
        table = [[column in row for column in range(len(rows))] for row in map(set, rows)]
        return row.new_tensor(table, dtype=(row == row).dtype)[row, column]

    def rows(self, context: MaskContext) -> tuple[tuple[int, ...], ...]:
        """Of each block of queries, the blocks of keys."""
        return _big_bird_rows(self.spec, -(-context.length // self.spec.block), context.layer)

    def pieces(self, context: MaskContext) -> tuple[Piece, ...]:
        """Each block of queries with its blocks of keys; the global queries with all."""
        blocks = list(runs(range(context.length), self.spec.block))
        everywhere = tuple(range(len(blocks)))
        tiles = [Tile(blocks[row], tuple(blocks[c] for c in seen)) for row, seen in enumerate(self.rows(context))]
        some = tuple(tile for tile, seen in zip(tiles, self.rows(context), strict=True) if seen != everywhere)
        whole = tuple(tile for tile, seen in zip(tiles, self.rows(context), strict=True) if seen == everywhere)
        return (Piece(some, every_pair), Piece(whole, every_pair))

    def pairs(self, context: MaskContext) -> int:
        """Block by block; a pattern of both directions only."""
        sizes = [len(block) for block in runs(range(context.length), self.spec.block)]
        return sum(sizes[row] * sum(sizes[c] for c in seen) for row, seen in enumerate(self.rows(context)))


@lru_cache(maxsize=64)
def _big_bird_rows(pattern: spec.BigBird, count: int, layer: int) -> tuple[tuple[int, ...], ...]:
    if count <= pattern.dense_up_to_blocks:
        return (tuple(range(count)),) * count
    first = -(-pattern.global_blocks // 2)
    everyone = {c for c in range(count) if c < first or c >= count - (pattern.global_blocks - first)}
    rows = []
    for row in range(count):
        if row in everyone:
            rows.append(tuple(range(count)))
            continue
        side = pattern.window_blocks // 2
        seen = everyone | {c for c in range(row - side, row + side + 1) if 0 <= c < count}
        others = [c for c in range(count) if c not in seen]
        draw = random.Random(f"{pattern.seed}:{layer}:{count}:{row}")
        rows.append(tuple(sorted(seen | set(draw.sample(others, min(pattern.random_blocks, len(others)))))))
    return tuple(rows)
