"""Programs of ONNX, written by torch's exporter and run by onnxruntime."""

import logging
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram

from archetype.distribution import install_command
from archetype.errors import CheckpointError, enumeration

FILE = "model.onnx"
LARGE = 2**30  # bytes of weights, above which they are in a file of their own: one of ONNX ends at 2 GiB


def check(dtype: torch.dtype) -> None:
    """Refuse what cannot be written before anything is traced.

    Raises:
        CheckpointError: a library is missing, or onnxruntime has no such numbers.
    """
    if missing := [name for name in ("onnx", "onnxscript") if find_spec(name) is None]:
        raise CheckpointError("--format onnx", f"needs {enumeration(missing)}", install_command("onnx"))
    if dtype == torch.bfloat16:
        raise CheckpointError("--format onnx", "onnxruntime computes nothing in bfloat16", "add --dtype float32")


def write(program: ExportedProgram, folder: Path, output: str) -> None:
    """Translate a program and write it, with its weights beside it where they are large.

    Args:
        program: of torch.export.
        folder: where the files go.
        output: the name of what it gives.

    Raises:
        CheckpointError: names the first operation that has no translation.
    """
    weights = sum(tensor.nbytes for tensor in program.state_dict.values())
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with torch.no_grad(), warnings.catch_warnings():  # of torch's exporter about itself
            warnings.simplefilter("ignore")
            translated = torch.onnx.export(program, dynamo=True, output_names=[output], verbose=False)
            assert translated is not None
            translated.save(folder / FILE, external_data=weights > LARGE)
    except torch.onnx.OnnxExporterError as error:
        cause = f"torch has no translation: {str(error.__cause__ or error).strip().splitlines()[0]:.120}"
        raise CheckpointError("--format onnx", cause, "use --format torch-export") from error
    finally:
        log.setLevel(before)


def reader(folder: Path) -> Callable[[dict[str, Tensor]], Tensor] | None:
    """What runs the program; None where onnxruntime is not installed."""
    if find_spec("onnxruntime") is None:
        return None
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors alone
    session = onnxruntime.InferenceSession(folder / FILE, options, providers=["CPUExecutionProvider"])

    def read(inputs: dict[str, Tensor]) -> Tensor:
        (result,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        return torch.from_numpy(result)

    return read
