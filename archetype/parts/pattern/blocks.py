"""Patterns of strides and blocks: chunks, Sparse Transformers and BigBird."""

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from archetype.parts.pattern import spec
from archetype.parts.pattern.bands import band_shape, band_tiles, num_band_pairs, runs, runs_shape
from archetype.roles.pattern import MaskContext, PatternRule, Piece, Positions, Shape, Tile, every_pair, rule_for


@rule_for(spec.Chunked)
class ChunkedRule(PatternRule[spec.Chunked]):
    """Rule of chunked attention: only the query's own chunk."""

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        return i // self.spec.size == j // self.spec.size

    def pieces(self, context: MaskContext) -> tuple[Piece, ...]:
        chunks = runs(range(context.length), self.spec.size)
        return (Piece(tuple(Tile(chunk, (chunk,)) for chunk in chunks), every_pair),)

    def shapes(self, context: MaskContext) -> tuple[Shape, ...]:
        return (runs_shape(context.length, self.spec.size, min(self.spec.size, context.length)),)

    def pairs(self, context: MaskContext) -> int:
        # the last chunk may be shorter
        whole, rest = divmod(context.length, self.spec.size)
        count = whole * self.spec.size**2 + rest**2
        # causal: the pairs with j <= i, (m^2 + m) / 2 for a chunk of m
        return (count + context.length) // 2 if context.causal else count

    def cache_length(self, length: int) -> int:
        return min(length, self.spec.size)


@rule_for(spec.BlockCausal)
class BlockCausalRule(PatternRule[spec.BlockCausal]):
    """Rule of block-causal attention: the query's own block and all earlier ones."""

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        return j // self.spec.size <= i // self.spec.size

    def pairs(self, context: MaskContext) -> int:
        n, (whole, rest) = context.length, divmod(context.length, self.spec.size)
        if context.causal:
            return n * (n + 1) // 2
        # the b-th block's queries see b blocks, those of a shorter last block see all positions
        return self.spec.size**2 * whole * (whole + 1) // 2 + rest * n


