"""Cost report of a specification, with its tables and JSON output."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from archetype.cost.formula import ZERO, Formula, Symbol, constant, symbol, symbol_names, total
from archetype.cost.registry import Complexity
from archetype.cost.work import PHASES, AttentionPairs, Work
from archetype.dtypes import WeightTypes
from archetype.errors import SpecError, enumeration
from archetype.estimate.memory import MemoryCost
from archetype.estimate.rows import COLUMNS, Column, Row, module_rows, num_parameters
from archetype.models.cost import ModelCost, model_cost
from archetype.models.spec import ModelSpec
from archetype.table import Table, quantity, size

CONVENTIONS = {
    "flops": "two for each multiply-add of a matrix product; elementwise work and look-ups are left out",
    "train": "forward and backward: three times the forward pass, including multi-token prediction; with activation "
    "checkpointing, the forward pass of the blocks once more",
    "decode": "one more token at the end of each row",
    "memory.training_state": "weights, gradients and AdamW's moments in float32, without activations",
    "memory.activations": "tensors saved by autograd, and gradients of the logits at the start of the backward pass",
    "memory.weight_copies": "weights of matrix products, cast to the data type in which training computes",
    "memory.training_peak": "peak of a training step: at the start of the backward pass, or in the optimizer step",
    "memory.recomputed": "with activation checkpointing",
    "dtype": "fp8, int8, int4, mxfp4, nvfp4 (with scales) and lossless (12 bits) are types of weights; products are "
    "bfloat16, and so is the state unless state_dtype is set; types of GGUF, and published, differ by tensor",
    "parameters.non_embedding": "all parameters except lookup tables; a head counts unless it shares the table",
}
ATTENTION: dict[AttentionPairs, str] = {
    "computed": "every computed pair, masked or not; for sparse patterns, all pairs of each tile",
    "allowed": "pairs that the pattern and the causal mask allow",
}


@dataclass(frozen=True, repr=False)
class CostReport:
    """Cost of a specification for a batch of sequences of one length, in a data type."""

    spec: ModelSpec
    batch: int
    length: int
    dtype: str
    attention: AttentionPairs
    rows: tuple[Row, ...]
    cost: ModelCost
    memory_cost: MemoryCost  # for any batch and length
    source_length: int | None = None  # tokens per source (None: no source, or as long as the target)

    @cached_property
    def formulas(self) -> Mapping[Column, Formula]:
        """Sum of each column of `rows`."""
        return {column: total(row.formulas[column] for row in self.rows) for column in COLUMNS}

    @cached_property
    def symbols(self) -> Mapping[Symbol, str]:
        """Name of each symbol in the formulas and complexities of the report."""
        formulas = (formula for row in self.rows for formula in row.formulas.values())
        return symbol_names(formulas, {one for mixing in self._mixing for one in mixing.sizes.values()})

    @property
    def legend(self) -> dict[str, tuple[int, str]]:
        """Value and meaning of each symbol."""
        return {name: (symbol.value, symbol.meaning) for symbol, name in self.symbols.items()}

    @property
    def parameters(self) -> dict[str, int]:
        """Parameter counts: all, embedding tables, active per token, and all and active without the tables."""
        whole, active = self.formulas["parameters"].value, self.formulas["active"].value
        embedding = sum(row.parameters for row in self.rows if row.is_table)
        return {
            "total": whole,
            "embedding": embedding,
            "non_embedding": whole - embedding,
            "active": active,
            "active_non_embedding": active - sum(row.active for row in self.rows if row.is_table),
        }

    @property
    def flops(self) -> dict[str, int]:
        """FLOPs of a forward pass, of prefill, of decoding one token per sequence, and of a training step.

        The backward pass takes twice the FLOPs of the forward pass: gradients of input and weight of every product.
        """
        phases = {phase: self.formulas[phase].value for phase in PHASES}
        train = 3 * (self.formulas["forward"] + self._further_flops)
        return phases | {"train": train.value, "train_recomputed": train.value + self.flops_of_blocks}

    @cached_property
    def allowed_flops(self) -> dict[str, int]:
        """`flops`, counting only allowed pairs of positions and no masked pairs."""
        if self.attention == "allowed":
            return self.flops
        types = self.memory_cost.types
        return cost_report(self.spec, self.batch, self.length, types, "allowed", self.source_length).flops

    @property
    def flops_of_blocks(self) -> int:
        """FLOPs of a forward pass through all blocks, which activation checkpointing repeats."""
        return total(row.formulas["forward"] for row in self.rows if row.in_block).value

    @property
    def _further_flops(self) -> Formula:
        # FLOPs of a forward pass that only training computes (multi-token prediction)
        further = self.cost.further_tokens
        return ZERO if further is None else further.flops(self._forward)

    @property
    def _forward(self) -> Work:
        source = None if self.source_length is None else constant(self.source_length)
        length = symbol("T", self.length, self.spec)
        return Work(symbol("B", self.batch), length, "forward", self.attention, source=source)

    @property
    def state(self) -> dict[str, int]:
        """Bytes of the state: growth of one sequence per token, and total of the batch at full length."""
        return {
            "bytes_per_token": self.memory_cost.state_per_token(self.length, self.source_length),
            "bytes": self.memory_cost.state(self.batch, self.length, self.source_length),
        }

    @property
    def state_name(self) -> str:
        """Name of the state; for hybrids, the state of each kind of mixer."""
        return ", ".join(self.cost.state_names)

    @property
    def workload(self) -> str:
        """Input of a pass in words, such as `8 x 1,024 tokens`."""
        if self.cost.reads == "images":
            return f"{self.batch:,} image{'s' * (self.batch > 1)} of {self.length:,} positions"
        source = "" if self.source_length is None else f" and sources of {self.source_length:,}"
        return f"{self.batch} x {self.length:,} tokens{source}"

    @cached_property
    def memory(self) -> dict[str, int]:
        """Bytes of the weights in `dtype`, and of a training step."""
        return self.memory_cost.memory(self.batch, self.length, self.source_length)

    @property
    def complexity(self) -> dict[str, Complexity]:
        """Complexity of each mixer."""
        return {f"{mixing.blocks}.mixer": mixing.written(self.symbols) for mixing in self._mixing}

    @cached_property
    def _mixing(self) -> list["_Mixing"]:
        cost, mixing = self.cost, []
        work = cost.stack_work(self._forward)
        for stack in cost.stacks:
            length, decodes = work[stack.prefix].length, stack in cost.decoding_stacks
            for group in (group for group in stack.groups if "mixer" in group.cost.contents):
                place, mixer = f"{stack.prefix}blocks.{group.label}", group.cost.mixer
                written = " ".join(mixer.complexity)
                sizes = {name: one for name, one in mixer.symbols.items() if re.search(rf"\b{name}\b", written)}
                sizes |= zip("TD", (*length.symbols, *stack.d.symbols), strict=True)
                mixing.append(_Mixing(place, mixer.complexity, sizes, cost.reads, decodes))
        return mixing

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per module with its counts and formulas."""
        return [
            {name: getattr(row, name) for name in ("module", "layers", *COLUMNS)}
            | {"formulas": {column: self._text(row, column) for column in COLUMNS}}
            for row in self.rows
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data, for `--json`."""
        return {
            "name": self.spec.name,
            **{name: getattr(self, name) for name in ("batch", "length", "source_length", "dtype", "attention")},
            "state_dtype": self.memory_cost.state_dtype,
            "conventions": CONVENTIONS | {"attention": ATTENTION[self.attention]},
            **{name: getattr(self, name) for name in ("parameters", "flops", "state", "memory")},
            "formulas": {name: formula.text(self.symbols) for name, formula in self.formulas.items()},
            "symbols": {name: {"value": value, "meaning": meaning} for name, (value, meaning) in self.legend.items()},
            "complexity": {name: orders._asdict() for name, orders in self.complexity.items()},
            "modules": self.records(),
        }

    def tables(self) -> list[Table]:
        """Return the tables of parameters, FLOPs, formulas and sums."""
        tables = [self._parameters_table(), self._flops_table(), self._formulas_table(), self._sums_table()]
        return [table for table in tables if table.rows]

    def table(self) -> str:
        """Return all tables as text, as `archetype cost` prints them."""
        return "\n\n".join(map(str, self.tables()))

    __str__ = __repr__ = table

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())

    def _parameters_table(self) -> Table:
        whole, active = self.parameters["total"], self.parameters["active"]
        rows = [
            [
                row.module,
                self._text(row, "parameters"),
                f"{row.parameters:,}",
                f"{row.parameters / whole:.1%}",
                f"{row.active:,}",
            ]
            for row in self.rows
            if row.parameters
        ]
        rows.append(["total", "", f"{whole:,}", "", f"{active:,}"])
        columns = 5 if active != whole else 4
        headings = ["module", "", "parameters", "share", "active"]
        return Table(headings[:columns], [row[:columns] for row in rows], text_columns=2)

    def _flops_table(self) -> Table:
        columns = 4 if self.cost.generates else 3
        counted = [row for row in self.rows if row.forward or row.decode]
        rows = [[row.module, self._text(row, "forward"), _flops(row.forward), _flops(row.decode)] for row in counted]
        rows += [["total", "", _flops(self.flops["forward"]), _flops(self.flops["decode"])]] if rows else []
        headings = ["module", "", "forward FLOPs", "decode FLOPs"]
        return Table(headings[:columns], [row[:columns] for row in rows], text_columns=2)

    def _formulas_table(self) -> Table:
        # formulas of the totals, the meaning of their symbols, and the complexity of mixers
        formulas = {column: self.formulas[column].text(self.symbols) for column in ("parameters", "forward", "decode")}
        rows = [[column, text] for column, text in formulas.items() if text != "0"]
        symbols = (f"{name} = {value:,} {meaning}" for name, (value, meaning) in self.legend.items())
        rows.append(["where", "; ".join(symbols)])
        blocks: dict[str, list[str]] = {}
        for mixing in self._mixing:
            text, token, state = mixing.written(self.symbols)
            length = mixing.sizes["T"].name  # MegaByte's global model reads patches, its local one bytes
            whole = "an image" if mixing.reads == "images" else "a patch" if length == "J" else "a sequence"
            orders = f"{text} for {whole}"
            if mixing.decodes:
                orders += f", {token} for one more {'patch' if length == 'M' else 'token'}, {state} of state"
            blocks.setdefault(orders, []).append(mixing.blocks)
        for orders, names in blocks.items():
            where = f" ({', '.join(names)})" if len(blocks) > 1 else ""
            rows.append(["mixing", f"{orders}{where}"])
        return Table(["", ""], rows, text_columns=2)

    def _sums_table(self) -> Table:
        state, read = self.state, self.workload
        sizes = {name: size(number) for name, number in self.memory.items()}
        step = f"{_flops(self.flops['train'])}FLOPs for {read} (attention: {self.attention} pairs)"
        types = f"{self.dtype} types" if self.memory_cost.types.by_module else self.dtype
        rows = [["training step", step], ["weights", f"{sizes['weights']} in {types}"]]
        if state["bytes"]:
            held = f"{size(state['bytes_per_token'])} a token, {size(state['bytes'])} for {read}"
            held += f", in {self.memory_cost.state_dtype}" * (self.memory_cost.state_dtype != self.dtype)
            rows.append([f"state ({self.state_name})", held])
        rows.append(["training state", f"{sizes['training_state']}: weights, gradients and AdamW's moments in float32"])
        if self.memory["weight_copies"]:
            copies = f"{sizes['weight_copies']} in {self.memory_cost.compute_dtype}, during forward and backward"
            rows.append(["copies of weights", copies])
        for name, label in (("", "training peak"), ("_recomputed", "  activation checkpointing")):
            activations = f"{sizes[f'activations{name}']} of activations at the start of the backward pass"
            rows.append([label, f"{sizes[f'training_peak{name}']}; {activations}"])
        return Table(["", ""], rows, text_columns=2)

    def _text(self, row: Row, column: Column) -> str:
        return row.formulas[column].text(self.symbols)


class _Mixing(NamedTuple):
    """Complexity of a group of equal mixers."""

    blocks: str  # the blocks that contain them
    complexity: Complexity  # in the letters of the mixer
    sizes: dict[str, Symbol]  # symbols of these letters in this model
    reads: str  # what the model reads
    decodes: bool  # whether the mixers have a state

    def written(self, names: Mapping[Symbol, str]) -> Complexity:
        # the complexity in the letters of the report

        def letter(match: re.Match[str]) -> str:
            size = self.sizes.get(match[0])
            return names[size] if size else match[0]

        return Complexity(*(re.sub(r"\w+", letter, order) for order in self.complexity))


def cost_report(
    model: ModelSpec,
    batch: int = 1,
    length: int | None = None,
    dtype: str | WeightTypes = "bfloat16",
    attention: AttentionPairs = "computed",
    source_length: int | None = None,
    state_dtype: str | None = None,
) -> CostReport:
    """Count parameters, FLOPs, state and memory of a specification.

    Args:
        model: the specification.
        batch: number of sequences.
        length: tokens per sequence (absent: the context length); for an image, its positions.
        dtype: data type of the weights, such as bfloat16 or int4, or one per tensor.
        attention: count every pair of positions that is `computed`, masked or not, or only those that are `allowed`.
        source_length: tokens per source of an encoder-decoder (absent: `length`).
        state_dtype: data type of keys and values, such as fp8 (absent: that of the weights, or bfloat16 below 16 bits,
            which recurrent states have in any case).

    Raises:
        SpecError: a data type or `attention` is unknown, a size is not positive, a length exceeds the model's positions
            or differs from those of an image, or the model reads no source.
    """
    if attention not in ATTENTION:
        raise SpecError(
            "attention", f"{attention!r} is not a way to count attention", f"use {enumeration(ATTENTION, 'or')}"
        )
    if length is None:
        length = model.context_length
    lengths = {"length": length} | ({} if source_length is None else {"source_length": source_length})
    for name, count in ({"batch": batch} | lengths).items():
        if count < 1:
            raise SpecError(name, f"{count} is too small", "use at least 1")
    if source_length is not None and not model.reads_source:
        raise SpecError("source_length", f"{model.name or 'the model'} reads no source", "remove it, or set length")
    cost = model_cost(model)
    memory = MemoryCost(cost, dtype, state_dtype)
    if cost.reads == "images" and length != model.context_length:
        cause = f"an image has {model.context_length:,} positions in {model.name or 'this model'}, not {length:,}"
        raise SpecError("length", cause, "remove it, or change image_size or patch_size")
    for name, count in lengths.items():
        if count > (most := cost.max_length or count):
            cause = f"{count:,} tokens are more than the {most:,} positions that {model.name or 'the model'} has"
            raise SpecError(name, cause, f"use at most {most:,}")
    rows = module_rows(cost, batch, length, attention, source=source_length)
    return CostReport(model, batch, length, memory.types.name, attention, tuple(rows), cost, memory, source_length)


def common_length(models: Sequence[ModelSpec]) -> int | None:
    """Return the shortest context of the models, at which they are compared; None if a model reads images."""
    return None if any(model.reads_images for model in models) else min(model.context_length for model in models)


def total_parameters(model: ModelSpec) -> int:
    """Return the number of parameters of a model, counting shared parameters once."""
    return num_parameters(model_cost(model)).value


def comparison_table(names: Sequence[str], reports: Sequence[CostReport]) -> Table:
    """Return a table with one column per specification."""
    lines: dict[str, Callable[[CostReport], str]] = {
        "input": lambda report: report.workload,
        "parameters": lambda report: f"{report.parameters['total']:,}",
        "active": lambda report: f"{report.parameters['active']:,}",
        "forward FLOPs": lambda report: _flops(report.flops["forward"]),
        "forward FLOPs a token": lambda report: _of_text(report, report.flops["forward"] // report.length),
        "decode FLOPs a token": lambda report: _of_text(report, report.flops["decode"]),
        "state": lambda report: report.state_name,
        "state a token": lambda report: size(report.state["bytes_per_token"]) if report.state_name else "",
        "state of all tokens": lambda report: size(report.state["bytes"]) if report.state_name else "",
        "weights": lambda report: size(report.memory["weights"]),
        "training peak": lambda report: size(report.memory["training_peak"]),
        "  with activation checkpointing": lambda report: size(report.memory["training_peak_recomputed"]),
    }
    return Table(["", *names], [[label, *map(text, reports)] for label, text in lines.items()])


def _of_text(report: CostReport, flops: int) -> str:
    # per sequence; empty for images, which have no tokens
    return "" if report.cost.reads == "images" else _flops(flops // report.batch)


def _flops(count: int) -> str:
    return quantity(count) if count else ""
