"""The whole cost of a specification, as one value and as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from archetype import spec
from archetype.cost import complexity, memory, passes, state
from archetype.cost.dtypes import bytes_of
from archetype.cost.flops import Pairs
from archetype.cost.formula import MEANINGS, Formula, Symbol, names, total
from archetype.cost.layers import alike
from archetype.cost.passes import Work
from archetype.cost.rows import COLUMNS, Column, Row, all_parameters, column, rows

CONVENTIONS = {
    "flops": "two for each multiply-add of a matrix product; elementwise work and look-ups are left out",
    "train": "forward and backward, three times forward; recomputed, the blocks' forward once more",
    "decode": "one more token at the end of each row",
    "memory.training": "weights, gradients and AdamW's moments in float32, without activations",
    "memory.activations": "what autograd keeps, and the logits while the loss is computed",
}
ATTENTION: dict[Pairs, str] = {
    "full": "every pair that is computed, masked or not; of sparse patterns all of every tile",
    "half": "the pairs that pattern and direction allow",
}


@dataclass(frozen=True)
class Report:
    """What a specification costs, for a batch of rows of a length, in a data type."""

    spec: spec.ModelSpec
    batch: int
    length: int
    dtype: str
    attention: Pairs
    rows: tuple[Row, ...]

    @cached_property
    def formulas(self) -> Mapping[Column, Formula]:
        """The sum of every column."""
        return {name: column(self.rows, name) for name in COLUMNS}

    @cached_property
    def symbols(self) -> Mapping[Symbol, str]:
        """How the report writes each symbol."""
        return names(formula for row in self.rows for formula in row.formulas.values())

    @property
    def legend(self) -> dict[str, tuple[int, str]]:
        """The value and the meaning of each symbol."""
        return {name: (symbol.value, MEANINGS[symbol.name]) for symbol, name in self.symbols.items()}

    @property
    def parameters(self) -> dict[str, int]:
        """Total, those in embedding tables, and those active for one token."""
        tables = ("embedding.token", "embedding.position", "embedding.token_type")
        return {
            "total": self.formulas["parameters"].value,
            "embedding": sum(row.parameters for row in self.rows if row.module.endswith(tables)),
            "active": self.formulas["active"].value,
        }

    @property
    def flops(self) -> dict[str, int]:
        """Of a whole text, of its prefill, of one more token, and of a training step."""
        phases = {phase: self.formulas[phase].value for phase in passes.PHASES}
        blocks = total(row.formulas["forward"] for row in self.rows if row.block)
        forward = self.formulas["forward"]
        recomputed = passes.training(forward, blocks).value
        return phases | {"train": passes.training(forward).value, "train_recomputed": recomputed}

    @property
    def state(self) -> dict[str, int]:
        """Bytes that decoding keeps: for each further token of a row, and for all rows at full length."""
        return {
            "bytes_per_token": state.bytes_per_token(self.spec, self.length, self.dtype),
            "bytes": state.state_bytes(self.spec, self.batch, self.length, self.dtype),
        }

    @cached_property
    def memory(self) -> dict[str, int]:
        """Bytes of the weights in `dtype`, and what training holds."""
        return memory.of_model(self.spec, self.batch, self.length, self.dtype).to_json()

    @property
    def complexity(self) -> dict[str, complexity.Complexity]:
        """How the work of each mixer grows."""
        return {
            f"{stack.prefix}blocks.{group.label}.mixer": complexity.mixer(group.block.mixer)
            for stack in self.spec.stacks
            for group in alike(stack.layers)
        }

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
            "modules": [self._module(row) for row in self.rows],
        }

    def _module(self, row: Row) -> dict[str, Any]:
        counts = {name: formula.value for name, formula in row.formulas.items()}
        formulas = {name: formula.text(self.symbols) for name, formula in row.formulas.items()}
        return {"module": row.module, "layers": row.layers} | counts | {"formulas": formulas}


def report(
    model: spec.ModelSpec,
    batch: int = 1,
    length: int | None = None,
    dtype: str = "bfloat16",
    attention: Pairs = "full",
) -> Report:
    """Count everything.

    Args:
        model: what to count.
        batch: rows at once.
        length: tokens of each row, of a source too (absent: the context length). A picture has its own.
        dtype: type of weights and state.
        attention: whether to count every pair that is computed, or only the allowed ones.
    """
    if length is None or isinstance(model, spec.VisionEncoder):
        length = model.context_length
    bytes_of(dtype)
    return Report(model, batch, length, dtype, attention, tuple(rows(model, Work(batch, length, attention))))


def total_parameters(model: spec.ModelSpec) -> int:
    """All parameters of a model."""
    return all_parameters(model).value
