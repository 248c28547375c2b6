"""Cost of a stack of blocks, which counts equal layers once."""

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property, partial
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from archetype.cost.as_built import layers_as_built
from archetype.cost.formula import ZERO, Counts, Formula, constant, prefixed, symbol
from archetype.cost.registry import NormCost, PartCost
from archetype.cost.work import FLOAT32, INT64, TrainingWork, Work
from archetype.models.block.cost import BlockCost
from archetype.models.block.spec import Block
from archetype.models.stack import spec

_WIDTHS = {"global_model.": "D_g", "local_model.": "D_l"}


class LayerGroup(NamedTuple):
    """Equal layers of a stack."""

    layers: tuple[int, ...]  # indices in the stack
    cost: BlockCost  # of one layer
    owners: int  # number of layers that do not share another layer's weights

    @property
    def number(self) -> Formula:
        # formulas write L times the layers, but no factor for a single layer
        return symbol("L", len(self.layers)) if len(self.layers) > 1 else constant(1)

    @property
    def number_of_weights(self) -> Formula:
        return self.number if self.owners == len(self.layers) else constant(self.owners)

    @property
    def label(self) -> str:
        """The indices in short notation: `0-11`, `0,2..24`, `0-4,6-10`."""
        return label(self.layers)


class StatePart(NamedTuple):
    """State of a group of equal layers."""

    name: str  # layers in short notation, or name of a state outside the layers
    kind: str  # kind of their mixer
    layers: tuple[int, ...]  # their indices
    numbers: int  # floating-point numbers
    integers: int = 0  # 64-bit integers
    recurrent: int = 0  # of `numbers`, those that are not keys and values: they have the data type of the weights
    key_scales: int = 0  # numbers of float32 that scale keys and values, if these are int8

    def nbytes(self, itemsize: int, key_itemsize: int | None = None) -> int:
        """Return the bytes of the state.

        Args:
            itemsize: bytes of a number in the data type of the weights.
            key_itemsize: bytes of a number in the data type of keys and values, 1 for int8 (absent: `itemsize`).
        """
        keys = (self.numbers - self.recurrent) * (key_itemsize or itemsize)
        scales = self.key_scales * FLOAT32 if key_itemsize == 1 else 0
        return keys + scales + self.recurrent * itemsize + self.integers * INT64


class StackActivations(NamedTuple):
    """Bytes that a stack saves for backward."""

    shared: int  # shared by all layers, and by the final norm
    blocks: int
    largest_block: int  # including the gradient at the start of its backward pass
    block_inputs: int  # all that is saved of recomputed blocks, including published keys and values


