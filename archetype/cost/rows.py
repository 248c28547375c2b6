"""What every module costs: one row for each, or for each module of several equal layers together."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from archetype import spec
from archetype.cost import flops, parameters, passes, sizes
from archetype.cost.formula import Formula, total
from archetype.cost.layers import Alike, alike
from archetype.cost.parameters import NOTHING, Counts
from archetype.cost.passes import PHASES, Work

Column = Literal["parameters", "active", "forward", "prefill", "decode"]
COLUMNS: tuple[Column, ...] = ("parameters", "active", *PHASES)


@dataclass(frozen=True)
class Row:
    """One module, or one module of several equal layers together; every count with its formula."""

    module: str
    formulas: Mapping[Column, Formula]
    layers: int = 1
    block: bool = False  # whether it belongs to the layers

    @property
    def parameters(self) -> int:
        """Numbers that are trained."""
        return self.formulas["parameters"].value

    @property
    def active(self) -> int:
        """Those of them that one token meets."""
        return self.formulas["active"].value

    @property
    def forward(self) -> int:
        """FLOPs of a whole text."""
        return self.formulas["forward"].value

    @property
    def prefill(self) -> int:
        """FLOPs of a whole text whose last position alone is answered."""
        return self.formulas["prefill"].value

    @property
    def decode(self) -> int:
        """FLOPs of one more token."""
        return self.formulas["decode"].value


def rows(model: spec.ModelSpec, work: Work) -> list[Row]:
    """Every module that has parameters or multiplies anything."""
    before, after = parameters.outside(model)
    products = {phase: passes.outside(model, work, phase) for phase in PHASES}
    runs = {phase: passes.stack_passes(model, work, phase) for phase in PHASES}
    found = list(_joined({"parameters": before, "active": before} | products, before))
    for stack in model.stacks:
        d = sizes.width(stack)
        for group in alike(stack.layers):
            counts = {
                "parameters": parameters.block(group.block, d),
                "active": parameters.block(group.block, d, "chosen"),
            } | {
                phase: flops.block(group.block, d, of._replace(layer=group.places[0])) if of else {}
                for phase, of in ((phase, runs[phase].get(stack.prefix)) for phase in PHASES)
            }
            found += _of_layers(stack.prefix, group, counts)
        ends = parameters.stack_ends(stack)
        found += _joined({"parameters": ends, "active": ends}, ends)
    found += _joined({"parameters": after, "active": after} | products, after)
    return [row for row in found if any(row.formulas.values())]


def column(found: Iterable[Row], name: Column) -> Formula:
    """The sum of a column."""
    return total(row.formulas[name] for row in found)


def all_parameters(model: spec.ModelSpec) -> Formula:
    """The parameters alone, without the work of counting anything else."""
    before, after = parameters.outside(model)
    counts = [*before.values(), *after.values()]
    for stack in model.stacks:
        d = sizes.width(stack)
        counts += parameters.stack_ends(stack).values()
        counts += [group.number * total(parameters.block(group.block, d).values()) for group in alike(stack.layers)]
    return total(counts)


def _joined(counts: Mapping[str, Counts], names: Mapping[str, object]) -> Iterator[Row]:
    for name in names:
        yield Row(name, {key: counts.get(key, {}).get(name, NOTHING) for key in COLUMNS})


def _of_layers(prefix: str, group: Alike, counts: Mapping[str, Counts]) -> Iterator[Row]:
    for name in _in_order(counts["parameters"], counts["forward"] or counts["decode"]):
        formulas = {key: group.number * counts[key].get(name, NOTHING) for key in COLUMNS}
        yield Row(f"{prefix}blocks.{group.label}.{name}", formulas, len(group.places), block=True)


def _in_order(counted: Counts, products: Counts) -> list[str]:
    """A layer's modules; products that have no weights stand behind the projections of their content."""
    names = list(counted)
    for product in products:
        if product not in counted:
            content = product.partition(".")[0]
            last = max(place for place, name in enumerate(names) if name.startswith(f"{content}."))
            names.insert(last + 1, product)
    return names
