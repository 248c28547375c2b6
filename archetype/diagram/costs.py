"""Assignment of the rows of a cost report to boxes. Each row belongs to exactly one box."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from archetype.cost.formula import Formula, Symbol, symbol_names
from archetype.diagram.scene import Cost
from archetype.estimate.report import CostReport
from archetype.legend import LEGEND
from archetype.models.cost import ModelCost
from archetype.models.stack.cost import LayerGroup, StackCost


class ReportCosts:
    """Rows of a cost report. Each box takes its rows."""

    def __init__(self, report: CostReport) -> None:
        self.report = report
        self.model: ModelCost = report.cost
        self.rows = {row.module: row for row in report.rows}
        # what no box has taken at the end is put next to the drawing, so that the boxes add up to the total
        self.untaken = set(self.rows)
        further = self.model.further_tokens
        stacks = self.model.stacks if further is None else [*self.model.stacks, further.stack]
        self.stacks = {stack.prefix: stack for stack in stacks}
        self.in_blocks: dict[str, list[str]] = {_block(stack, group): [] for stack in stacks for group in stack.groups}
        for module in self.rows:
            names = module.split(".")
            for end in range(1, len(names)):  # a group's label, such as 0,2..24, may have dots
                if (block := ".".join(names[:end])) in self.in_blocks:
                    self.in_blocks[block].append(".".join(names[end:]))
        parts = [part for stack in stacks for group in stack.groups for part in group.cost.contents.values()]
        formulas = (formula for row in report.rows for formula in row.formulas.values())
        self.symbols = symbol_names(formulas, {symbol for part in parts for symbol in part.symbols.values()})

    def of_group(self, stack: StackCost, group: LayerGroup) -> list[str]:
        """Return the names of all modules in a group's block that have a row, such as `mixer.q`."""
        return self.in_blocks[_block(stack, group)]

    def take(self, *modules: str) -> Cost:
        """Take the rows of modules outside the blocks, and return their cost."""
        return self.sum((name, 1, 1) for name in modules)

    def sum(self, rows: Iterable[tuple[str, int, int]]) -> Cost:
        """Take the rows of modules, and return their cost for the given numbers of layers.

        Args:
            rows: (module, number of layers, number of layers with their own weights).
        """
        cost = Cost()
        for name, layers, owners in rows:
            if name in self.rows:
                self.untaken.discard(name)
                cost = cost + Cost.of(self.rows[name], self.report.dtype, layers, owners)
        return cost

    def legend(self, shapes: Iterable[str], labels: Iterable[str]) -> tuple[tuple[str, int, str], ...]:
        """Return (letter, value, meaning) for each letter in the shapes or under a square root in the labels.

        The order is the same as in `archetype.legend`.
        """
        length, source = self.report.length, self.report.source_length
        axes = {Symbol("S", length, LEGEND["S"]): "S", Symbol("T_s", source or length, LEGEND["T_s"]): "T_s"}
        known = {symbol: name for symbol, name in self.symbols.items() if symbol.name not in axes.values()} | axes
        # without words such as "layers", whose letters are no sizes
        shown_sizes = [re.sub("[a-z]{3,}", "", shape) for shape in shapes]
        shown_sizes += [size for label in labels for size in re.findall(r"√(\w+)", label)]
        # longest first, so that T_s is not found as T
        names = sorted(known.values(), key=len, reverse=True)
        used = set(re.findall("|".join(map(re.escape, names)), " ".join(shown_sizes)))
        order = {letter: index for index, letter in enumerate(LEGEND)}
        symbols = sorted(known, key=lambda symbol: order.get(symbol.name, len(order)))
        return tuple((known[symbol], symbol.value, symbol.meaning) for symbol in symbols if known[symbol] in used)

    def of_layers(self, stack: StackCost, layers: tuple[int, ...]) -> "LayerCosts":
        return LayerCosts(self, stack, layers)

    def text(self, formula: Formula) -> str:
        """Format a formula with the letters used in shapes: H P as HP, D^2 as D²."""
        names = {symbol: self.symbols.get(symbol, symbol.name) for symbol in formula.symbols}
        text = formula.text(names).replace("^2", "²").replace("^3", "³")
        return " + ".join(term.replace(" ", "") for term in text.split(" + "))


