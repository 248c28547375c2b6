"""Full attention, sliding windows, and windows with global tokens."""

from typing import Any

from archetype.parts.pattern import spec
from archetype.parts.pattern.bands import band_shape, band_tiles, num_band_pairs, runs, runs_shape
from archetype.roles.pattern import MaskContext, PatternRule, Piece, Positions, Shape, Tile, every_pair, rule_for


@rule_for(spec.Full)
class FullRule(PatternRule[spec.Full]):
    """Rule of full attention: all pairs."""

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        # true for every pair, as an int or a tensor of the shape that i and j broadcast to
        return (i == i) & (j == j)

    def pairs(self, context: MaskContext) -> int:
        n = context.length
        return n * (n + 1) // 2 if context.causal else n * n


@rule_for(spec.Window)
class WindowRule(PatternRule[spec.Window]):
    """Rule of a sliding window: the newest `size` positions, or size / 2 on each side if bidirectional."""

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        behind, ahead = self.reach(context.causal)
        return (i - j <= behind) & (j - i <= ahead)

    def reach(self, causal: bool) -> tuple[int, int]:
        """Return the number of positions that a query sees before and after its own."""
        return (self.spec.size - 1, 0) if causal else (self.spec.size // 2, self.spec.size // 2)

    def pieces(self, context: MaskContext) -> tuple[Piece, ...]:
        return (Piece(tuple(band_tiles(range(context.length), *self.reach(context.causal))), every_pair),)

    def shapes(self, context: MaskContext) -> tuple[Shape, ...]:
        return (band_shape(context.length, *self.reach(context.causal)),)

    def pairs(self, context: MaskContext) -> int:
        behind, ahead = self.reach(context.causal)
        n = context.length
        return n + num_band_pairs(n, behind) + num_band_pairs(n, ahead)

    def cache_length(self, length: int) -> int:
        return min(length, self.spec.size)


@rule_for(spec.GlobalWindow)
class GlobalWindowRule(PatternRule[spec.GlobalWindow]):
    """Rule of a window with tokens at the start that see all tokens and are seen by all."""

    def __init__(self, pattern: spec.GlobalWindow) -> None:
        super().__init__(pattern)
        self.window = WindowRule(spec.Window(size=pattern.size))

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        g = self.spec.num_global_tokens
        return self.window.rule(i, j, context) | (i < g) | (j < g)

    def pieces(self, context: MaskContext) -> tuple[Piece, ...]:
        # the band, then other queries with the global keys, then the global queries with all keys
        n, g = context.length, min(self.spec.num_global_tokens, context.length)
        reach = self.window.reach(context.causal)
        rest = range(g, n)
        return (
            Piece(tuple(band_tiles(rest, *reach)), lambda i, j: (i >= g) & (j >= g)),
            Piece(tuple(Tile(run, (range(g),)) for run in runs(rest, 256)), lambda i, j: (i >= g) & (j < g)),
            Piece((Tile(range(g), (range(g if context.causal else n),)),), lambda i, j: i < g),
        )

    def shapes(self, context: MaskContext) -> tuple[Shape, ...]:
        n, g = context.length, min(self.spec.num_global_tokens, context.length)
        band = band_shape(n - g, *self.window.reach(context.causal))
        return (band, runs_shape(n - g, 256, g if n > g else 0), Shape(1, g, g if context.causal else n))

    def pairs(self, context: MaskContext) -> int:
        g = min(self.spec.num_global_tokens, context.length)
        rest = context.length - g
        band = self.window.pairs(context._replace(length=rest)) if rest else 0
        return band + rest * g + (g * (g + 1) // 2 if context.causal else g * context.length)