@rule_for(spec.Strided)
class StridedRule(PatternRule[spec.Strided]):
    """Rule of strided attention: recent positions, and every `stride`-th position."""

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        # less than a stride, or a multiple of it, apart
        return (abs(i - j) < self.spec.stride) | ((i - j) % self.spec.stride == 0)

    def pieces(self, context: MaskContext) -> tuple[Piece, ...]:
        # near pairs as a band, then one column of positions per remainder modulo the stride
        text, near = range(context.length), self.spec.stride - 1
        columns = tuple(
            Tile(column, (column,))
            for remainder in range(min(self.spec.stride, context.length))
            for column in [range(remainder, context.length, self.spec.stride)]
        )
        return (
            Piece(tuple(band_tiles(text, near, 0 if context.causal else near)), lambda i, j: abs(i - j) <= near),
            # a column also has pairs of the band (i = j), which must not be counted twice
            Piece(columns, lambda i, j: abs(i - j) > near),
        )

    def shapes(self, context: MaskContext) -> tuple[Shape, ...]:
        n, near = context.length, self.spec.stride - 1
        column = -(-n // self.spec.stride)
        return band_shape(n, near, 0 if context.causal else near), Shape(min(self.spec.stride, n), column, column)

    def pairs(self, context: MaskContext) -> int:
        # distances below the stride, then its multiples
        n, s = context.length, self.spec.stride
        multiples = (n - 1) // s  # number of multiples of the stride below n; they have n - s, n - 2 s, ... pairs
        one_way = num_band_pairs(n, s - 1) + multiples * n - s * multiples * (multiples + 1) // 2
        return n + (one_way if context.causal else 2 * one_way)


@rule_for(spec.Fixed)
class FixedRule(PatternRule[spec.Fixed]):
    """Rule of fixed attention: the query's own block, and the last positions of all blocks (summary tokens)."""

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        # the same block, or a key that is a summary token
        return (i // self.spec.stride == j // self.spec.stride) | (
            j % self.spec.stride >= self.spec.stride - self.spec.num_summary
        )

    def pieces(self, context: MaskContext) -> tuple[Piece, ...]:
        # each block with itself, then all queries with the summary tokens of other blocks
        n, s = context.length, self.spec.stride
        blocks = tuple(Tile(block, (block,)) for block in runs(range(n), s))
        across = []
        for run in runs(range(n), max(s, 64)):
            stop = run.stop if context.causal else n
            across.append(Tile(run, tuple(range(offset, stop, s) for offset in range(s - self.spec.num_summary, s))))
        return (
            Piece(blocks, lambda i, j: i // s == j // s),
            Piece(tuple(across), lambda i, j: i // s != j // s),
        )

    def shapes(self, context: MaskContext) -> tuple[Shape, ...]:
        # local blocks, then all queries against the summary tokens
        n, s = context.length, self.spec.stride
        summaries = n // s * self.spec.num_summary + self._last_block(n)[1]
        return runs_shape(n, s, min(s, n)), runs_shape(n, max(s, 64), summaries)

    def pairs(self, context: MaskContext) -> int:
        # within blocks, then later positions (or all others) with each summary token
        n, s, c = context.length, self.spec.stride, self.spec.num_summary
        whole, (rest, summary) = n // s, self._last_block(n)
        if context.causal:  # n - (k + 1) s positions come after whole block k
            return (whole * s * (s + 1) + rest * (rest + 1)) // 2 + c * (whole * n - s * whole * (whole + 1) // 2)
        return whole * (s * s + c * (n - s)) + rest * rest + summary * (n - rest)

    def _last_block(self, length: int) -> tuple[int, int]:
        # size of the incomplete last block, and its number of summary tokens
        rest = length % self.spec.stride
        return rest, max(0, rest - (self.spec.stride - self.spec.num_summary))


@rule_for(spec.BigBird)
class BigBirdRule(PatternRule[spec.BigBird]):
    """Rule of BigBird: neighbouring, global and random blocks."""

    depends_on_layer = True  # random blocks are drawn for each layer
    depends_on_length = True  # and for each number of blocks; the last ones are global

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        # whether the table lists the key's block for the query's block
        row, column = i // self.spec.block, j // self.spec.block
        if isinstance(row, int):
            return column in _big_bird_row(self.spec, self._count(context), context.layer, row)
        # torch.bool, without importing torch here
        is_bool = (row == row).dtype
        if (longest := context.longest) is None:
            table = _big_bird_table(self.spec, self._count(context), context.layer)
            return row.new_tensor(table, dtype=is_bool)[row, column]
        most = -(-longest // self.spec.block)
        # an exported program has one table for each number of blocks, and picks one at run time: (most, most, most)
        tables = [_big_bird_table(self.spec, count, context.layer, most) for count in range(1, most + 1)]
        return row.new_tensor(tables, dtype=is_bool)[self._count(context) - 1][row, column]

    def rows(self, context: MaskContext) -> tuple[tuple[int, ...], ...]:
        return _big_bird_rows(self.spec, self._count(context), context.layer)

    def _count(self, context: MaskContext) -> int:
        # rounds up without negative numbers, which ONNX rounds towards zero
        return (context.length + self.spec.block - 1) // self.spec.block

    def pieces(self, context: MaskContext) -> tuple[Piece, ...]:
        # each query block with its key blocks, then the global query blocks with all keys
        blocks = list(runs(range(context.length), self.spec.block))
        everywhere = tuple(range(len(blocks)))
        rows = self.rows(context)
        tiles = [Tile(blocks[row], tuple(blocks[c] for c in seen)) for row, seen in enumerate(rows)]
        sparse = tuple(tile for tile, seen in zip(tiles, rows, strict=True) if seen != everywhere)
        full = tuple(tile for tile, seen in zip(tiles, rows, strict=True) if seen == everywhere)
        return (Piece(sparse, every_pair), Piece(full, every_pair))

    def shapes(self, context: MaskContext) -> tuple[Shape, ...]:
        # many blocks are not drawn: some row sees the largest possible number of whole blocks
        spec, n = self.spec, context.length
        count, most = -(-n // spec.block), spec.global_blocks + spec.window_blocks + spec.random_blocks
        if count <= spec.dense_up_to_blocks:
            return Shape(0, 0, 0), runs_shape(n, spec.block, n)
        if count <= 4 * most + 64:
            return super().shapes(context)
        keys = most * spec.block - (spec.global_blocks > 1) * (count * spec.block - n)  # it may be incomplete
        return Shape(count - spec.global_blocks, spec.block, keys), Shape(spec.global_blocks, spec.block, n)

    def pairs(self, context: MaskContext) -> int:
        # Bidirectional only. Rows between both ends differ only in their random blocks. These are drawn only where one
        # may be an incomplete last block; beyond 4096 rows their expected number is used.
        spec, n = self.spec, context.length
        count, most = -(-n // spec.block), spec.global_blocks + spec.window_blocks + spec.random_blocks
        missing = count * spec.block - n  # positions missing from the last block
        last_is_global = spec.global_blocks > 1
        draws_matter = 0 if last_is_global else missing
        if count <= spec.dense_up_to_blocks:
            return n * n
        if count <= 4 * most + 64 or (draws_matter and count <= 4096):
            sizes = [len(block) for block in runs(range(n), spec.block)]
            return sum(sizes[row] * sum(sizes[c] for c in seen) for row, seen in enumerate(self.rows(context)))
        first = -(-spec.global_blocks // 2)
        last, side, ends = count - (spec.global_blocks - first), spec.window_blocks // 2, most - spec.random_blocks
        total = (spec.global_blocks * spec.block - missing * last_is_global) * n
        # rows between both ends: as many blocks as possible, minus what is missing from a global last block
        total += (count - 2 * ends) * spec.block * (most * spec.block - missing * last_is_global)
        for row in (*range(first, ends), *range(count - ends, last)):
            # near the ends the window is cut off, or overlaps the global blocks
            window = range(max(0, row - side), min(count, row + side + 1))
            blocks = most - spec.window_blocks + len(window) - max(0, first - window.start) - max(0, window.stop - last)
            keys = blocks * spec.block - missing * (last_is_global or window.stop == count)
            total += (spec.block - missing * (row == count - 1)) * keys
        # minus the expected number of positions missing from random draws of the last block
        return total - draws_matter * (count - 2 * ends) * spec.block * spec.random_blocks // (count - ends)


@lru_cache(maxsize=64)
def _big_bird_rows(pattern: spec.BigBird, count: int, layer: int) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(_big_bird_row(pattern, count, layer, row)) for row in range(count))


def _big_bird_table(pattern: spec.BigBird, count: int, layer: int, size: int | None = None) -> list[list[bool]]:
    # padded from `count` to `size` blocks
    blocks_of_rows = [set(row) for row in _big_bird_rows(pattern, count, layer)]
    blocks_of_rows += [set()] * ((size or count) - count)
    return [[column in row for column in range(len(blocks_of_rows))] for row in blocks_of_rows]


@lru_cache(maxsize=4096)
def _big_bird_row(pattern: spec.BigBird, count: int, layer: int, row: int) -> Sequence[int]:
    # a single row, since a sequence may have millions of blocks
    first = -(-pattern.global_blocks // 2)
    last = count - (pattern.global_blocks - first)
    if count <= pattern.dense_up_to_blocks or row < first or row >= last:
        return range(count)
    side = pattern.window_blocks // 2
    seen = {
        *range(min(first, count)),
        *range(max(last, 0), count),
        *range(max(0, row - side), min(count, row + side + 1)),
    }
    others = _Others(count, seen)
    # a generator per row, so that a row can be drawn without the others
    draw = random.Random(f"{pattern.seed}:{layer}:{count}:{row}")
    return tuple(sorted(seen | set(draw.sample(others, min(pattern.random_blocks, len(others))))))


class _Others(Sequence[int]):
    """Integers below a count except some, as a sequence for `random.sample` that stores no list of them all."""

    def __init__(self, count: int, without: set[int]) -> None:
        self._without, self._length = sorted(without), count - len(without)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if index >= self._length:
            raise IndexError(index)
        for excluded in self._without:
            if excluded > index:
                break
            index += 1
        return index
