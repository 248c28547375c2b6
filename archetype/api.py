"""The functions of `import archetype`; each loads what it needs when it is called."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

    from archetype.convert.source import Source
    from archetype.cost import CostReport
    from archetype.cost.work import AttentionPairs
    from archetype.language_model import LanguageModel
    from archetype.models import Model
    from archetype.spec import ModelSpec


def load_spec(source: Source) -> ModelSpec:
    """Read a specification.

    Args:
        source: a preset's name, a YAML or JSON file, a run directory, a Hugging Face folder or its name on
            huggingface.co, or plain data (a dict).

    Raises:
        ArchetypeError: nothing of that name exists, or what exists is wrong.
    """
    from archetype.convert.source import open_spec

    return open_spec(source)


def cost_report(
    source: Source,
    batch: int = 1,
    length: int | None = None,
    dtype: str = "bfloat16",
    attention: AttentionPairs = "computed",
) -> CostReport:
    """Count what a specification costs: parameters, FLOPs, state and memory.

    Args:
        source: anything that `load_spec` takes.
        batch: sequences at once.
        length: tokens of each sequence (default: the context length).
        dtype: type of weights and state.
        attention: count every pair of positions that is `computed`, masked or not, or only those that are `allowed`.

    Raises:
        ArchetypeError: the specification is wrong, or the length or the type is not possible.
    """
    from archetype import cost

    return cost.cost_report(load_spec(source), batch, length, dtype, attention)


def build(source: Source, seed: int = 0, device: str | torch.device = "cpu", dtype: torch.dtype | None = None) -> Model:
    """Build a randomly initialised model; the same seed gives the same weights.

    Args:
        source: anything that `load_spec` takes.
        seed: of the initial weights.
        device: cpu, cuda, cuda:N, mps, or meta (shapes without storage).
        dtype: type of the weights (default: float32).

    Raises:
        ArchetypeError: the specification is wrong, or its weights do not fit into memory.
    """
    import torch

    from archetype.models import build
    from archetype.nn.device import resolve_device

    return build(load_spec(source), seed, resolve_device(device, allow_meta=True), dtype or torch.float32)


def load(
    folder: str | Path,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
    allow_pickle: bool = False,
    overrides: Sequence[str] = (),
) -> LanguageModel:
    """Load a model with its tokenizer.

    Args:
        folder: a run directory (spec.yaml), a Hugging Face folder (config.json), or the name of a model on
            huggingface.co, owner/name.
        dtype: type of the weights, such as "bfloat16" (default: as stored).
        device: cpu, cuda, cuda:N or mps.
        allow_pickle: also read pytorch_model.bin, with an unpickler that creates nothing but tensors.
        overrides: assignments path=value, as `archetype set` takes them, to the specification that a Hugging Face
            folder describes; they settle what was assumed of a family that is not registered.

    Raises:
        ArchetypeError: names the file and what is wrong with it.

    Warns:
        UnknownFamily: the family is not registered; the message says what was inferred, and from what.
    """
    from archetype.io.tensors import dtype_of
    from archetype.loading import load

    return load(folder, dtype_of(dtype) if isinstance(dtype, str) else dtype, device, allow_pickle, overrides)


def export(
    lm: LanguageModel,
    folder: str | Path,
    family: str | None = None,
    shard_bytes: int | None = None,
    format: Literal["hf", "gguf"] = "hf",
) -> None:
    """Write a model as a folder for other programs, then read it back and compare every tensor.

    Args:
        lm: what `load` returned.
        folder: must not exist, or be empty; nothing is left there if writing fails.
        family: the published format, such as "llama" (default: as loaded, or the first that can express the model).
        shard_bytes: the size above which the weights are split into several files.
        format: "hf" for transformers and what reads its folders, "gguf" for llama.cpp.

    Raises:
        CheckpointError: names the field that the format cannot express, or the file that cannot be written.
    """
    from archetype.loading import export

    export(lm, folder, family, shard_bytes, format)
