"""The whole cost of a specification, as one value, as JSON and as a table by module."""

import re
from dataclasses import dataclass
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
        counts = parameters.of_model(self.spec)
        total = sum(counts.values())
        return {
            "total": total,
            "embedding": counts["embedding.token"] + counts["embedding.position"],
            "active": total,
        }

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
    counted = parameters.of_model(model)
    forward = flops.of_model(model, batch, length, length)
    decode = flops.of_model(model, batch, 1, length)
    stacks = _alike_layers(model)
    rows: dict[str, Row] = {}
    for name in _in_order(counted, forward):
        group, layers = _group(name, stacks)
        old = rows.get(group, Row(group, layers, 0, 0, 0))
        rows[group] = Row(
            group,
            layers,
            old.parameters + counted.get(name, 0),
            old.forward + forward.get(name, 0),
            old.decode + decode.get(name, 0),
        )
    used = tuple(row for row in rows.values() if row.parameters or row.forward)
    return Report(model, batch, length, dtype, used)


def total_parameters(model: spec.ModelSpec) -> int:
    """All parameters of a model."""
    return sum(parameters.of_model(model).values())


def _in_order(counted: dict[str, int], operations: dict[str, int]) -> list[str]:
    """All module names, a layer's products without weights behind its projections."""
    names = list(counted)
    for name in operations:
        if name not in counted:
            parent = name.rpartition(".")[0]
            last = max(i for i, other in enumerate(names) if other.startswith(parent + "."))
            names.insert(last + 1, name)
    return names


def _alike_layers(model: spec.ModelSpec) -> list[tuple[range, int]]:
    """Where each run of equal layers stands."""
    found: list[tuple[range, int]] = []
    for index, layer in enumerate(model.layers):
        if found and model.layers[found[-1][0].start] == layer:
            found[-1] = (range(found[-1][0].start, index + 1), len(found[-1][0]) + 1)
        else:
            found.append((range(index, index + 1), 1))
    return found


def _group(name: str, stacks: list[tuple[range, int]]) -> tuple[str, int]:
    """blocks.7.mixer.q -> blocks.0-31.mixer.q, and how many layers that is."""
    match = re.fullmatch(r"blocks\.(\d+)\.(.*)", name)
    if match is None:
        return name, 1
    where, layers = next(stack for stack in stacks if int(match[1]) in stack[0])
    label = f"{where.start}-{where.stop - 1}" if layers > 1 else f"{where.start}"
    return f"blocks.{label}.{match[2]}", layers
