"""A model of Llama's shape with the same random weights in Archetype and in transformers."""

import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import archetype
from archetype.api.language_model import LanguageModel
from benchmarks.shapes import shape


def both(name: str, dtype: torch.dtype) -> tuple[LanguageModel, PreTrainedModel]:
    """Ours, and the same exported to and loaded by transformers."""
    built = archetype.build(shape(name), dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        archetype.export(LanguageModel(built.spec, built), Path(folder) / "model")
        theirs = AutoModelForCausalLM.from_pretrained(Path(folder) / "model", dtype=dtype)
    return LanguageModel(built.spec, built.eval()), theirs.eval()
