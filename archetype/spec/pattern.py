"""Which pairs of positions an attention allows.

Each pattern is one rule, `allows(i, j)`: may the query at position i see the key at position j? The mask, the blocks
that are computed, the state's size and the cost all follow from it. The rule is written with operators alone, so that
it holds for whole numbers and, elementwise, for tensors.

The pairs are computed by *pieces*. A piece is a list of tiles, each a few queries with all keys that one of them may
see. Every allowed pair belongs to one tile of one piece: `Piece.owns` says which pairs of its tiles are its own. A
piece may be empty.
"""

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from archetype.spec.base import MAX_SIZE, Flag, Size, Spec, invalid

Positions = Any  # whole numbers: one, or an array of them


class MaskContext(NamedTuple):
    """What a rule depends on beside the pair."""

    causal: bool  # no query sees a later key
    length: int  # of the text, in tokens
    layer: int = 0  # which layer of the stack asks


class Tile(NamedTuple):
    """Some queries and every key that one of them may see, as ranges of positions."""

    queries: range
    keys: tuple[range, ...]


class Piece(NamedTuple):
    """Tiles that are computed together, and which of their pairs belong to them."""

    tiles: tuple[Tile, ...]
    owns: Callable[[Positions, Positions], Any]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Tiles, and the most queries and keys that one of them has."""
        queries = max((len(tile.queries) for tile in self.tiles), default=0)
        keys = max((sum(map(len, tile.keys)) for tile in self.tiles), default=0)
        return len(self.tiles), queries, keys


class _Pattern(Spec):
    """What all patterns answer."""

    @abstractmethod
    def rule(self, i: Positions, j: Positions, setting: MaskContext) -> Any:
        """Whether the pattern itself has the pair, causal or not."""

    def allows(self, i: Positions, j: Positions, setting: MaskContext) -> Any:
        """Whether the query at i may see the key at j."""
        allowed = self.rule(i, j, setting)
        return allowed & (j <= i) if setting.causal else allowed

    @abstractmethod
    def pieces(self, setting: MaskContext) -> tuple[Piece, ...]:
        """How a whole text is computed."""

    @abstractmethod
    def pairs(self, setting: MaskContext) -> int:
        """How many pairs of a whole text are allowed."""

    def num_computed_pairs(self, setting: MaskContext) -> int:
        """How many pairs are computed: all of every tile, each as large as its piece's largest."""
        total = 0
        for piece in self.pieces(setting):
            tiles, queries, keys = piece.shape
            total += tiles * queries * keys
        return total

    def cache_length(self, length: int) -> int:
        """How many positions of a text of `length` tokens the state must hold for the tokens to come."""
        return length


class Full(_Pattern):
    """All pairs."""

    kind: Literal["full"] = "full"

    def rule(self, i: Positions, j: Positions, setting: MaskContext) -> Any:
        """Every pair."""
        return (i == i) & (j == j)

    def pieces(self, setting: MaskContext) -> tuple[Piece, ...]:
        """One tile."""
        everything = range(setting.length)
        return (Piece((Tile(everything, (everything,)),), _all),)

    def pairs(self, setting: MaskContext) -> int:
        """The square, or its causal half with the diagonal."""
        n = setting.length
        return n * (n + 1) // 2 if setting.causal else n * n


