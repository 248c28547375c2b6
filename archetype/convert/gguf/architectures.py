"""GGUF, the format of llama.cpp: for each family that it knows, its keys and the places of its tensors. No torch.

The names are those of llama.cpp's src/llama-arch.cpp. What llama.cpp computes otherwise than a specification says is
refused by name, as everywhere.
"""

from archetype.convert.gguf import decoders, deepseek2, encoders
from archetype.convert.gguf.decoders import decoder_keys, frequency_factors
from archetype.convert.gguf.keys import Gguf, Value
from archetype.errors import CheckpointError
from archetype.parts.activation.spec import GELU, GELUTanh, SiLU

__all__ = ["GGUF", "Gguf", "Value", "frequency_factors", "gguf_of"]

LLAMA = decoder_keys(decoders.llama, SiLU())
GGUF: dict[str, Gguf] = {
    "llama": Gguf("llama", LLAMA, decoders.APART, paired=True),
    "mistral": Gguf("llama", LLAMA, decoders.APART, paired=True),
    "mixtral": Gguf("llama", LLAMA, decoders.EXPERTS, paired=True),
    "qwen2": Gguf("qwen2", decoder_keys(decoders.qwen2, SiLU()), decoders.APART),
    "gemma": Gguf("gemma", decoder_keys(decoders.gemma, GELUTanh(), tied=True), decoders.APART, offset=1.0),
    "gemma2": Gguf("gemma2", decoder_keys(decoders.gemma2, GELUTanh(), tied=True), decoders.APART, offset=1.0),
    "deepseek_v2": Gguf("deepseek2", decoder_keys(deepseek2.keys, SiLU()), deepseek2.RULES),
    "gpt2": Gguf("gpt2", decoder_keys(decoders.unscaled, GELUTanh()), decoders.FUSED),
    "bloom": Gguf("bloom", decoder_keys(decoders.unscaled, GELUTanh()), decoders.FUSED),
    # as for BERT: llama.cpp's only gelu is the approximation, which its own converter takes for MPT's too
    "mpt": Gguf(
        "mpt", decoder_keys(decoders.unscaled, GELU()), decoders.FUSED, fixed={"attention.max_alibi_bias": 8.0}
    ),
    "mamba": Gguf("mamba", decoder_keys(decoders.mamba, None), decoders.STATES),
    "bert": Gguf("bert", encoders.bert_keys, encoders.BERT_RULES, fixed=encoders.BERT_FIXED),
    "t5": Gguf("t5", encoders.t5_keys, encoders.T5_RULES),
}


def gguf_of(family: str) -> Gguf:
    """How a family stands in GGUF.

    Raises:
        CheckpointError: llama.cpp does not know it, or not in a way that Archetype knows.
    """
    if family not in GGUF:
        known = ", ".join(GGUF)
        raise CheckpointError("--format", f"gguf is not known for {family}", f"it is for {known}; or use --format hf")
    return GGUF[family]
