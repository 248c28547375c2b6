"""Costs of attention patterns: pairs of positions computed, allowed and cached."""

from archetype.cost.formula import Formula, Symbol, symbol
from archetype.cost.registry import Complexity, PartCost, cost_of
from archetype.cost.work import TrainingWork, Work
from archetype.parts.pattern import spec
from archetype.roles.pattern import MaskContext, Pattern, Shape, pattern_rule
from archetype.spec.base import Spec

COMPLEXITIES: dict[type[Spec], Complexity] = {
    spec.Full: Complexity("O(T^2 D)", "O(T D)", "O(T D)"),
    spec.Window: Complexity("O(T W D)", "O(W D)", "O(W D)"),
    spec.Chunked: Complexity("O(T W D)", "O(W D)", "O(W D)"),
    spec.BlockCausal: Complexity("O(T^2 D)", "O(T D)", "O(T D)"),
    spec.Strided: Complexity("O(T (s + T / s) D)", "O(T D)", "O(T D)"),
    spec.Fixed: Complexity("O(T (s + g T / s) D)", "O(T D)", "O(T D)"),
    spec.GlobalWindow: Complexity("O(T (W + g) D)", "O(T D)", "O(T D)"),
    spec.BigBird: Complexity("O(T W D)", "O(T D)", "O(T D)"),
    Pattern: Complexity("O(A D)", "O(T D)", "O(T D)"),
}


@cost_of(Pattern)
class PatternCost(PartCost[Pattern]):
    """Pairs of positions of a pattern, counted by its rule."""

    def __init__(self, part: Pattern, d: Formula) -> None:
        super().__init__(part, d)
        self.rule = pattern_rule(part)
        self.complexity = next(COMPLEXITIES[cls] for cls in type(part).__mro__ if cls in COMPLEXITIES)
        self.differs_by_layer = self.rule.depends_on_layer

    @property
    def symbols(self) -> dict[str, Symbol]:
        match self.part:
            case spec.Window(size=window) | spec.Chunked(size=window):
                sizes = {"W": window}
            case spec.Strided(stride=stride):
                sizes = {"s": stride}
            case spec.Fixed(stride=stride, num_summary=summary):
                sizes = {"s": stride, "g": summary}
            case spec.GlobalWindow(size=window, num_global_tokens=global_tokens):
                sizes = {"W": window, "g": global_tokens}
            case spec.BigBird() as blocks:
                sizes = {"W": blocks.block * (blocks.window_blocks + blocks.random_blocks + blocks.global_blocks)}
            case _:
                sizes = {}
        return {letter: one for letter, size in sizes.items() for one in symbol(letter, size, self.part).symbols}

    def pair_flops(self, work: Work) -> Formula:
        """Return the FLOPs of one feature of one head of one sequence: two for each pair."""
        T, length = work.length, work.length.value
        context = MaskContext(work.causal, length, work.layer)
        if work.phase == "decode":
            before = MaskContext(work.causal, length - 1, work.layer)
            # the pairs that the new token adds
            allowed = self.rule.pairs(context) - self.rule.pairs(before) if work.attention == "allowed" else 0
            keys = allowed or self.cache_length(length)
            return 2 * (T if keys == length else symbol("S", keys))
        if work.attention == "allowed":
            pairs = self.rule.pairs(context)
        else:  # computed as a full matrix if tiles do not save pairs
            pairs = min(self.rule.num_computed_pairs(context), length**2)
        if 2 * pairs == length * (length + 1):  # all causal pairs: written as a formula of T
            return T * T + T
        return 2 * (T * T if pairs == length**2 else symbol("A", pairs))

    @staticmethod
    def chosen_pair_flops(work: Work, most: int) -> Formula:
        """Return `pair_flops` for queries that see at most `most` keys, chosen by an index.

        A single query reads only its chosen keys. Whole sequences read all keys under a mask.
        """
        T, length = work.length, work.length.value
        if work.phase == "decode":
            return 2 * symbol("S", most)
        if work.attention == "computed":
            return 2 * T * T
        # the first `most` queries see all earlier keys, each later one sees `most`
        pairs = most * (most + 1) // 2 + (length - most) * most if work.causal else length * most
        return 2 * symbol("A", pairs)

    def cache_length(self, length: int) -> int:
        return self.rule.cache_length(length)

    def tile_shapes(self, work: TrainingWork) -> list[Shape]:
        """Return the shapes of the tiles that are computed together; empty if attention is not tiled."""
        context = MaskContext(work.causal, work.length, work.layer)
        if self.rule.num_computed_pairs(context) >= work.length**2:
            return []
        return [shape for shape in self.rule.shapes(context) if all(shape)]
