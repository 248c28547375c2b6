"""Folder of a program: the program, its signature and a README."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor
from torch.export import ExportedProgram

from archetype import __version__
from archetype.convert.parity import TOLERANCES
from archetype.convert.program import onnx
from archetype.convert.program.trace import Inputs, example_inputs, output_name, run, trace
from archetype.errors import CheckpointError
from archetype.io import atomic
from archetype.models.build import Model

ProgramFormat = Literal["torch-export", "onnx"]
FILES: dict[ProgramFormat, str] = {"torch-export": "model.pt2", "onnx": onnx.FILE}
SIGNATURE = "signature.json"
README = "README.md"
# (batch size, length, source length) of the passes compared; all differ from those of the trace
SIZES = ((1, 1, 2), (2, 33, 5), (5, 2, 40))
USES: dict[ProgramFormat, str] = {
    "torch-export": """import torch

program = torch.export.load("model.pt2").module()
{output} = program({torch})""",
    "onnx": """import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("model.onnx")
({output},) = session.run(None, {{{numpy}}})""",
}


def is_program(format: str) -> TypeGuard[ProgramFormat]:
    """Return whether an export format is a program."""
    return format in FILES


def write_program(model: Model, format: ProgramFormat, folder: Path) -> None:
    """Trace a model, write the folder of its program, then read the program back and compare its output.

    Args:
        model: model to trace, set to evaluation mode.
        folder: existing folder to write into.

    Raises:
        CheckpointError: the model cannot be traced, the format does not support its dtype, or the outputs differ.
    """
    if format == "onnx":
        onnx.check(model.dtype)
        onnx.write(trace(model), folder, output_name(model.spec))
    else:
        torch.export.save(trace(model), folder / FILES[format])
    inputs = example_inputs(model, 2, 3, 4)
    atomic.write_json(folder / SIGNATURE, signature(model, format, inputs))
    atomic.write_bytes(folder / README, readme(model, format, inputs).encode())
    compare(model, format, folder)


def signature(model: Model, format: ProgramFormat, inputs: Inputs) -> dict[str, Any]:
    """Return names, shapes and types of a program's inputs and outputs, and the context length."""
    limits = {} if model.spec.reads_images else {"context_length": model.spec.context_length}
    result = run(model, inputs)
    # the example has different lengths for each, so a size of the result shows which one it is
    letters = {inputs[name].shape[1]: letter for name, letter in _LENGTHS.items() if name in inputs}
    shape = ["batch", *(letters.get(size, size) if axis == 0 else size for axis, size in enumerate(result.shape[1:]))]
    output = {"name": output_name(model.spec), "shape": shape, "type": _type(result)}
    read = [{"name": name, "shape": _shape(name, tensor), "type": _type(tensor)} for name, tensor in inputs.items()]
    return {"file": FILES[format], "inputs": read, "outputs": [output]} | limits


_LENGTHS = {"tokens": "length", "target": "length", "source": "source_length"}


def _shape(name: str, tensor: Tensor) -> list[str | int]:
    if tensor.dim() == 1:  # num_tokens
        return ["batch"]
    return ["batch", *tensor.shape[1:]] if name == "images" else ["batch", _LENGTHS.get(name, "length")]


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def readme(model: Model, format: ProgramFormat, inputs: Inputs) -> str:
    """Return a README that explains the program and shows how to run it."""
    names = {"torch": ", ".join(f"{name}={name}" for name in inputs)}
    names["numpy"] = ", ".join(f'"{name}": {name}' for name in inputs)
    padded = " `num_tokens` counts the tokens of each sequence; outputs at its padding are undefined."
    use = USES[format].format(output=output_name(model.spec), **names)
    return f"""# {model.spec.name or model.spec.kind}

A forward pass as a program of {format}, for any batch size and any length. `{SIGNATURE}` lists the names, shapes
and types of its inputs and outputs.{padded if "num_tokens" in inputs else ""} Written by Archetype {__version__}.

```python
# your inputs: {", ".join(inputs)}
{use}
```
"""


def compare(model: Model, format: ProgramFormat, folder: Path) -> None:
    """Compare a written program with the model for several batch sizes and lengths.

    Raises:
        CheckpointError: the outputs differ.
    """
    if (program := _reader(format, folder)) is None:
        warnings.warn(f"{onnx.FILE}: onnxruntime is not installed, so the program was not verified", stacklevel=2)
        return
    tolerance = ROUNDING * TOLERANCES[str(model.dtype).removeprefix("torch.")]
    for seed, (batch_size, length, source_length) in enumerate(SIZES):
        inputs = example_inputs(model, batch_size, length, source_length, seed)
        expected, result = run(model, inputs).double(), program(inputs).double()
        if result.shape == expected.shape and "num_tokens" in inputs and expected.dim() == 3:
            # padding may attend to nothing, as in a window, where libraries give different numbers
            is_token = torch.arange(expected.shape[1]) < inputs["num_tokens"][:, None]
            expected, result = expected[is_token], result[is_token]
        difference = (result - expected).abs().max() if result.shape == expected.shape else torch.tensor(torch.inf)
        if not difference <= tolerance * expected.abs().max():  # NaN is refused, too
            cause = f"has different outputs than the model for {batch_size} sequences of {length} tokens"
            raise CheckpointError(FILES[format], cause, "use --format archetype-hf, and report this model")


# Factor on the tolerance: libraries sum in another order than tiled kernels.
ROUNDING = 10


def _reader(format: ProgramFormat, folder: Path) -> Callable[[Inputs], Tensor] | None:
    if format == "onnx":
        return onnx.reader(folder)
    with warnings.catch_warnings():  # torch 2.11 warns about the buffer that it reads weights from
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        loaded: ExportedProgram = torch.export.load(folder / FILES[format])
    module = loaded.module()
    return lambda inputs: module(**inputs)
