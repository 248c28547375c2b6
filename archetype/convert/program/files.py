"""Folder of a program: the program, its signature and a README."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from archetype.convert.program import onnx, step
from archetype.convert.program.compare import compare_passes, compare_steps
from archetype.convert.program.formats import FILES, README, SIGNATURE, ProgramFormat
from archetype.convert.program.readme import pass_readme, step_readme
from archetype.convert.program.state import BATCH, StateLayout
from archetype.convert.program.step import trace_step
from archetype.convert.program.trace import Inputs, example_inputs, output_name, result_of, run, trace
from archetype.io import atomic
from archetype.models.build import Model
from archetype.models.causal import CausalModel


def write_program(model: Model, format: ProgramFormat, folder: Path, with_state: bool = False) -> None:
    """Trace a model, write the folder of its program, then read the program back and compare its output.

    Args:
        model: model to trace, set to evaluation mode.
        folder: existing folder to write into.
        with_state: write a step with its state as inputs and outputs, instead of a pass over whole sequences.

    Raises:
        CheckpointError: the model cannot be traced, the format does not support its dtype, or the outputs differ.
    """
    if format == "onnx":
        onnx.check(model.dtype)
    if with_state:
        step.check(model.spec)
        assert isinstance(model, CausalModel)
        _write_step(model, format, folder)
        return
    _save(trace(model), format, folder, [output_name(model.spec)])
    inputs = example_inputs(model, 2, 3, 4)
    atomic.write_json(folder / SIGNATURE, signature(model, format, inputs))
    atomic.write_bytes(folder / README, pass_readme(model.spec, format, inputs).encode())
    compare_passes(model, format, folder)


def _write_step(model: CausalModel, format: ProgramFormat, folder: Path) -> None:
    program, layout = trace_step(model)
    entries = step_signature(model, format, layout)
    inputs, outputs = (
        [entry["name"] for entry in entries[of]] + [entry[of.removesuffix("s")] for entry in entries["state"]]
        for of in ("inputs", "outputs")
    )
    _save(program, format, folder, outputs, inputs)
    atomic.write_json(folder / SIGNATURE, entries)
    atomic.write_bytes(folder / README, step_readme(model.spec, format).encode())
    compare_steps(model, layout, format, folder)


def _save(
    program: ExportedProgram, format: ProgramFormat, folder: Path, outputs: list[str], inputs: list[str] | None = None
) -> None:
    if format == "onnx":
        onnx.write(program, folder, outputs, inputs)
    else:
        torch.export.save(program, folder / FILES[format])


def signature(model: Model, format: ProgramFormat, inputs: Inputs) -> dict[str, Any]:
    """Return names, shapes and types of a program's inputs and outputs, and the context length."""
    limits = {} if model.spec.reads_images else {"context_length": model.spec.context_length}
    result = run(model, inputs)
    # the example has different lengths for each, so a size of the result shows which one it is
    letters = {inputs[name].shape[1]: letter for name, letter in _LENGTHS.items() if name in inputs}
    shape = [BATCH, *(letters.get(size, size) if axis == 0 else size for axis, size in enumerate(result.shape[1:]))]
    output = {"name": output_name(model.spec), "shape": shape, "type": _type(result)}
    read = [{"name": name, "shape": _shape(name, tensor), "type": _type(tensor)} for name, tensor in inputs.items()]
    return {"file": FILES[format], "inputs": read, "outputs": [output]} | limits


def step_signature(model: CausalModel, format: ProgramFormat, layout: StateLayout) -> dict[str, Any]:
    """Return the signature of a step: also the tensors of its state, their growth and their first values."""
    with torch.no_grad():
        result = result_of(model(torch.zeros(1, 1, dtype=torch.long)))
    output = {"name": output_name(model.spec), "shape": [BATCH, "length", result.shape[-1]], "type": _type(result)}
    read = [
        {"name": "tokens", "shape": [BATCH, "length"], "type": "int64"},
        {"name": "num_tokens", "shape": [BATCH], "type": "int64"},
    ]
    limits = {"context_length": model.spec.context_length, "reread_past": sorted(model.spec.rereads_past)}
    return {"file": FILES[format], "inputs": read, "outputs": [output]} | layout.entries() | limits


_LENGTHS = {"tokens": "length", "target": "length", "source": "source_length"}


def _shape(name: str, tensor: Tensor) -> list[str | int]:
    if tensor.dim() == 1:  # num_tokens
        return [BATCH]
    return [BATCH, *tensor.shape[1:]] if name == "images" else [BATCH, _LENGTHS.get(name, "length")]


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
