"""Comparison of the outputs of Archetype and llama.cpp (llama-cpp-python) for a GGUF file."""

import ctypes
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from archetype.convert.gguf.contents import PLAIN
from archetype.convert.gguf.header import read_header
from archetype.convert.gguf.read import Contents, read_gguf
from archetype.errors import DataError
from archetype.io.tensors import dtype_of
from archetype.models.build import Model
from archetype.models.encoder_decoder.module import EncoderDecoder

LENGTH = 32  # tokens of the random input
# llama.cpp caches keys and values in float16, and rounds activations to 8 bits for quantized weights: Gemma 3 270M
# differed by 0.0013 in float32 and by 0.13 when quantized.
TOLERANCE, BLOCKS_TOLERANCE = 1e-2, 2e-1


@torch.inference_mode()
def outputs(path: Path, dtype: str, text: str | None, overrides: Sequence[str]) -> tuple[Model, Tensor, Tensor]:
    """Run Archetype and llama.cpp on the same tokens.

    Args:
        text: input text (default: random tokens).
        overrides: path=value changes to the specification that Archetype reads.

    Returns:
        The model, then both outputs: logits (T, vocab_size), or an encoder's mean vector (1, d_model).

    Raises:
        DataError: llama-cpp-python is not installed, or cannot read the file.
    """
    library = _library()
    read = read_gguf(path, dtype_of(dtype), overrides=overrides)
    tokens = _tokens(read, text)
    model: Any = read.model
    with _opened(library, path, len(tokens), vectors=model.spec.head.is_absent) as context:
        # llama.cpp reads the source once and then decodes from a start token
        if isinstance(model, EncoderDecoder):
            start = read.special.get("decoder_start_token_id", 0)
            _run(library, library.llama_encode, context, tokens)
            _run(library, library.llama_decode, context, [start])
            ours = model(torch.tensor([[start]]), source=torch.tensor([tokens])).logits[0]
            return model, ours, _logits(library, context, 1, ours.shape[-1])
        _run(library, library.llama_decode, context, tokens)
        output = model(torch.tensor([tokens]))
        if output.logits is None:
            vector = library.llama_get_embeddings_seq(context, 0)
            theirs = np.ctypeslib.as_array(vector, shape=(model.spec.d_model,)).copy()
            return model, output.hidden[0].mean(0, keepdim=True), torch.from_numpy(theirs)[None]
        ours = output.logits[0]
        rows = _logits(library, context, len(tokens), ours.shape[-1])
        # llama.cpp gives each place the logits of the next
        return model, ours, torch.cat((rows[:1], rows[:-1])) if model.spec.head.is_shifted else rows


def tolerance(path: Path) -> float:
    """Return the largest relative difference that llama.cpp's precision explains."""
    types = {entry.type for entry in read_header(path).entries.values()}
    return TOLERANCE if types <= PLAIN.keys() else BLOCKS_TOLERANCE


def _library() -> Any:
    try:
        import llama_cpp
    except ImportError:
        raise DataError("llama-cpp-python", "is not installed", "pip install llama-cpp-python") from None
    warnings.simplefilter("ignore", ResourceWarning)  # it leaves two files open
    return llama_cpp


def _tokens(read: Contents, text: str | None) -> list[int]:
    spec: Any = read.model.spec
    if text is None:
        generator = torch.Generator().manual_seed(0)
        length = min(LENGTH, spec.context_length)
        return torch.randint(min(5, spec.vocab_size - 1), spec.vocab_size, (length,), generator=generator).tolist()
    if read.tokenizer is None:
        raise DataError("tokenizer", "the GGUF file has no tokenizer", "omit --text")
    if not (tokens := read.tokenizer.add_special_tokens(read.tokenizer.encode(text))):
        raise DataError("--text", "is empty", "provide some text")
    return tokens


@contextmanager
def _opened(library: Any, path: Path, length: int, vectors: bool) -> Iterator[Any]:
    # kept in a variable while llama.cpp may call it: ctypes does not keep callbacks alive
    silent = library.llama_log_callback(lambda level, text, user: None)
    library.llama_log_set(silent, ctypes.c_void_p(0))
    library.llama_backend_init()
    model = library.llama_model_load_from_file(str(path).encode(), library.llama_model_default_params())
    if not model:
        raise DataError(str(path), "llama.cpp cannot read it", "is llama-cpp-python new enough for its architecture?")
    settings = library.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = length + 8
    settings.embeddings = vectors
    context = library.llama_init_from_model(model, settings)
    try:
        yield context
    finally:
        library.llama_free(context)
        library.llama_model_free(model)
        library.llama_log_set(library.llama_log_callback(0), ctypes.c_void_p(0))


def _run(library: Any, function: Any, context: Any, tokens: list[int]) -> None:
    batch = library.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for position, token in enumerate(tokens):
        batch.token[position], batch.pos[position] = token, position
        # one sequence, number 0, with logits at every position
        batch.n_seq_id[position], batch.seq_id[position][0], batch.logits[position] = 1, 0, 1
    failed = function(context, batch)
    library.llama_batch_free(batch)
    if failed:
        raise DataError("llama.cpp", f"fails with error {failed}", "try a shorter text")


def _logits(library: Any, context: Any, count: int, vocab_size: int) -> Tensor:
    pointers = (library.llama_get_logits_ith(context, position) for position in range(count))
    logits = [np.ctypeslib.as_array(pointer, shape=(vocab_size,)).copy() for pointer in pointers]
    return torch.from_numpy(np.stack(logits))