class StackCost:
    """Cost of a stack."""

    def __init__(self, stack: spec.StackView) -> None:
        self.stack, self.prefix = stack, stack.prefix
        self.d = symbol(_WIDTHS.get(stack.prefix, "D"), stack.d_model)
        self.final_norm = NormCost.of(stack.final_norm, self.d)
        self.groups = group_equal_layers(stack, self.d)
        residual = self.groups[0].cost.residual
        ends = {"residual_entry": residual.entry(), "residual_exit": residual.exit(len(stack.layers))}
        self.residual_ends = {name: cost for name, cost in ends.items() if cost is not None}  # with weights

    @cached_property
    def group_of(self) -> dict[int, LayerGroup]:
        """Group of each layer."""
        return {layer: group for group in self.groups for layer in group.layers}

    @cached_property
    def sharing(self) -> dict[str, dict[int, int]]:
        """For each layer that uses another layer's weights, keys or index, that other layer."""
        layers = list(enumerate(self.stack.layers))
        sources: dict[str, dict[int, int | None]] = {
            "weights": {layer: block.weights_of for layer, block in layers},
            "keys": {},
            "index": {},
        }
        for layer, block in layers:
            sources.setdefault(block.mixer.source_name, {})[layer] = block.mixer.source(layer)
        return {
            name: {layer: source for layer, source in source_of.items() if source is not None}
            for name, source_of in sources.items()
        }

    def parameters(self) -> Counts:
        counts = {"final_norm": self.final_norm.parameters()}
        if self.stack.relative_bias is not None:
            position, heads = self.stack.relative_bias
            table: Any = PartCost.of(position, self.d)
            counts = table.table(heads) | counts
        if self.stack.early_exit is not None:
            counts = {"exit_gate": ZERO} | counts  # constants of the checkpoint
        counts = {name: end.parameters() for name, end in self.residual_ends.items()} | counts
        return prefixed(self.prefix, counts)

    def flops(self, work: Work) -> Counts:
        """Return the FLOPs outside the blocks."""
        norm = (1 + len(self.stack.passes)) * self.final_norm.flops(work.tokens)
        counts = {name: end.flops(work.tokens) for name, end in self.residual_ends.items()}
        if self.stack.early_exit is not None and self.stack.early_exit.threshold is not None:
            counts["exit_gate"] = 2 * work.tokens * len(self.stack.passes) * self.d
        return prefixed(self.prefix, counts | ({"final_norm": norm} if norm else {}))

    def state(self, length: int, source: int = 0) -> int:
        return sum(len(group.layers) * group.cost.state(length, source) for group in self.groups)

    def state_integers(self, length: int) -> int:
        return sum(len(group.layers) * group.cost.state_integers(length) for group in self.groups)

    def unread_state(self, length: int) -> int:
        mixers = ((len(group.layers), part) for group in self.groups for part in group.cost.mixer.each())
        return sum(count * part.unread_state(length) for count, part in mixers)

    def state_parts(self, length: int, source: int = 0) -> Iterator[StatePart]:
        for group in self.groups:
            count, crosses = len(group.layers), group.cost.cross is not None
            kind = str(getattr(group.cost.block.mixer, "kind", "")) + (" and cross-attention" if crosses else "")
            elements, recurrent = count * group.cost.state(length, source), count * group.cost.recurrent_state(length)
            scales = count * group.cost.key_scales(length, source)
            integers = count * (crosses + group.cost.state_integers(length))
            yield StatePart(f"layers {group.label}", kind, group.layers, elements, integers, recurrent, scales)

    def saved_activations(self, work: TrainingWork) -> StackActivations:
        shared: dict[Hashable, int] = {}
        blocks = largest = left = 0
        for group in self.groups:
            # layers that differ by index are groups of one, so the first layer represents all
            block_bytes = group.cost.saved_activations(work._replace(layer=group.layers[0]))
            blocks += block_bytes * len(group.layers)
            largest = max(largest, block_bytes + group.cost.feedforward.hidden_gradient(work))
            shared |= group.cost.mixer.shared_activations(work)
            left += len(self.stack.sources.intersection(group.layers)) * group.cost.mixer.left_activations(work)
        end = (1 + len(self.stack.passes)) * self.final_norm.saved(work.tokens, work)
        end += sum(cost.saved_activations(work) for cost in self.residual_ends.values())
        streams = sum(len(group.layers) * group.cost.streams for group in self.groups)
        # residual streams of all layers, in float32
        inputs = work.tokens * streams * self.d.value * FLOAT32
        return StackActivations(sum(shared.values()) + end, blocks, largest, inputs + left)


def group_equal_layers(stack: spec.StackView, d: Formula) -> list[LayerGroup]:
    """Group equal layers, in order of first occurrence.

    A layer that shares the weights of another is equal to it. A layer whose mixer differs by layer, such as BigBird
    with random blocks, is equal to no other.
    """
    by_identity: dict[int, list[int]] = {}  # repeated layers are one object, and hashing blocks is slow
    for index, block in enumerate(stack.layers):
        first = index if block.weights_of is None else block.weights_of
        by_identity.setdefault(id(stack.layers[first]), []).append(index)
    by_block: dict[Block, list[int]] = {}
    for indices in by_identity.values():
        by_block.setdefault(stack.layers[indices[0]].own, []).extend(indices)
    groups: list[LayerGroup] = []
    for block, indices in by_block.items():
        count = partial(BlockCost, block, d, stack.residual, symbol("V", stack.vocab_size))
        for same, cost in layers_as_built(stack, indices, count):
            for equal in _equal_costs(cost, same):
                layers = tuple(sorted(equal))
                groups.append(LayerGroup(layers, cost.at(layers[0]), _owners(stack, equal)))
    return sorted(groups, key=lambda group: group.layers)


def _equal_costs(cost: BlockCost, layers: Sequence[int]) -> list[list[int]]:
    # layers with the same cost, which equal specifications do not guarantee
    sets: dict[Hashable, list[int]] = {}
    for layer in layers:
        key = layer if cost.mixer.differs_by_layer else cost.residual.kind_of_layer(layer)
        sets.setdefault(key, []).append(layer)
    return list(sets.values())


def _owners(stack: spec.StackView, layers: Sequence[int]) -> int:
    return sum(stack.layers[layer].weights_of is None for layer in layers)


def labelled(text: str) -> list[int]:
    # arithmetic progression: first, second..last
    if ".." in text:
        first, _, rest = text.partition(",")
        second, _, last = rest.partition("..")
        return [*range(int(first), int(last) + 1, int(second) - int(first))]
    runs = (run.split("-") for run in text.split(","))
    return [layer for run in runs for layer in range(int(run[0]), int(run[-1]) + 1)]


def label(layers: Sequence[int]) -> str:
    steps = {after - before for before, after in pairwise(layers)}
    if len(layers) > 2 and len(steps) == 1 and steps != {1}:
        return f"{layers[0]},{layers[1]}..{layers[-1]}"
    grouped = groupby(enumerate(layers), key=lambda place: place[1] - place[0])  # equal difference: consecutive
    runs = [[layer for _, layer in run] for _, run in grouped]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)
