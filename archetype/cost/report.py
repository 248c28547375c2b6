"""The whole cost of a specification, as one value, as JSON and as a table by module."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from archetype import spec
from archetype.cost import flops, memory, parameters


@dataclass(frozen=True)
class Row:
    """One module, or one module of several alike layers together."""

    module: str
    layers: int
    parameters: int
    forward: int
    decode: int


@dataclass(frozen=True)
class Report:
    """What a specification costs, for a batch of rows of a length, in a data type."""

    spec: spec.ModelSpec
    batch: int
    length: int
    dtype: str
    rows: tuple[Row, ...]

    @property
    def parameters(self) -> dict[str, int]:
        """Total, those in embedding tables, and those active for one token."""
        total = sum(row.parameters for row in self.rows)
        tables = parameters.embedding(self.spec)
        return {"total": total, "embedding": tables["token"] + tables["position"], "active": total}

    @property
    def flops(self) -> dict[str, int]:
        """Forward over the whole length, a training step on it, and one decoded token at its end."""
        forward = sum(row.forward for row in self.rows)
        return {"forward": forward, "train": flops.training(forward), "decode": sum(row.decode for row in self.rows)}

    @property
    def state(self) -> dict[str, int]:
        """Bytes that decoding keeps: for each further token of a row, and for all rows at full length."""
        at_length = memory.state_bytes(self.spec, 1, self.length, self.dtype)
        before = memory.state_bytes(self.spec, 1, self.length - 1, self.dtype)
        return {"bytes_per_token": at_length - before, "bytes": self.batch * at_length}

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of the weights in `dtype`; and what training holds in float32, without activations."""
        total = self.parameters["total"]
        held = memory.training_bytes(total)
        return {
            "weights": total * memory.bytes_of(self.dtype),
            "gradients": held["gradients"],
            "optimizer": held["optimizer"],
            "training": sum(held.values()),
        }

    def to_json(self) -> dict[str, Any]:
        """Plain data, for `--json`."""
        return {
            "name": self.spec.name,
            "batch": self.batch,
            "length": self.length,
            "dtype": self.dtype,
            "conventions": {
                "flops": "two for each multiply-add of a matrix product; attention in full, masked or not",
                "train": "forward and backward, three times forward",
                "memory.training": "weights, gradients and AdamW's moments in float32, without activations",
            },
            "parameters": self.parameters,
            "flops": self.flops,
            "state": self.state,
            "memory": self.memory,
            "modules": [vars(row) for row in self.rows],
        }


def report(model: spec.ModelSpec, batch: int = 1, length: int | None = None, dtype: str = "bfloat16") -> Report:
    """Count everything. `length` is the context length where it is not given."""
    length = length or model.context_length
    memory.bytes_of(dtype)
    rows = [row for row in _rows(model, batch, length) if row.parameters or row.forward]
    return Report(model, batch, length, dtype, tuple(rows))


def total_parameters(model: spec.ModelSpec) -> int:
    """All parameters of a model."""
    return sum(parameters.of_model(model).values())


def _rows(model: spec.ModelSpec, batch: int, length: int) -> Iterator[Row]:
    """A row for each module, or for each module of a run of equal layers."""
    for name, count in parameters.embedding(model).items():
        yield Row(f"embedding.{name}", 1, count, 0, 0)
    for where, layer in _runs_of_equal(model.layers):
        counted = parameters.block(layer, model.d_model)
        forward = flops.block(layer, model.d_model, batch, length, length)
        decode = flops.block(layer, model.d_model, batch, 1, length)
        label = f"{where.start}-{where.stop - 1}" if len(where) > 1 else f"{where.start}"
        for name in _in_order(counted, forward):
            counts = (counts.get(name, 0) * len(where) for counts in (counted, forward, decode))
            yield Row(f"blocks.{label}.{name}", len(where), *counts)
    yield Row("final_norm", 1, parameters.norm(model.final_norm, model.d_model), 0, 0)
    head = (flops.head(model, batch * length), flops.head(model, batch))
    yield Row("lm_head", 1, parameters.head(model), *head)


def _in_order(counted: dict[str, int], operations: dict[str, int]) -> list[str]:
    """A layer's modules, the mixer's products that have no weights behind its projections."""
    weightless = [name for name in operations if name not in counted]
    last = max(index for index, name in enumerate(counted) if name.startswith("mixer."))
    names = list(counted)
    return names[: last + 1] + weightless + names[last + 1 :]


def _runs_of_equal(layers: tuple[spec.Block, ...]) -> Iterator[tuple[range, spec.Block]]:
    """Where each run of equal layers stands, and the layer."""
    start = 0
    for layer, run in groupby(layers):
        count = sum(1 for _ in run)
        yield range(start, start + count), layer
        start += count
