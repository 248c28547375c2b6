"""The whole cost of a specification: as a value, as JSON, and as tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from archetype import spec
from archetype.cost.dtypes import bytes_of
from archetype.cost.formula import MEANINGS, Formula, Symbol, symbol_names, total
from archetype.cost.memory import MemoryCost
from archetype.cost.model import model_cost
from archetype.cost.registry import Complexity
from archetype.cost.rows import COLUMNS, Column, Row, column_total, module_rows, num_parameters
from archetype.cost.work import PHASES, AttentionPairs
from archetype.errors import SpecError
from archetype.table import Table, quantity, size

CONVENTIONS = {
    "flops": "two for each multiply-add of a matrix product; elementwise work and look-ups are left out",
    "train": "forward and backward, three times forward; recomputed, the blocks' forward once more",
    "decode": "one more token at the end of each row",
    "memory.training": "weights, gradients and AdamW's moments in float32, without activations",
    "memory.activations": "what autograd saves, and the logits while the loss is computed",
}
ATTENTION: dict[AttentionPairs, str] = {
    "computed": "every pair that is computed, masked or not; of sparse patterns all of every tile",
    "allowed": "the pairs that pattern and direction allow",
}
FORMER_ATTENTION = {"full": "computed", "half": "allowed"}


@dataclass(frozen=True, repr=False)
class CostReport:
    """What a specification costs, for a batch of rows of a length, in a data type."""

    spec: spec.ModelSpec
    batch: int
    length: int
    dtype: str
    attention: AttentionPairs
    rows: tuple[Row, ...]

    @cached_property
    def formulas(self) -> Mapping[Column, Formula]:
        """The sum of every column."""
        return {column: column_total(self.rows, column) for column in COLUMNS}

    @cached_property
    def symbols(self) -> Mapping[Symbol, str]:
        """How the report writes each symbol."""
        return symbol_names(formula for row in self.rows for formula in row.formulas.values())

    @property
    def legend(self) -> dict[str, tuple[int, str]]:
        """The value and the meaning of each symbol."""
        return {name: (symbol.value, MEANINGS[symbol.name]) for symbol, name in self.symbols.items()}

    @property
    def parameters(self) -> dict[str, int]:
        """Total, those in embedding tables, and those active for one token."""
        return {
            "total": self.formulas["parameters"].value,
            "embedding": sum(row.parameters for row in self.rows if row.is_table),
            "active": self.formulas["active"].value,
        }

    @property
    def flops(self) -> dict[str, int]:
        """Of a forward pass over whole rows, of their prefill, of one more token each, and of a training step.

        Backward takes twice the forward pass: the gradients of input and weight of every product.
        """
        phases = {phase: self.formulas[phase].value for phase in PHASES}
        train = 3 * self.formulas["forward"]
        blocks = total(row.formulas["forward"] for row in self.rows if row.in_block)
        return phases | {"train": train.value, "train_recomputed": (train + blocks).value}

    @property
    def state(self) -> dict[str, int]:
        """Bytes that decoding keeps: for each further token of a row, and for all rows at full length."""
        return {
            "bytes_per_token": self.memory_cost.state_per_token(self.length),
            "bytes": self.memory_cost.state(self.batch, self.length),
        }

    @cached_property
    def memory(self) -> dict[str, int]:
        """Bytes of the weights in `dtype`, and what training holds."""
        return self.memory_cost.memory(self.batch, self.length)

    @property
    def complexity(self) -> dict[str, Complexity]:
        """How the work of each mixer grows."""
        return {
            f"{stack.prefix}blocks.{group.label}.mixer": group.cost.mixer.complexity
            for stack in self.memory_cost.cost.stacks
            for group in stack.groups
        }

    @cached_property
    def memory_cost(self) -> MemoryCost:
        """Memory for any batch and length."""
        return MemoryCost(self.spec, self.dtype)

    def to_json(self) -> dict[str, Any]:
        """Plain data, for `--json`."""
        return {
            "name": self.spec.name,
            "batch": self.batch,
            "length": self.length,
            "dtype": self.dtype,
            "attention": self.attention,
            "conventions": CONVENTIONS | {"attention": ATTENTION[self.attention]},
            "parameters": self.parameters,
            "flops": self.flops,
            "state": self.state,
            "memory": self.memory,
            "formulas": {name: formula.text(self.symbols) for name, formula in self.formulas.items()},
            "symbols": {name: {"value": value, "meaning": meaning} for name, (value, meaning) in self.legend.items()},
            "complexity": {name: orders._asdict() for name, orders in self.complexity.items()},
            "modules": [self._row_to_json(row) for row in self.rows],
        }

    def _row_to_json(self, row: Row) -> dict[str, Any]:
        counts = {name: formula.value for name, formula in row.formulas.items()}
        formulas = {name: formula.text(self.symbols) for name, formula in row.formulas.items()}
        return {"module": row.module, "layers": row.layers} | counts | {"formulas": formulas}

    def tables(self) -> list[Table]:
        """Parameters by module, FLOPs by module, formulas, and sums."""
        tables = [self._parameters_table(), self._flops_table(), self._formulas_table(), self._sums_table()]
        return [table for table in tables if table.rows]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())

    def _parameters_table(self) -> Table:
        whole, active = self.parameters["total"], self.parameters["active"]
        headings = ["module", "", "parameters", "share", "active"]
        rows = [
            [row.module, self._text(row, "parameters"), f"{row.parameters:,}", f"{row.parameters / whole:.1%}",
             f"{row.active:,}"]
            for row in self.rows if row.parameters
        ]  # fmt: skip
        rows.append(["total", "", f"{whole:,}", "", f"{active:,}"])
        columns = 5 if active != whole else 4
        return Table(headings[:columns], [row[:columns] for row in rows], text_columns=2)

    def _flops_table(self) -> Table:
        headings = ["module", "", "forward FLOPs", "decode FLOPs"]
        rows = [
            [row.module, self._text(row, "forward"), _flops(row.forward), _flops(row.decode)]
            for row in self.rows
            if row.forward or row.decode
        ]
        if rows:
            rows.append(["total", "", _flops(self.flops["forward"]), _flops(self.flops["decode"])])
        columns = 4 if self.memory_cost.cost.generates else 3
        return Table(headings[:columns], [row[:columns] for row in rows], text_columns=2)

    def _formulas_table(self) -> Table:
        """The formulas of the totals, what their symbols stand for, and how mixers grow."""
        formulas = {column: self.formulas[column] for column in ("parameters", "forward", "decode")}
        rows = [[column, formula.text(self.symbols)] for column, formula in formulas.items() if formula]
        symbols = (f"{name} = {value:,} {meaning}" for name, (value, meaning) in self.legend.items())
        rows.append(["where", "; ".join(symbols)])
        blocks: dict[Complexity, list[str]] = {}
        for name, complexity in self.complexity.items():
            blocks.setdefault(complexity, []).append(name.removesuffix(".mixer"))
        for (text, token, state), names in blocks.items():
            where = f" ({', '.join(names)})" if len(blocks) > 1 else ""
            rows.append(["mixing", f"{text} for a text, {token} for one more token, {state} of state{where}"])
        return Table(["", ""], rows, text_columns=2)

    def _sums_table(self) -> Table:
        memory, state = self.memory, self.state
        tokens = f"{self.batch} x {self.length:,} tokens"
        step = f"{_flops(self.flops['train'])}FLOPs for {tokens} (attention: {self.attention} pairs)"
        rows = [["training step", step], ["weights", f"{size(memory['weights'])} in {self.dtype}"]]
        if state["bytes"]:
            rows.append(["state", f"{size(state['bytes_per_token'])} a token, {size(state['bytes'])} for {tokens}"])
        weights, activations, recomputed = (
            size(memory[name]) for name in ("training", "activations", "activations_recomputed")
        )
        training = f"{weights} for weights, gradients and AdamW in float32, and {activations} of activations"
        rows.append(["training memory", f"{training} ({recomputed} with blocks computed again)"])
        return Table(["", ""], rows, text_columns=2)

    def _text(self, row: Row, column: Column) -> str:
        return row.formulas[column].text(self.symbols)


def cost_report(
    model: spec.ModelSpec,
    batch: int = 1,
    length: int | None = None,
    dtype: str = "bfloat16",
    attention: AttentionPairs = "computed",
) -> CostReport:
    """Count parameters, FLOPs, state and memory of a specification.

    Args:
        model: the specification.
        batch: rows at once.
        length: tokens of each row, and of its source (absent: the context length). A picture has its own.
        dtype: type of weights and state, such as bfloat16.
        attention: count every pair of positions that is `computed`, masked or not, or only those that are `allowed`.

    Raises:
        SpecError: the dtype or the way to count attention is unknown, or a size is not positive.
    """
    if attention not in ATTENTION:
        former = FORMER_ATTENTION.get(attention)
        remedy = f"it is now called {former}" if former else f"use {' or '.join(ATTENTION)}"
        raise SpecError("attention", f"{attention!r} is not a way to count attention", remedy)
    if length is None or isinstance(model, spec.VisionEncoder):
        length = model.context_length
    for name, count in (("batch", batch), ("length", length)):
        if count < 1:
            raise SpecError(name, f"{count} is too small", "use at least 1")
    bytes_of(dtype)
    rows = module_rows(model_cost(model), batch, length, attention)
    return CostReport(model, batch, length, dtype, attention, tuple(rows))


def total_parameters(model: spec.ModelSpec) -> int:
    """All parameters of a model, shared ones once."""
    return num_parameters(model_cost(model)).value


def comparison_table(names: Sequence[str], reports: Sequence[CostReport]) -> Table:
    """One column for each specification."""
    rows = [
        ["rows x tokens", *(f"{report.batch} x {report.length:,}" for report in reports)],
        ["parameters", *(f"{report.parameters['total']:,}" for report in reports)],
        ["active", *(f"{report.parameters['active']:,}" for report in reports)],
        ["forward FLOPs", *(_flops(report.flops["forward"]) for report in reports)],
        ["forward FLOPs a token", *(_flops(r.flops["forward"] // (r.batch * r.length)) for r in reports)],
        ["decode FLOPs a token", *(_flops(report.flops["decode"] // report.batch) for report in reports)],
        ["state a token", *(size(report.state["bytes_per_token"]) for report in reports)],
        ["state", *(size(report.state["bytes"]) for report in reports)],
        ["weights", *(size(report.memory["weights"]) for report in reports)],
        ["training memory", *(size(report.memory["training_peak"]) for report in reports)],
        ["  with blocks computed again", *(size(report.memory["training_peak_recomputed"]) for report in reports)],
    ]
    return Table(["", *names], rows)


def _flops(count: int) -> str:
    return quantity(count) if count else ""
