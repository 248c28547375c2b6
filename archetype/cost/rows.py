"""What every module costs: one row for each, or for each module of several equal layers together."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from archetype.cost.formula import ZERO, Counts, Formula, symbol, total
from archetype.cost.model import ModelCost
from archetype.cost.stack import LayerGroup
from archetype.cost.work import PHASES, AttentionPairs, Work

Column = Literal["parameters", "active", "forward", "prefill", "decode"]
COLUMNS: tuple[Column, ...] = ("parameters", "active", *PHASES)
TABLES = ("embedding.token", "embedding.position", "embedding.token_type")  # ends of the names of looked-up tables


@dataclass(frozen=True)
class Row:
    """One module, or one module of several equal layers together; every count with its formula."""

    module: str
    formulas: Mapping[Column, Formula]
    layers: int = 1
    in_block: bool = False

    @property
    def parameters(self) -> int:
        """Trained numbers."""
        return self.formulas["parameters"].value

    @property
    def active(self) -> int:
        """Parameters that one token meets."""
        return self.formulas["active"].value

    @property
    def forward(self) -> int:
        """FLOPs of whole rows."""
        return self.formulas["forward"].value

    @property
    def prefill(self) -> int:
        """FLOPs of whole rows, with logits of the last token only."""
        return self.formulas["prefill"].value

    @property
    def decode(self) -> int:
        """FLOPs of one more token of each row."""
        return self.formulas["decode"].value

    @property
    def is_table(self) -> bool:
        """Whether its parameters are looked up by index, not multiplied."""
        return self.module.endswith(TABLES)


def module_rows(cost: ModelCost, batch: int, length: int, attention: AttentionPairs = "computed") -> list[Row]:
    """Every module that has parameters or multiplies anything."""
    rows_and_tokens = symbol("B", batch), symbol("T", length)
    work = {phase: Work(*rows_and_tokens, phase, attention) for phase in (PHASES if cost.generates else PHASES[:1])}
    stack_work = {phase: cost.stack_work(one) for phase, one in work.items()}
    flops: dict[str, Counts] = {phase: cost.flops(one) for phase, one in work.items()}
    rows = list(_module_rows(cost.embedding_parameters(), flops))
    for stack in cost.stacks:
        for group in stack.groups:
            counts = {"parameters": group.cost.parameters(), "active": group.cost.parameters(active=True)}
            for phase, by_stack in stack_work.items():
                if stack.prefix in by_stack:
                    counts[phase] = group.cost.flops(by_stack[stack.prefix]._replace(layer=group.layers[0]))
            rows += _block_rows(stack.prefix, group, counts)
        rows += _module_rows(stack.parameters(), {})
    rows += _module_rows(cost.head_parameters(), flops)
    return [row for row in rows if any(row.formulas.values())]


def column_total(rows: Iterable[Row], column: Column) -> Formula:
    """The sum of a column."""
    return total(row.formulas[column] for row in rows)


def num_parameters(cost: ModelCost) -> Formula:
    """All parameters, without the work of counting anything else."""
    counts = [*cost.embedding_parameters().values(), *cost.head_parameters().values()]
    for stack in cost.stacks:
        counts += stack.parameters().values()
        counts += [group.number * total(group.cost.parameters().values()) for group in stack.groups]
    return total(counts)


def _module_rows(parameters: Counts, flops: Mapping[str, Counts]) -> Iterator[Row]:
    counts = {"parameters": parameters, "active": parameters, **flops}
    for name in parameters:
        yield Row(name, {column: counts.get(column, {}).get(name, ZERO) for column in COLUMNS})


def _block_rows(prefix: str, group: LayerGroup, counts: Mapping[str, Counts]) -> Iterator[Row]:
    for name in _in_order(counts["parameters"], counts.get("forward") or counts["decode"]):
        formulas = {column: group.number * counts.get(column, {}).get(name, ZERO) for column in COLUMNS}
        yield Row(f"{prefix}blocks.{group.label}.{name}", formulas, len(group.layers), in_block=True)


def _in_order(parameters: Counts, flops: Counts) -> list[str]:
    """A layer's modules; products without weights stand behind the projections of their content."""
    names = list(parameters)
    for product in flops:
        if product not in parameters:
            content = product.partition(".")[0]
            last = max(index for index, name in enumerate(names) if name.startswith(f"{content}."))
            names.insert(last + 1, product)
    return names
