"""The role of patterns: which keys each query may see, defined by a rule.

The rule of a pattern determines its mask, its computation, its cache length and its cost.

A rule `allows(i, j)` tells whether the query at position i may see the key at position j. It uses only operators that
work on integers and, elementwise, on tensors.

Pairs are computed in *pieces*. A piece is a list of tiles, each with some queries and all keys that at least one sees.
Every allowed pair belongs to one tile of one piece: `Piece.owns` tells which pairs of its tiles belong to it. A piece
may be empty.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar, cast

from archetype.errors import SpecError
from archetype.spec.kinds import ByKind, Part
from archetype.spec.registry import provided, provides

__all__ = ["MaskContext", "Pattern", "PatternRule", "Piece", "Shape", "Tile", "pattern_rule", "rule_for"]


class Pattern(Part):
    """Base class of patterns."""

    needs: ClassVar[str] = "rule"

    @property
    def block_length(self) -> int | None:
        """Positions of a block whose queries see each other and all earlier blocks; None without such blocks."""
        return None

    @property
    def reach(self) -> int | None:
        """Newest positions that a query of a decoder sees, with its own (0: all); None if it sees others of them."""
        return None


AnyPattern = Annotated[Pattern, ByKind(Pattern)]
Positions = Any  # integers, or tensors of them
P = TypeVar("P", bound=Pattern)


class Shape(NamedTuple):
    """Number of tiles computed together, and the largest number of queries and of keys in a tile."""

    tiles: int
    queries: int
    keys: int


class MaskContext(NamedTuple):
    """The sequence and layer for which a rule is evaluated."""

    causal: bool  # no query sees a later key
    length: int  # tokens of the sequence
    layer: int = 0  # index of the layer in its stack

    @property
    def longest(self) -> int | None:
        """Upper bound of a symbolic length (torch.export); None if the length is a number."""
        length: Any = self.length
        return None if isinstance(length, int) else int(length.node.shape_env.bound_sympy(length.node.expr).upper)


class Tile(NamedTuple):
    """Ranges of queries and of all keys that at least one of these queries can attend to."""

    queries: range
    keys: tuple[range, ...]


class Piece(NamedTuple):
    """Tiles that are computed together, and the rule for which of their pairs belong to this piece."""

    tiles: tuple[Tile, ...]
    owns: Callable[[Positions, Positions], Any]

    @property
    def shape(self) -> Shape:
        queries = max((len(tile.queries) for tile in self.tiles), default=0)
        keys = max((sum(map(len, tile.keys)) for tile in self.tiles), default=0)
        return Shape(len(self.tiles), queries, keys)


class PatternRule(Generic[P]):
    """The rule of a pattern. A new kind only needs `rule`: all pairs are then computed and masked."""

    depends_on_layer: ClassVar[bool] = False
    depends_on_length: ClassVar[bool] = False  # whether the sequence length affects pairs far from its end

    def __init__(self, pattern: P) -> None:
        self.spec = pattern

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        """Return whether the pattern allows the pair, ignoring the causal mask."""
        raise NotImplementedError

    def allows(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        allowed = self.rule(i, j, context)
        return allowed & (j <= i) if context.causal else allowed

    def pieces(self, context: MaskContext) -> tuple[Piece, ...]:
        # a whole sequence is computed in these pieces
        everything = range(context.length)
        return (Piece((Tile(everything, (everything,)),), every_pair),)

    def pairs(self, context: MaskContext) -> int:
        # number of allowed pairs in a whole sequence
        n = context.length
        return sum(bool(self.allows(i, j, context)) for i in range(n) for j in range(i + 1 if context.causal else n))

    def shapes(self, context: MaskContext) -> tuple[Shape, ...]:
        # Overridden by patterns that can count without listing tiles; empty pieces may be left out.
        return tuple(piece.shape for piece in self.pieces(context))

    def num_computed_pairs(self, context: MaskContext) -> int:
        # every tile is padded to the largest of its piece
        return sum(tiles * queries * keys for tiles, queries, keys in self.shapes(context))

    def cache_length(self, length: int) -> int:
        """Return how many of `length` tokens must stay cached because later tokens can attend to them."""
        return length


def rule_for(pattern: type[Pattern]) -> Callable[[type[PatternRule[P]]], type[PatternRule[P]]]:
    return provides("rule", pattern)


@lru_cache(maxsize=1024)
def pattern_rule(pattern: Pattern) -> PatternRule[Any]:
    """Return the rule of a pattern.

    Raises:
        SpecError: no rule is registered for its kind.
    """
    rule = provided("rule", type(pattern))
    if rule is None:
        cause = f"{type(pattern).__name__} has no rule for which positions see each other"
        raise SpecError("pattern", cause, "register a rule: archetype.register(..., rule=...)")
    return cast(PatternRule[Any], rule(pattern))


def every_pair(i: Positions, j: Positions) -> Any:
    return i == i
