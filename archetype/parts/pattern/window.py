"""Full attention, windows, and windows with global tokens."""

from typing import Any

from archetype.parts.pattern import spec
from archetype.parts.pattern.bands import band_shape, band_tiles, num_band_pairs, runs, runs_shape
from archetype.roles.pattern import MaskContext, PatternRule, Piece, Positions, Shape, Tile, every_pair, rule_for


@rule_for(spec.Full)
class FullRule(PatternRule[spec.Full]):
    """The rule of full attention: all pairs."""

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        """Every pair."""
        return (i == i) & (j == j)

    def pairs(self, context: MaskContext) -> int:
        """The square, or its causal half with the diagonal."""
        n = context.length
        return n * (n + 1) // 2 if context.causal else n * n


@rule_for(spec.Window)
class WindowRule(PatternRule[spec.Window]):
    """The newest `size` positions; where both directions are seen, size / 2 on each side."""

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        """No further than the window."""
        behind, ahead = self.reach(context.causal)
        return (i - j <= behind) & (j - i <= ahead)

    def reach(self, causal: bool) -> tuple[int, int]:
        """How many positions behind and ahead of itself a query sees."""
        return (self.spec.size - 1, 0) if causal else (self.spec.size // 2, self.spec.size // 2)

    def pieces(self, context: MaskContext) -> tuple[Piece, ...]:
        """Runs of queries, each with the keys from the first one's oldest to the last one's newest."""
        return (Piece(tuple(band_tiles(range(context.length), *self.reach(context.causal))), every_pair),)

    def shapes(self, context: MaskContext) -> tuple[Shape, ...]:
        """The shape of the band."""
        return (band_shape(context.length, *self.reach(context.causal)),)

    def pairs(self, context: MaskContext) -> int:
        """Each query's keys, summed."""
        behind, ahead = self.reach(context.causal)
        n = context.length
        return n + num_band_pairs(n, behind) + num_band_pairs(n, ahead)

    def cache_length(self, length: int) -> int:
        """No more positions than the window has."""
        return min(length, self.spec.size)


@rule_for(spec.GlobalWindow)
class GlobalWindowRule(PatternRule[spec.GlobalWindow]):
    """A window, and tokens at the start that see all and are seen by all."""

    def __init__(self, pattern: spec.GlobalWindow) -> None:
        super().__init__(pattern)
        self.window = WindowRule(spec.Window(size=pattern.size))

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        """Within the window, or one of the two is global."""
        g = self.spec.num_global_tokens
        return self.window.rule(i, j, context) | (i < g) | (j < g)

    def pieces(self, context: MaskContext) -> tuple[Piece, ...]:
        """The band; everyone else with the global keys; the global queries with all keys."""
        n, g = context.length, min(self.spec.num_global_tokens, context.length)
        reach = self.window.reach(context.causal)
        rest = range(g, n)
        return (
            Piece(tuple(band_tiles(rest, *reach)), lambda i, j: (i >= g) & (j >= g)),
            Piece(tuple(Tile(run, (range(g),)) for run in runs(rest, 256)), lambda i, j: (i >= g) & (j < g)),
            Piece((Tile(range(g), (range(g if context.causal else n),)),), lambda i, j: i < g),
        )

    def shapes(self, context: MaskContext) -> tuple[Shape, ...]:
        """The shapes of the band, of everyone else with the global keys, and of the global queries."""
        n, g = context.length, min(self.spec.num_global_tokens, context.length)
        band = band_shape(n - g, *self.window.reach(context.causal))
        return (band, runs_shape(n - g, 256, g if n > g else 0), Shape(1, g, g if context.causal else n))

    def pairs(self, context: MaskContext) -> int:
        """The band of the others, their pairs with the global ones, and the global queries'."""
        g = min(self.spec.num_global_tokens, context.length)
        rest = context.length - g
        band = self.window.pairs(context._replace(length=rest)) if rest else 0
        return band + rest * g + (g * (g + 1) // 2 if context.causal else g * context.length)
