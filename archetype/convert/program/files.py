"""The folder of a program: the program itself, what it reads and gives, and how to run it."""

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
# rows, length and the source's length of passes that are compared; none of them is that of the trace
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
    """Whether a format of an export is that of a program."""
    return format in FILES


def write_program(model: Model, format: ProgramFormat, folder: Path) -> None:
    """Trace a model, write its program and what describes it, read the program back and compare.

    Args:
        model: in evaluation mode afterwards.
        format: of the file.
        folder: that has been made.

    Raises:
        CheckpointError: the model cannot be traced, the type of its weights cannot be computed there, or the program
            that was read back gives other numbers.
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
    """The names, shapes and types of what a program reads and gives, and how long texts may be."""
    limits = {} if model.spec.reads_images else {"context_length": model.spec.context_length}
    result = run(model, inputs)
    letters = {inputs[name].shape[1]: letter for name, letter in _LENGTHS.items() if name in inputs}
    shape = ["batch", *(letters.get(size, size) if place == 0 else size for place, size in enumerate(result.shape[1:]))]
    output = {"name": output_name(model.spec), "shape": shape, "type": _type(result)}
    read = [{"name": name, "shape": _shape(name, tensor), "type": _type(tensor)} for name, tensor in inputs.items()]
    return {"file": FILES[format], "inputs": read, "outputs": [output]} | limits


_LENGTHS = {"tokens": "length", "target": "length", "source": "source_length"}


def _shape(name: str, tensor: Tensor) -> list[str | int]:
    if tensor.dim() == 1:
        return ["batch"]
    return ["batch", *tensor.shape[1:]] if name == "images" else ["batch", _LENGTHS.get(name, "length")]


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def readme(model: Model, format: ProgramFormat, inputs: Inputs) -> str:
    """What the program is, and the lines that run it."""
    names = {"torch": ", ".join(f"{name}={name}" for name in inputs)}
    names["numpy"] = ", ".join(f'"{name}": {name}' for name in inputs)
    padded = " `num_tokens` are the tokens of each row before its padding; what is given for padding means nothing."
    use = USES[format].format(output=output_name(model.spec), **names)
    return f"""# {model.spec.name or model.spec.kind}

A whole pass as a program of {format}, for every number of rows and every length. `{SIGNATURE}` has the names, shapes
and types of what it reads and gives.{padded if "num_tokens" in inputs else ""} Written by Archetype {__version__}.

```python
# {", ".join(inputs)}: yours
{use}
```
"""


def compare(model: Model, format: ProgramFormat, folder: Path) -> None:
    """Read a program back, and compare what it gives with the model, for several numbers of rows and lengths.

    Raises:
        CheckpointError: it gives something else.
    """
    if (program := _reader(format, folder)) is None:
        warnings.warn(f"{onnx.FILE}: onnxruntime is not installed, so that it was not run and compared", stacklevel=2)
        return
    tolerance = ROUNDING * TOLERANCES[str(model.dtype).removeprefix("torch.")]
    for seed, (rows, length, source_length) in enumerate(SIZES):
        inputs = example_inputs(model, rows, length, source_length, seed)
        expected, result = run(model, inputs).double(), program(inputs).double()
        if result.shape == expected.shape and "num_tokens" in inputs and expected.dim() == 3:
            # padding that sees no token, as through a window, has no attention, of which each library makes its own
            is_token = torch.arange(expected.shape[1]) < inputs["num_tokens"][:, None]
            expected, result = expected[is_token], result[is_token]
        difference = (result - expected).abs().max() if result.shape == expected.shape else torch.tensor(torch.inf)
        if not difference <= tolerance * expected.abs().max():
            cause = f"gives other numbers than the model for {rows} rows of {length} tokens"
            raise CheckpointError(FILES[format], cause, "keep --format archetype-hf, and report this model")


ROUNDING = 10  # times what one library may differ from another in: masks and steps sum in another order than tiles


def _reader(format: ProgramFormat, folder: Path) -> Callable[[Inputs], Tensor] | None:
    if format == "onnx":
        return onnx.reader(folder)
    with warnings.catch_warnings():  # torch 2.11 reads weights from bytes, which it then warns of
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        loaded: ExportedProgram = torch.export.load(folder / FILES[format])
    module = loaded.module()
    return lambda inputs: module(**inputs)
