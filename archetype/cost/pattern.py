"""What attention patterns cost: the pairs of positions that are computed, allowed, and remembered."""

from archetype import spec
from archetype.cost.formula import Formula, symbol
from archetype.cost.registry import Complexity, PartCost, cost_of
from archetype.cost.work import TrainingWork, Work
from archetype.patterns import MaskContext, pattern_rule


class PatternCost(PartCost):
    """The pairs of positions of a pattern."""

    part: spec.Pattern
    complexity = Complexity("O(A D)", "O(T D)", "O(T D)")  # A: the pairs that it allows
    differs_by_layer = False

    def pair_flops(self, work: Work) -> Formula:
        """FLOPs of one feature of one head of one row: two for each pair that is counted."""
        T, length = work.length, work.length.value
        context = MaskContext(work.causal, length, work.layer)
        if work.phase == "decode":
            before = MaskContext(work.causal, length - 1, work.layer)
            rule = pattern_rule(self.part)
            allowed = rule.pairs(context) - rule.pairs(before) if work.attention == "allowed" else 0
            keys = allowed or self.cache_length(length)
            return 2 * (T if keys == length else symbol("S", keys))
        if work.attention == "allowed":
            pairs = pattern_rule(self.part).pairs(context)
        else:  # a pattern whose tiles hold no fewer pairs than there are is computed whole
            pairs = min(pattern_rule(self.part).num_computed_pairs(context), length**2)
        if 2 * pairs == length * (length + 1):
            return T * T + T
        return 2 * (T * T if pairs == length**2 else symbol("A", pairs))

    def cache_length(self, length: int) -> int:
        """Positions of a text of `length` tokens that the state holds."""
        return pattern_rule(self.part).cache_length(length)

    def tile_shapes(self, work: TrainingWork) -> list[tuple[int, int, int]]:
        """Number, queries and keys of the tiles that are computed together; of all pairs in one, none."""
        context = MaskContext(work.causal, work.length, work.layer)
        if pattern_rule(self.part).num_computed_pairs(context) >= work.length**2:
            return []
        return [piece.shape for piece in pattern_rule(self.part).pieces(context) if all(piece.shape)]


@cost_of(spec.Full)
class FullCost(PatternCost):
    """Every pair."""

    complexity = Complexity("O(T^2 D)", "O(T D)", "O(T D)")


@cost_of(spec.Window)
class WindowCost(PatternCost):
    """W keys near a query."""

    complexity = Complexity("O(T W D)", "O(W D)", "O(W D)")


@cost_of(spec.Strided)
class StridedCost(PatternCost):
    """s keys near a query, and every s-th."""

    complexity = Complexity("O(T (s + T / s) D)", "O(T D)", "O(T D)")


@cost_of(spec.Fixed)
class FixedCost(PatternCost):
    """A block of s keys, and c of every block of s."""

    complexity = Complexity("O(T (s + c T / s) D)", "O(T D)", "O(T D)")


@cost_of(spec.GlobalWindow)
class GlobalWindowCost(PatternCost):
    """W keys near a query, and g global ones."""

    complexity = Complexity("O(T (W + g) D)", "O(T D)", "O(T D)")


@cost_of(spec.BigBird)
class BigBirdCost(PatternCost):
    """W keys in the window's, the random and the global blocks; the random ones are drawn for each layer."""

    complexity = Complexity("O(T W D)", "O(T D)", "O(T D)")
    differs_by_layer = True
