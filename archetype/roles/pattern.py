"""The role of patterns: which pairs of positions an attention allows, by a rule.

From a pattern's rule follow its mask, its computation, its cache length and its cost.

A rule `allows(i, j)` says whether the query at position i may see the key at position j. It is written with operators
alone, so that it holds for whole numbers and, elementwise, for tensors.

The pairs are computed by *pieces*. A piece is a list of tiles, each a few queries with all keys that one of them may
see. Every allowed pair belongs to one tile of one piece: `Piece.owns` says which pairs of its tiles are its own. A
piece may be empty.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, TypeVar, cast

from archetype.errors import SpecError
from archetype.spec.kinds import ByKind, Part
from archetype.spec.registry import provided, provides

__all__ = ["MaskContext", "Pattern", "PatternRule", "Piece", "Shape", "Tile", "pattern_rule", "rule_for"]


class Pattern(Part):
    """Base of all patterns."""

    needs: ClassVar[str] = "rule"


AnyPattern = Annotated[Pattern, ByKind(Pattern)]
Positions = Any  # whole numbers: one, or an array of them
P = TypeVar("P", bound=Pattern)


class Shape(NamedTuple):
    """How many tiles a piece has, and the most queries and keys that one of them has."""

    tiles: int
    queries: int
    keys: int


class MaskContext(NamedTuple):
    """The text and the layer that a rule is asked for."""

    causal: bool  # no query sees a later key
    length: int  # of the text, in tokens
    layer: int = 0  # index of the layer in its stack

    @property
    def longest(self) -> int | None:
        """The most tokens, where the length is a symbol of torch.export's; None where it is a number."""
        length: Any = self.length
        return None if isinstance(length, int) else int(length.node.shape_env.bound_sympy(length.node.expr).upper)


class Tile(NamedTuple):
    """Some queries and every key that one of them may see, as ranges of positions."""

    queries: range
    keys: tuple[range, ...]


class Piece(NamedTuple):
    """Tiles that are computed together, and which of their pairs belong to them."""

    tiles: tuple[Tile, ...]
    owns: Callable[[Positions, Positions], Any]

    @property
    def shape(self) -> Shape:
        """Its tiles, and the largest of them."""
        queries = max((len(tile.queries) for tile in self.tiles), default=0)
        keys = max((sum(map(len, tile.keys)) for tile in self.tiles), default=0)
        return Shape(len(self.tiles), queries, keys)


class PatternRule(Generic[P]):
    """The rule of a pattern. A kind of its own needs `rule` only: all pairs are then computed and masked.

    Args:
        pattern: the specification that the rule belongs to.
    """

    depends_on_layer: ClassVar[bool] = False
    depends_on_length: ClassVar[bool] = False  # whether a text's end changes what stands far from it

    def __init__(self, pattern: P) -> None:
        self.spec = pattern

    def rule(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        """Whether the pattern itself has the pair, causal or not."""
        raise NotImplementedError

    def allows(self, i: Positions, j: Positions, context: MaskContext) -> Any:
        """Whether the query at i may see the key at j."""
        allowed = self.rule(i, j, context)
        return allowed & (j <= i) if context.causal else allowed

    def pieces(self, context: MaskContext) -> tuple[Piece, ...]:
        """How a whole text is computed."""
        everything = range(context.length)
        return (Piece((Tile(everything, (everything,)),), every_pair),)

    def pairs(self, context: MaskContext) -> int:
        """How many pairs of a whole text are allowed."""
        n = context.length
        return sum(bool(self.allows(i, j, context)) for i in range(n) for j in range(i + 1 if context.causal else n))

    def shapes(self, context: MaskContext) -> tuple[Shape, ...]:
        """The shape of each piece, without its tiles where the pattern repeats itself; an empty piece has none."""
        return tuple(piece.shape for piece in self.pieces(context))

    def num_computed_pairs(self, context: MaskContext) -> int:
        """How many pairs are computed: all of every tile, each as large as its piece's largest."""
        return sum(tiles * queries * keys for tiles, queries, keys in self.shapes(context))

    def cache_length(self, length: int) -> int:
        """How many positions of a text of `length` tokens the cache must hold for the tokens to come."""
        return length


def rule_for(pattern: type[Pattern]) -> Callable[[type[PatternRule[P]]], type[PatternRule[P]]]:
    """Class decorator: the rule of a kind of pattern."""
    return provides("rule", pattern)


@lru_cache(maxsize=1024)
def pattern_rule(pattern: Pattern) -> PatternRule[Any]:
    """The rule of a pattern.

    Raises:
        SpecError: its kind has none.
    """
    rule = provided("rule", type(pattern))
    if rule is None:
        cause = f"{type(pattern).__name__} has no rule of which positions see each other"
        raise SpecError("pattern", cause, "give one: archetype.register(..., rule=...)")
    return cast(PatternRule[Any], rule(pattern))


def every_pair(i: Positions, j: Positions) -> Any:
    """Every pair of a piece is its own."""
    return i == i
