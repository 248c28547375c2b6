"""The verbs of `import archetype`, each loading expect_kind what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from archetype.convert.source import Source, open_spec
from archetype.cost import Report, report
from archetype.spec import ModelSpec

if TYPE_CHECKING:
    import torch

    from archetype.language_model import LanguageModel
    from archetype.models import Model


def spec(source: Source) -> ModelSpec:
    """The specification that `source` names.

    Args:
        source: a preset's name, a YAML or JSON file, a run directory, a Hugging Face folder, or plain data.

    Raises:
        ArchetypeError: nothing of that name exists, or what exists is wrong.
    """
    return open_spec(source)


def cost(source: Source, batch: int = 1, length: int | None = None, dtype: str = "bfloat16") -> Report:
    """What a specification costs: parameters, FLOPs, state and memory.

    Args:
        source: anything that `spec` takes.
        batch: rows at once.
        length: tokens of each row (absent: the context length).
        dtype: type of weights and state.
    """
    return report(spec(source), batch, length, dtype)


def build(source: Source, seed: int = 0, device: str = "cpu", dtype: torch.dtype | None = None) -> Model:
    """A randomly initialised model, the same for the same seed.

    Args:
        source: anything that `spec` takes.
        seed: of the initial weights.
        device: cpu, cuda, or meta (no storage).
        dtype: type of the weights (absent: float32).
    """
    import torch

    from archetype.models import build

    return build(spec(source), seed, device, dtype or torch.float32)


def load(
    folder: str | Path,
    dtype: str | torch.dtype | None = None,
    device: str = "cpu",
    pickled: bool = False,
    changes: Sequence[str] = (),
) -> LanguageModel:
    """The model and tokenizer in a run directory or a Hugging Face folder, or of huggingface.co.

    Args:
        folder: holds spec.yaml or config.json; or the name of a model there, owner/name.
        dtype: type of the weights, such as "bfloat16" (absent: as stored).
        device: where they go.
        pickled: also read pytorch_model.bin, by an unpickler that makes nothing but tensors.
        changes: path=value, what is to be read otherwise than the files say; of a family that is not registered they
            settle what was assumed.

    Warns:
        UnknownFamily: the family is not registered; the message says what the reading rests on.
    """
    from archetype.io.tensors import dtype_of
    from archetype.loading import load

    return load(folder, dtype_of(dtype) if isinstance(dtype, str) else dtype, device, pickled, changes)


def export(
    lm: LanguageModel,
    folder: str | Path,
    family: str | None = None,
    shard_bytes: int | None = None,
    format: Literal["hf", "gguf"] = "hf",
) -> None:
    """Write a model as a folder for other programs, read back and compared before it is called done.

    Args:
        lm: what `load` gave.
        folder: must not exist, or be empty.
        family: such as llama (absent: as loaded, or the first that can express it).
        shard_bytes: the size above which the weights go into several files.
        format: hf for transformers and what reads its folders, gguf for llama.cpp.
    """
    from archetype.loading import export

    export(lm, folder, family, shard_bytes, format)


def __getattr__(name: str) -> Any:
    if name == "LanguageModel":
        from archetype.language_model import LanguageModel

        return LanguageModel
    raise AttributeError(f"module 'archetype.api' has no attribute {name!r}")
