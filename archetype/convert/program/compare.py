"""Written programs, read back and compared with the model."""

import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from archetype.convert.parity import TOLERANCES
from archetype.convert.program import onnx
from archetype.convert.program.formats import FILES, ProgramFormat
from archetype.convert.program.state import StateLayout
from archetype.convert.program.step import step_inputs
from archetype.convert.program.trace import Inputs, example_inputs, run
from archetype.errors import CheckpointError
from archetype.models.build import Model
from archetype.models.causal import CausalModel

# (batch size, length, source length) of the passes compared; all differ from those of the trace
SIZES = ((1, 1, 2), (2, 33, 5), (5, 2, 40))
# (batch size, tokens of each step) of the texts compared
TEXTS = ((1, (1, 2)), (2, (33, 1, 5)), (5, (2, 1, 1)))
# Factor on the tolerance: libraries sum in another order than tiled kernels.
ROUNDING = 10


@torch.no_grad()  # with gradients, torch's `scan` traces its backward pass in every call
def compare_passes(model: Model, format: ProgramFormat, folder: Path) -> None:
    """Compare a written program with the model for several batch sizes and lengths.

    Raises:
        CheckpointError: the outputs differ.
    """
    if (program := reader(format, folder)) is None:
        return
    for seed, (batch_size, length, source_length) in enumerate(SIZES):
        inputs = example_inputs(model, batch_size, length, source_length, seed)
        expected, (result,) = run(model, inputs), program(inputs)
        is_padded = "num_tokens" in inputs and expected.dim() == 3
        of = f"{batch_size} sequences of {length} tokens"
        _check(format, model.dtype, result, expected, of, inputs["num_tokens"] if is_padded else None)


@torch.no_grad()
def compare_steps(model: CausalModel, layout: StateLayout, format: ProgramFormat, folder: Path) -> None:
    """Compare a written program with the model, step by step, for several batch sizes and numbers of tokens.

    Raises:
        CheckpointError: the outputs differ.
    """
    if (program := reader(format, folder)) is None:
        return
    for seed, (batch_size, lengths) in enumerate(TEXTS):
        room = min(sum(lengths), model.spec.context_length)
        ours, theirs = model.new_state(batch_size, room), layout.first(batch_size, room)
        for length in lengths:
            if (length := min(length, room - int(ours.lengths.max()))) < 1:
                break
            inputs = step_inputs(model, length, theirs, seed)
            result, *after = program(inputs)
            output = model(inputs["tokens"], ours, inputs["num_tokens"])
            assert output.state is not None
            ours, theirs = output.state, dict(zip(theirs, after, strict=True))
            expected = output.hidden if output.logits is None else output.logits
            assert expected is not None
            of = f"{batch_size} sequences of {length} tokens"
            _check(format, model.dtype, result, expected, of, inputs["num_tokens"])


def reader(format: ProgramFormat, folder: Path) -> Callable[[Inputs], list[Tensor]] | None:
    """Return a function from a program's inputs to its outputs, in order; None with a warning without onnxruntime."""
    if format == "onnx":
        if (read := onnx.reader(folder)) is None:
            text = f"{onnx.FILE}: onnxruntime is not installed, so the program was not verified"
            warnings.warn(text, stacklevel=3)
        return read
    with warnings.catch_warnings():  # torch 2.11 warns about the buffer that it reads weights from
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        loaded: ExportedProgram = torch.export.load(folder / FILES[format])
    module = loaded.module()
    return lambda inputs: tree_leaves(module(**inputs))


def _check(
    format: ProgramFormat,
    dtype: torch.dtype,
    result: Tensor,
    expected: Tensor,
    of: str,
    num_tokens: Tensor | None = None,
) -> None:
    tolerance = ROUNDING * TOLERANCES[str(dtype).removeprefix("torch.")]
    result, expected = result.double(), expected.double()
    if result.shape == expected.shape and num_tokens is not None:
        # padding may attend to nothing, as in a window, where libraries give different numbers
        is_token = torch.arange(expected.shape[1]) < num_tokens[:, None]
        expected, result = expected[is_token], result[is_token]
    difference = (result - expected).abs().max() if result.shape == expected.shape else torch.tensor(torch.inf)
    if not difference <= tolerance * expected.abs().max():  # NaN is refused, too
        cause = f"has different outputs than the model for {of}"
        raise CheckpointError(FILES[format], cause, "use --format archetype-hf, and report this model")
