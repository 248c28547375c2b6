"""Costs by module, one row for each module. Equal layers share a row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from archetype.cost.formula import ZERO, Counts, Formula, constant, symbol, total
from archetype.cost.work import PHASES, AttentionPairs, Phase, Work
from archetype.models.cost import ModelCost
from archetype.models.further_tokens.cost import FurtherTokensCost
from archetype.models.stack.cost import LayerGroup

Column = Literal["parameters", "active", "forward", "prefill", "decode"]
COLUMNS: tuple[Column, ...] = ("parameters", "active", *PHASES)
TABLES = (
    "embedding.token",
    "embedding.position",
    "embedding.token_type",
    "embedding.per_layer.token",
    "value_embedding",
)  # suffixes of the names of looked-up tables


@dataclass(frozen=True)
class Row:
    """Counts and formulas of one module, or of one module of several equal layers."""

    module: str
    layers: int
    owners: int  # number of these layers that have their own weights
    in_block: bool
    formulas: Mapping[Column, Formula]
    parameters: int  # trained numbers
    active: int  # parameters used by one token
    forward: int  # FLOPs of whole sequences
    prefill: int  # FLOPs of whole sequences, with logits of the last token only
    decode: int  # FLOPs of one more token per sequence

    @classmethod
    def of(cls, module: str, counts: Mapping[str, Counts], name: str, group: LayerGroup | None = None) -> "Row":
        """Return the row of a module from the counts under its name, summed over the layers of a group."""
        formulas, layers = {column: counts.get(column, {}).get(name, ZERO) for column in COLUMNS}, 1
        owners = 1 if group is None else group.owners
        if group is not None and (len(group.layers) > 1 or not group.owners):
            multiples = {"parameters": group.number_of_weights, "active": group.number_of_weights}
            formulas = {column: multiples.get(column, group.number) * formula for column, formula in formulas.items()}
            layers = len(group.layers)
        return cls(
            module, layers, owners, group is not None, formulas, *(formula.value for formula in formulas.values())
        )

    @property
    def is_table(self) -> bool:
        """Whether the module's parameters are looked up by index instead of multiplied."""
        return self.module.endswith(TABLES)


def module_rows(
    cost: ModelCost,
    batch: int,
    length: int,
    attention: AttentionPairs = "computed",
    phases: Sequence[Phase] = PHASES,
    source: int | None = None,
) -> list[Row]:
    """Return a row for every module with parameters or FLOPs.

    Args:
        attention: which pairs of positions count.
        phases: phases to count; FLOPs of other phases are 0.
        source: tokens per source, if there is one (absent: `length`).
    """
    B, T = symbol("B", batch), symbol("T", length, cost.spec)
    sources = None if source is None else constant(source)
    counted = [phase for phase in phases if cost.generates or phase == "forward"]
    work = {phase: Work(B, T, phase, attention, source=sources) for phase in counted}
    stack_work = {phase: cost.stack_work(phase_work) for phase, phase_work in work.items()}
    flops: dict[str, Counts] = {phase: cost.flops(phase_work) for phase, phase_work in work.items()}
    rows = _module_rows(cost.embedding_parameters(), flops)
    for stack in cost.stacks:
        for group in stack.groups:
            counts = {"parameters": group.cost.parameters(), "active": group.cost.parameters(active=True)}
            for phase, by_stack in stack_work.items():
                if stack.prefix in by_stack:
                    counts[phase] = group.cost.flops(by_stack[stack.prefix]._replace(layer=group.layers[0]))
            rows += _block_rows(stack.prefix, group, counts)
        outside: dict[str, Counts] = {
            phase: stack.flops(by_stack[stack.prefix])
            for phase, by_stack in stack_work.items()
            if stack.prefix in by_stack
        }
        rows += _module_rows(stack.parameters(), outside)
    rows += _module_rows(cost.head_parameters(), flops)
    rows += _further_rows(cost.further_tokens) if cost.further_tokens is not None else []
    return [row for row in rows if any(row.formulas.values())]


def num_parameters(cost: ModelCost) -> Formula:
    """Return the number of parameters, without computing other costs."""
    counts = [*cost.embedding_parameters().values(), *cost.head_parameters().values()]
    for stack in cost.stacks:
        counts += stack.parameters().values()
        counts += [group.number_of_weights * total(group.cost.parameters().values()) for group in stack.groups]
    if (further := cost.further_tokens) is not None:
        counts += further.parameters().values()
        counts += [group.number * total(group.cost.parameters().values()) for group in further.stack.groups]
    return total(counts)


def _module_rows(parameters: Counts, flops: Mapping[str, Counts]) -> list[Row]:
    counts = {"parameters": parameters, "active": parameters, **flops}
    return [Row.of(name, counts, name) for name in parameters]


def _further_rows(cost: FurtherTokensCost) -> list[Row]:
    # used only in training, so their FLOPs are not counted
    rows = [Row.of(name, {"parameters": {name: formula}}, name) for name, formula in cost.parameters().items()]
    for group in cost.stack.groups:
        blocks = _block_rows(cost.stack.prefix, group, {"parameters": group.cost.parameters()})
        rows += [replace(row, in_block=False) for row in blocks]  # not part of any layer
    return rows


def _block_rows(prefix: str, group: LayerGroup, counts: Mapping[str, Counts]) -> list[Row]:
    # a decoded token may need products that a whole text does not, such as those of an index
    products = {name: formula for phase in PHASES for name, formula in counts.get(phase, {}).items()}
    names = _in_order(counts["parameters"], products)
    prefix_of_block = f"{prefix}blocks.{group.label}"
    return [Row.of(f"{prefix_of_block}.{name}", counts, name, group) for name in names]


def _in_order(parameters: Counts, flops: Counts) -> list[str]:
    # products without weights follow the projections of their content
    names = list(parameters)
    for product in flops:
        if product not in parameters:
            content = product.partition(".")[0]
            last = max(index for index, name in enumerate(names) if name.startswith(f"{content}."))
            names.insert(last + 1, product)
    return names
