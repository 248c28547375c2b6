"""ONNX programs, written with torch's exporter and run with onnxruntime."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from archetype.distribution import install_command
from archetype.errors import CheckpointError, enumeration

FILE = "model.onnx"
LARGE = 2**30  # bytes; larger weights go into a second file, since an ONNX file is limited to 2 GiB


def check(dtype: torch.dtype) -> None:
    """Check before the export whether it can succeed.

    Raises:
        CheckpointError: a library is missing, or onnxruntime does not support the dtype.
    """
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        raise CheckpointError("--format onnx", f"needs {enumeration(missing)}", install_command("onnx"))
    if dtype == torch.bfloat16:
        raise CheckpointError("--format onnx", "onnxruntime does not support bfloat16", "add --dtype float32")


def write(program: ExportedProgram, folder: Path, outputs: list[str], inputs: list[str] | None = None) -> None:
    """Convert a program to ONNX and write it to a file.

    Args:
        outputs: names for the program's outputs, in order.
        inputs: names for its inputs (absent: those of the traced arguments).

    Raises:
        CheckpointError: torch cannot convert an operation. The message names the first such operation.
    """
    weights = sum(tensor.nbytes for tensor in program.state_dict.values())
    try:
        with torch.no_grad(), _quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            translated = torch.onnx.export(
                program, dynamo=True, input_names=inputs, output_names=outputs, verbose=False
            )
            assert translated is not None
            translated.save(folder / FILE, external_data=weights > LARGE)
    except torch.onnx.OnnxExporterError as error:
        cause = f"torch cannot translate it: {str(error.__cause__ or error).strip().splitlines()[0]:.120}"
        raise CheckpointError("--format onnx", cause, "use --format torch-export") from error


@contextmanager
def _quiet() -> Iterator[None]:
    # the exporter and its optimizer warn about their own internals
    logs = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [log.level for log in logs]
    try:
        for log in logs:
            log.setLevel(logging.ERROR)
        yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def reader(folder: Path) -> Callable[[dict[str, Any]], list[Tensor]] | None:
    """Return a function that runs an ONNX program; None if onnxruntime is not installed.

    A dictionary among its inputs, such as a state, is passed as one input for each tensor: `state.` and the key.
    """
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    session = onnxruntime.InferenceSession(folder / FILE, options, providers=["CPUExecutionProvider"])

    def read(inputs: dict[str, Any]) -> list[Tensor]:
        tensors: dict[str, Tensor] = {}
        for name, value in inputs.items():
            tensors |= {name: value} if isinstance(value, Tensor) else {f"{name}.{key}": x for key, x in value.items()}
        return [torch.from_numpy(x) for x in session.run(None, {name: x.numpy() for name, x in tensors.items()})]

    return read