class Window(_Pattern):
    """The newest `size` positions, itself included: i - size < j <= i (Child 2019; Mistral).

    Where both directions are seen: size / 2 positions on each side, |i - j| <= size / 2 (Beltagy 2020).
    """

    kind: Literal["window"] = "window"
    size: Size

    def rule(self, i: Positions, j: Positions, setting: MaskContext) -> Any:
        """No further than the window."""
        behind, ahead = self.reach(setting.causal)
        return (i - j <= behind) & (j - i <= ahead)

    def reach(self, causal: bool) -> tuple[int, int]:
        """How many positions behind and ahead of itself a query sees."""
        return (self.size - 1, 0) if causal else (self.size // 2, self.size // 2)

    def pieces(self, setting: MaskContext) -> tuple[Piece, ...]:
        """Runs of queries, each with the keys from the first one's oldest to the last one's newest."""
        return (Piece(tuple(_banded(range(setting.length), *self.reach(setting.causal))), _all),)

    def pairs(self, setting: MaskContext) -> int:
        """Each query's keys, summed."""
        behind, ahead = self.reach(setting.causal)
        n = setting.length
        return n + _band(n, behind) + _band(n, ahead)

    def cache_length(self, length: int) -> int:
        """The window."""
        return min(length, self.size)


class Strided(_Pattern):
    """The newest `stride` positions, and every `stride`-th before them (Child 2019, section 4.2)."""

    kind: Literal["strided"] = "strided"
    stride: Size

    def rule(self, i: Positions, j: Positions, setting: MaskContext) -> Any:
        """Near, or a whole number of strides away."""
        return (abs(i - j) < self.stride) | ((i - j) % self.stride == 0)

    def pieces(self, setting: MaskContext) -> tuple[Piece, ...]:
        """The near ones as a band; those strides away by remainder: equal remainders see each other."""
        text, near = range(setting.length), self.stride - 1
        columns = tuple(
            Tile(column, (column,))
            for remainder in range(min(self.stride, setting.length))
            for column in [range(remainder, setting.length, self.stride)]
        )
        return (
            Piece(tuple(_banded(text, near, 0 if setting.causal else near)), lambda i, j: abs(i - j) <= near),
            Piece(columns, lambda i, j: abs(i - j) > near),
        )

    def pairs(self, setting: MaskContext) -> int:
        """Distances below the stride, and its multiples."""
        n = setting.length
        one_way = _band(n, self.stride - 1) + sum(range(n - self.stride, 0, -self.stride))
        return n + (one_way if setting.causal else 2 * one_way)


class Fixed(_Pattern):
    """The positions of its own block of `stride`, and the last `num_summary` of all (Child 2019, section 4.2)."""

    renamed: ClassVar[dict[str, str]] = {"summary": "num_summary"}
    kind: Literal["fixed"] = "fixed"
    stride: Size
    num_summary: Size

    @model_validator(mode="after")
    def _summary_is_part(self) -> "Fixed":
        if self.num_summary > self.stride:
            invalid(
                "num_summary", f"{self.num_summary} is more than stride {self.stride}", f"use at most {self.stride}"
            )
        return self

    def rule(self, i: Positions, j: Positions, setting: MaskContext) -> Any:
        """In the same block, or in a block's summary."""
        return (i // self.stride == j // self.stride) | (j % self.stride >= self.stride - self.num_summary)

    def pieces(self, setting: MaskContext) -> tuple[Piece, ...]:
        """Each block with itself; and everyone with the summaries of the blocks before (or of all others)."""
        n, s = setting.length, self.stride
        blocks = tuple(Tile(block, (block,)) for block in _runs(range(n), s))
        across = []
        for run in _runs(range(n), max(s, 64)):
            stop = run.stop if setting.causal else n
            across.append(Tile(run, tuple(range(place, stop, s) for place in range(s - self.num_summary, s))))
        return (
            Piece(blocks, lambda i, j: i // s == j // s),
            Piece(tuple(across), lambda i, j: i // s != j // s),
        )

    def pairs(self, setting: MaskContext) -> int:
        """Within the blocks, and from everyone later (or from all others) to each summary."""
        n, total = setting.length, 0
        for block in _runs(range(n), self.stride):
            own, later = len(block), n - block.stop
            summary = max(0, own - (self.stride - self.num_summary))
            total += own * (own + 1) // 2 + summary * later if setting.causal else own * own + summary * (n - own)
        return total


class GlobalWindow(_Pattern):
    """A window, and `num_global_tokens` at the start that see all and are seen by all (Beltagy 2020).

    With `global_projections` the global tokens look through queries, keys and values of their own, as Longformer's
    published weights have them.
    """

    renamed: ClassVar[dict[str, str]] = {"global_tokens": "num_global_tokens"}
    kind: Literal["global_window"] = "global_window"
    size: Size
    num_global_tokens: Size = 1
    global_projections: Flag = False

    def rule(self, i: Positions, j: Positions, setting: MaskContext) -> Any:
        """Within the window, or one of the two is global."""
        g = self.num_global_tokens
        return Window(size=self.size).rule(i, j, setting) | (i < g) | (j < g)

    def pieces(self, setting: MaskContext) -> tuple[Piece, ...]:
        """The band; everyone else with the global keys; the global queries with all keys."""
        n, g = setting.length, min(self.num_global_tokens, setting.length)
        reach = Window(size=self.size).reach(setting.causal)
        rest = range(g, n)
        return (
            Piece(tuple(_banded(rest, *reach)), lambda i, j: (i >= g) & (j >= g)),
            Piece(tuple(Tile(run, (range(g),)) for run in _runs(rest, 256)), lambda i, j: (i >= g) & (j < g)),
            Piece((Tile(range(g), (range(g if setting.causal else n),)),), lambda i, j: i < g),
        )

    def pairs(self, setting: MaskContext) -> int:
        """The band of the others, their pairs with the global ones, and the global queries'."""
        g = min(self.num_global_tokens, setting.length)
        rest = setting.length - g
        band = Window(size=self.size).pairs(setting._replace(length=rest)) if rest else 0
        return band + rest * g + (g * (g + 1) // 2 if setting.causal else g * setting.length)


class BigBird(_Pattern):
    """By blocks of positions: neighbours, the first and last as global ones, and a few at random (Zaheer 2020).

    Of `global_blocks` the larger half stands at the start. The random blocks of each row are drawn from `seed`, the
    layer and the number of blocks, among those that the row would not see otherwise. A text of at most
    `dense_up_to_blocks` blocks is seen whole.
    """

    renamed: ClassVar[dict[str, str]] = {"full_up_to": "dense_up_to_blocks"}
    kind: Literal["bigbird"] = "bigbird"
    block: Size = 64
    window_blocks: Size = 3
    random_blocks: Size = 3
    global_blocks: Size = 2
    dense_up_to_blocks: Annotated[int, Field(strict=True, ge=0, le=MAX_SIZE)] = 0
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**63)] = 0

    @model_validator(mode="after")
    def _window_has_a_middle(self) -> "BigBird":
        if self.window_blocks % 2 == 0:
            invalid("window_blocks", f"{self.window_blocks} blocks have no middle", "use an odd number")
        return self

    def rule(self, i: Positions, j: Positions, setting: MaskContext) -> Any:
        """Whether the query's row of blocks has the key's block."""
        rows = self.rows(setting)
        row, column = i // self.block, j // self.block
        if isinstance(row, int):
            return column in rows[row]
        table = [[column in row for column in range(len(rows))] for row in map(set, rows)]
        return row.new_tensor(table, dtype=(row == row).dtype)[row, column]

    def rows(self, setting: MaskContext) -> tuple[tuple[int, ...], ...]:
        """Of each block of queries, the blocks of keys."""
        return _big_bird_rows(self, -(-setting.length // self.block), setting.layer)

    def pieces(self, setting: MaskContext) -> tuple[Piece, ...]:
        """Each block of queries with its blocks of keys; the global queries with all."""
        blocks = list(_runs(range(setting.length), self.block))
        everywhere = tuple(range(len(blocks)))
        tiles = [Tile(blocks[row], tuple(blocks[c] for c in seen)) for row, seen in enumerate(self.rows(setting))]
        some = tuple(tile for tile, seen in zip(tiles, self.rows(setting), strict=True) if seen != everywhere)
        whole = tuple(tile for tile, seen in zip(tiles, self.rows(setting), strict=True) if seen == everywhere)
        return (Piece(some, _all), Piece(whole, _all))

    def pairs(self, setting: MaskContext) -> int:
        """Block by block; a pattern of both directions only."""
        sizes = [len(block) for block in _runs(range(setting.length), self.block)]
        return sum(sizes[row] * sum(sizes[c] for c in seen) for row, seen in enumerate(self.rows(setting)))


@lru_cache(maxsize=64)
def _big_bird_rows(pattern: BigBird, count: int, layer: int) -> tuple[tuple[int, ...], ...]:
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


Pattern = Annotated[Full | Window | Strided | Fixed | GlobalWindow | BigBird, Field(discriminator="kind")]


def _all(i: Positions, j: Positions) -> Any:
    return i == i


def _runs(positions: range, size: int) -> Iterator[range]:
    """The positions in runs of at most `size`."""
    for start in range(positions.start, positions.stop, size):
        yield range(start, min(start + size, positions.stop))


def _banded(positions: range, behind: int, ahead: int) -> Iterator[Tile]:
    """Runs of queries with the keys around them. A quarter of the band's width wastes a fifth of each tile."""
    size = min(128, max(16, (behind + ahead + 1) // 4))
    for run in _runs(positions, size):
        yield Tile(run, (range(max(positions.start, run.start - behind), min(positions.stop, run.stop + ahead)),))


def _band(length: int, reach: int) -> int:
    """Pairs of positions that are 1 to `reach` apart, one direction."""
    reach = min(reach, length - 1)
    return reach * length - reach * (reach + 1) // 2
