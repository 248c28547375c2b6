"""Attention to the keys that an index has chosen among the allowed ones."""

from collections.abc import Hashable

from torch import Tensor, nn

from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.nn.selection import Choice, gather_chosen
from archetype.parts.attention.keys import Keys
from archetype.parts.attention.pairs import MaskedPairs, biased
from archetype.parts.attention.projections import Heads, ValueHeads
from archetype.parts.pattern.scores import ScoreFunction
from archetype.roles.pattern import Pattern


class ChosenPairs(MaskedPairs):
    """Attention to chosen keys under a mask, or gathered for a single query; without a choice, to all allowed keys.

    Args:
        biases: the same for layers with the same biases of positions.
        every: the strategy for all allowed pairs.
    """

    def __init__(self, pattern: Pattern, place: Place, biases: Hashable, every: MaskedPairs) -> None:
        super().__init__(pattern, place, biases)
        self.every = every

    def attend(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> ValueHeads:
        if keys.choice.keys is None:
            return self.every.attend(q, keys, score, bias, context)
        can_be_gathered = keys.choice.can_be_gathered(q.shape[2], keys.k.shape[1])
        # gathered for each share of heads, keys have no common positions for a bias
        if keys.positions is not None and can_be_gathered and (bias is None or keys.choice.keys.shape[1] == 1):
            chosen, positions, (k, v) = gather_chosen(keys.choice, keys.k, keys.v)
            keys = Keys(k, v, positions, choice=Choice(chosen))
        return super().attend(q, keys, score, bias, context)

    def masked(
        self, q: Heads, keys: Keys, score: ScoreFunction, bias: nn.Module | None, context: ForwardContext
    ) -> tuple[Heads, Tensor]:
        chosen = keys.choice.keys
        if chosen is None:
            return self.every.masked(q, keys, score, bias, context)
        positions = context.shared_positions if keys.positions is None else keys.positions
        if chosen.shape[1] > 1:  # one selection for each share of the heads
            chosen = chosen.repeat_interleave(q.shape[1] // chosen.shape[1], dim=1)
        return q, chosen if bias is None else biased(bias, context.shared_positions, positions, chosen)
