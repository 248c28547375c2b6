"""Costs of models with parts of extensions: layers are counted separately, and compared with the modules."""

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from archetype.built_costs.counting import Layer, counted_in
from archetype.cost.formula import symbol
from archetype.cost.work import Work
from archetype.errors import SpecError
from archetype.estimate.rows import num_parameters
from archetype.models.block.cost import BlockCost
from archetype.models.build import build_on_meta
from archetype.models.cost import ModelCost
from archetype.models.stack.module import places_of
from archetype.models.stack.spec import StackView
from archetype.spec.kinds import kinds_from_outside
from archetype.spec.registry import provided

TOKENS = 64  # tokens of the pass that compares layers
OUTSIDE = "outside the blocks"
IN_BLOCK = re.compile(r"(.*?blocks\.\d+)\.(\w+)")


class ModelsAsBuilt:
    """Costs of models with parts of extensions (see `cost.registry.AsBuilt`)."""

    def layers(
        self, stack: StackView, layers: Sequence[int], count: Callable[[], BlockCost]
    ) -> Iterable[tuple[Sequence[int], BlockCost]]:
        # layers of equal specifications differ if their parameters, state or products do
        block = stack.layers[layers[0]]
        if not kinds_from_outside((block, stack.residual)):
            return [(layers, count())]
        groups: dict[Any, tuple[list[int], BlockCost]] = {}
        places = places_of(stack)
        for layer in layers:
            with counted_in(Layer(block.own, places[layer])):
                cost = count()
                indices, _ = groups.setdefault(_counts(cost), ([], cost))
            indices.append(layer)
        return groups.values()

    def check(self, cost: ModelCost) -> None:
        if not kinds_from_outside(cost.spec) or provided("module", type(cost.spec)) is None:
            return  # a kind of model without a module has nothing to compare with
        counted, built = Counter[str](), Counter[str]()
        for stack in cost.stacks:
            for group in stack.groups:
                for layer in (layer for layer in group.layers if stack.stack.layers[layer].weights_of is None):
                    for name, formula in group.cost.parameters().items():
                        content = name.partition(".")[0]
                        part = content if content in group.cost.contents else "wiring"
                        counted[f"{stack.prefix}blocks.{layer}.{part}"] += formula.value
        counted[OUTSIDE] = num_parameters(cost).value - counted.total()
        for name, parameter in build_on_meta(cost.spec).named_parameters():
            built[_location(name, counted)] += parameter.numel()
        for module in counted:
            if counted[module] != built[module]:
                cause = f"its cost formula counts {counted[module]:,} parameters, but its module has {built[module]:,}"
                raise SpecError(
                    module, cause, "correct the cost formula, or remove it so that the module itself is counted"
                )


def _location(name: str, counted: Container[str]) -> str:
    # with a content of a block, around the contents, or outside the blocks
    if (inside := IN_BLOCK.match(name)) is None or f"{inside[1]}.wiring" not in counted:
        return OUTSIDE
    return place if (place := f"{inside[1]}.{inside[2]}") in counted else f"{inside[1]}.wiring"


def _counts(cost: BlockCost) -> tuple[Any, ...]:
    # everything that distinguishes layers
    work = Work(symbol("B", 1), symbol("T", TOKENS), "forward")
    try:
        products = {name: formula.value for name, formula in cost.flops(work).items()}
    except SpecError:  # cannot be run without weights; the error is raised again when its products are requested
        products = {}
    parameters = {name: formula.value for name, formula in cost.parameters().items()}
    return (*parameters.items(), *products.items(), cost.state(TOKENS, TOKENS))
