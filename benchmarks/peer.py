"""A model of Llama's shape with the same random weights in Archetype and in transformers."""

import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

import archetype
from archetype.families.llama import llama
from archetype.language_model import LanguageModel
from archetype.spec import Decoder

SHAPES = {
    "15M": {"vocab_size": 4096, "d_model": 384, "d_ff": 1024, "num_layers": 6, "num_heads": 6},
    "110M": {"vocab_size": 32_000, "d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12, "num_kv_heads": 4},
}


def shape(name: str) -> Decoder:
    """The specification of a shape."""
    return llama(name=name, context_length=2048, tied=True, **SHAPES[name])  # type: ignore[arg-type]


def both(name: str, dtype: torch.dtype) -> tuple[LanguageModel, PreTrainedModel]:
    """Ours, and the same exported to and loaded by transformers."""
    built = archetype.build(shape(name), dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        archetype.export(LanguageModel(built.spec, built), Path(folder) / "model")
        theirs = AutoModelForCausalLM.from_pretrained(Path(folder) / "model", dtype=dtype)
    return LanguageModel(built.spec, built.eval()), theirs.eval()
