"""Costs of mixers, feed-forward parts, routers and key selections without a registered cost, measured on modules."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from archetype.built_costs.counting import META, by_child, context_of, flops_of, on_meta, place_for, saved_by, total
from archetype.cost.formula import Counts, Formula, constant
from archetype.cost.registry import Complexity, FeedForwardCost, MixerCost, PartCost, RouterCost, SelectionCost
from archetype.cost.work import TrainingWork, Work
from archetype.nn.context import ForwardContext
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_feedforward, build_mixer, module_class
from archetype.nn.selection import build_selection
from archetype.roles.router import Router
from archetype.roles.selection import KeySelection


class MeasuredContentCost(PartCost):
    """Cost of a mixer or feed-forward part, from its projections and the products of one pass."""

    is_measured = True

    def __init__(self, part: Any, d: Formula) -> None:
        super().__init__(part, d)
        self.place = place_for(d)
        self.module = on_meta(lambda: self.built(self.place))

    def built(self, place: Place) -> nn.Module | None:
        """Return the sublayer's module, built for a position in the model."""
        raise NotImplementedError

    def parameters(self) -> Counts:
        # by child module, without tables by token id
        return by_child(self.module)

    def tables(self) -> Counts:
        # the growth of a child with each token id
        own, with_one = self.parameters(), on_meta(lambda: self.built(replace(self.place, vocab_size=1)))
        grown = {name: count.value - own[name].value for name, count in by_child(with_one).items()}
        return {name: constant(features) for name, features in grown.items() if features}

    def saved_activations(self, work: TrainingWork) -> int:
        x = torch.empty(work.rows, work.length, self.d.value, device=META)
        return saved_by(lambda: self.module(x, context_of(x), None), self.module, work)

    def state(self, length: int) -> int:
        # of one sequence, if the module keeps a state
        new_state = getattr(self.module, "new_state", None)
        state = new_state and new_state(1, length, torch.float32, META)
        return int(state.nbytes) // torch.float32.itemsize if state else 0


class MeasuredMixerCost(MeasuredContentCost, MixerCost):
    """Cost of a mixer, measured with a state for decoding."""

    complexity = Complexity(*["not declared"] * 3)

    def built(self, place: Place) -> nn.Module:
        return build_mixer(self.part, place)

    def flops(self, work: Work) -> Counts:
        batch, state, lengths = work.rows.value, None, None
        new_state = getattr(self.module, "new_state", None)
        # without a state, decoding computes the whole sequence again
        length = work.queries if new_state or work.phase != "decode" else work.length
        x = torch.empty(batch, length.value, self.d.value, device=META)
        if work.phase == "decode" and new_state:
            state = new_state(batch, work.length.value, x.dtype, META)
            lengths = torch.zeros(batch, dtype=torch.long, device=META)
        return {"products": flops_of(lambda: self.module(x, context_of(x, lengths), state), self.part)}


class MeasuredFeedForwardCost(MeasuredContentCost, FeedForwardCost):
    """Cost of a feed-forward part."""

    def built(self, place: Place) -> nn.Module | None:
        return build_feedforward(self.part, place)

    def flops(self, tokens: Formula) -> Counts:
        x = torch.empty(1, tokens.value, self.d.value, device=META)
        return {"products": flops_of(lambda: self.module(x, context_of(x), None), self.part)}


class MeasuredRouterCost(RouterCost):
    """Cost of a router, from its parameters and the products of one pass."""

    def __init__(self, part: Router, d: Formula, num_experts: Formula) -> None:
        super().__init__(part, d, num_experts)
        self.module = on_meta(lambda: module_class(part)(part, num_experts.value, place_for(d)))

    def parameters(self) -> Formula:
        return total(self.module)

    def flops(self, tokens: Formula) -> Formula:
        return flops_of(lambda: self._affinities(1, tokens.value), self.part)

    def saved_activations(self, work: TrainingWork) -> int:
        # logits, affinities, and the affinities from which experts are selected
        return saved_by(lambda: self._affinities(work.rows, work.length), self.module, work)

    def _affinities(self, batch: int, length: int) -> Tensor:
        x = torch.empty(batch, length, self.d.value, device=META)
        logits = self.module(x.flatten(0, 1), context_of(x))
        return self.module.affinities(logits)  # type: ignore[operator]


class MeasuredSelectionCost(SelectionCost):
    """Cost of a key selection, from its projections and the products of one pass, assuming that it selects all keys."""

    def __init__(self, part: KeySelection, d: Formula, query: Formula) -> None:
        super().__init__(part, d, query)
        self.module = on_meta(lambda: build_selection(part, place_for(d), query.value))

    def parameters(self) -> Counts:
        return by_child(self.module)

    def flops(self, work: Work) -> Counts:
        # choosing among all keys
        keys = self._state(work.rows.value, work.length.value) if work.phase == "decode" else None
        run = self._pass(work.rows.value, work.queries.value, work.length.value, keys)
        return {"products": flops_of(run, self.part)}

    def saved_activations(self, work: TrainingWork) -> int:
        return saved_by(self._pass(work.rows, work.length, work.length, None), self.module, work)

    def state(self, length: int) -> int:
        # of one sequence
        state = self._state(1, length)
        return 0 if state is None else state.nbytes // torch.float32.itemsize

    def _state(self, batch: int, length: int) -> LayerState | None:
        return self.module.new_state(batch, length, torch.float32, META)  # type: ignore[operator]

    def _pass(self, batch: int, queries: int, keys: int, state: LayerState | None) -> Callable[[], Any]:
        x, inputs = (torch.empty(batch, queries, size.value, device=META) for size in (self.d, self.query))
        allowed = torch.ones(batch, 1, queries, keys, dtype=torch.bool, device=META)
        lengths = None if state is None else torch.zeros(batch, dtype=torch.long, device=META)
        return lambda: self.module(x, inputs, allowed, ForwardContext.of(x, lengths), state)