class LayerCosts:
    """Rows of a stack's equal layers, taken together with those of `others`, which are equal layers of other stacks."""

    def __init__(
        self, costs: ReportCosts, stack: StackCost, layers: tuple[int, ...], others: Sequence["LayerCosts"] = ()
    ) -> None:
        self.costs, self.stack, self.layers, self.others = costs, stack, layers, others
        self.selected = set(layers)
        counts = Counter(stack.group_of[layer].layers[0] for layer in layers)  # by each group's first layer
        self.groups: list[tuple[LayerGroup, int]] = [
            (stack.group_of[first], count) for first, count in sorted(counts.items())
        ]
        self.block = self.groups[0][0].cost

    def modules(self, sublayer: str) -> Iterator[str]:
        seen: dict[str, None] = {}
        for group, _ in self.groups:
            names = self.costs.of_group(self.stack, group)
            seen |= dict.fromkeys(
                name.removeprefix(f"{sublayer}.") for name in names if name.startswith(f"{sublayer}.")
            )
        yield from seen

    def take(self, *modules: str) -> Cost:
        """Take the rows of modules in the block, such as `mixer.q`, and return their cost."""
        prefix = f"{self.stack.prefix}blocks."
        counts = [(group.label, count, self._owners(group)) for group, count in self.groups]
        cost = self.costs.sum((f"{prefix}{label}.{name}", n, owners) for label, n, owners in counts for name in modules)
        return sum((other.take(*modules) for other in self.others), cost)

    @property
    def count(self) -> int:
        return len(self.layers) + sum(other.count for other in self.others)

    @property
    def owners(self) -> int:
        """Number of layers with their own weights."""
        return sum(self._owners(group) for group, _ in self.groups) + sum(other.owners for other in self.others)

    def in_letters(self, sublayer: str, cell: str, text: str) -> str:
        """Replace letters in a cell's shape or label with this model's letters, such as P2 if two sizes are called P.

        Args:
            sublayer: name of the sublayer, such as mixer.
            cell: name of the cell, prefixed by `parts.1.` if the sublayer has parallel parts.
            text: text with sizes in parentheses or below a root.
        """
        costs = list(self.block.contents[sublayer].each()) if sublayer in self.block.contents else []
        part = re.match(r"parts\.(\d+)\.", cell)
        symbols = costs[int(part[1]) if part else 0].symbols if costs else {}
        names = {"D": self.costs.text(self.stack.d)}
        names |= {name: self.costs.symbols.get(symbol, name) for name, symbol in symbols.items()}

        def written(match: re.Match[str]) -> str:
            return re.sub("[A-Z](_[a-z])?", lambda letter: names.get(letter[0], letter[0]), match[0])

        return re.sub(r"^\(.*\)$|√\w+", written, text)

    def _owners(self, group: LayerGroup) -> int:
        blocks = self.stack.stack.layers
        return sum(blocks[layer].weights_of is None for layer in group.layers if layer in self.selected)

    def take_all(self) -> Cost:
        names = {name for group, _ in self.groups for name in self.costs.of_group(self.stack, group)}
        return self.take(*sorted(names))

    def shape(self, module: str) -> str:
        """Return the shape of a module's weights in letters, D → KP, or their number if it is not a projection."""
        sublayer, _, name = module.partition(".")
        if sublayer in self.block.contents and name in (sizes := self.block.contents[sublayer].projection_sizes()):
            return " → ".join(map(self.costs.text, sizes[name]))
        formula = self.block.parameters().get(module)
        return self.costs.text(formula) if formula and formula.symbols else ""


def _block(stack: StackCost, group: LayerGroup) -> str:
    return f"{stack.prefix}blocks.{group.label}"
