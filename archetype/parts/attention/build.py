"""Choice of the strategy that computes attention for a pattern and a position, when the module is built."""

from archetype.errors import SpecError
from archetype.nn.place import Place
from archetype.nn.registry import module_class
from archetype.parts.attention import spec
from archetype.parts.attention.pairs import (
    ChosenPairs,
    FullPairs,
    MaskedPairs,
    PairsByLength,
    QueryBiasedPairs,
    TiledPairs,
    ValueBiasedPairs,
)
from archetype.parts.pattern.spec import Full
from archetype.parts.position.module import QueryBias, Rotation, ScoreBias
from archetype.roles.pattern import pattern_rule
from archetype.roles.position import AttentionSizes
from archetype.spec.base import fingerprint


def build_position(attention: spec.Attention, sizes: AttentionSizes) -> Rotation | ScoreBias | QueryBias | None:
    """Build the module of a layer's own positions; None if it has no positions or uses the stack's.

    Raises:
        SpecError: the module of an extension has a class that attention does not support.
    """
    position = attention.position
    if position.is_absent or attention.stack_bias is not None:
        return None
    module = module_class(position)(position, sizes)
    if isinstance(module, Rotation | ScoreBias | QueryBias):
        return module
    cause = f"{type(module).__name__} is neither a Rotation nor a ScoreBias"
    raise SpecError("position", cause, "derive the module from one of them (archetype.parts.position.module)")


def build_pairs(attention: spec.Attention, place: Place, bias: ScoreBias | QueryBias | None) -> MaskedPairs:
    """Return the strategy for a layer.

    | pattern              | position                     | strategy           |
    |----------------------|------------------------------|--------------------|
    | full                 | none, or a rotation          | `FullPairs`        |
    | full                 | a bias of each pair          | `MaskedPairs`      |
    | any                  | a bias that reads queries    | `QueryBiasedPairs` |
    | any                  | with `key_bias`              | `ValueBiasedPairs` |
    | depends on length    | any other                    | `PairsByLength`    |
    | any other            | any other                    | `TiledPairs`       |

    An index wraps the strategy in `ChosenPairs`.

    Args:
        bias: position bias of the layer (None: no bias, or the stack's).
    """
    # the rows of the table, the most specific first
    kind: type[MaskedPairs] = TiledPairs
    if isinstance(bias, QueryBias):
        kind = QueryBiasedPairs
    elif attention.key_bias:
        kind = ValueBiasedPairs
    elif isinstance(attention.pattern, Full):
        kind = FullPairs if bias is None and attention.stack_bias is None else MaskedPairs
    elif pattern_rule(attention.pattern).depends_on_length:
        kind = PairsByLength
    # learned biases of different layers must not share a cached mask
    learns_bias = bias is not None and any(True for _ in bias.parameters())
    biases = fingerprint(attention.position), attention.num_heads, place.layer if learns_bias else None
    pairs = kind(attention.pattern, place, biases)
    return pairs if attention.index is None else ChosenPairs(attention.pattern, place, biases, every=pairs)
