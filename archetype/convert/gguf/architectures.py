"""Table of the model families that llama.cpp supports, with their GGUF keys and tensor names. Imports no torch.

Names are those in llama.cpp's src/llama-arch.cpp. Reading and writing use the same table. A field that llama.cpp
computes differently is refused with an error that names the field.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from archetype.convert.gguf import changes, decoders, encoders, gemma
from archetype.convert.gguf.decoders import decoder_check
from archetype.convert.gguf.graphs import ROWS
from archetype.convert.gguf.keys import Gguf
from archetype.convert.gguf.plain import plain
from archetype.convert.gguf.refused import REFUSED
from archetype.errors import CheckpointError
from archetype.families.bert import bert
from archetype.families.bloom import bloom
from archetype.families.gemma import gemma as gemma1
from archetype.families.gemma2 import gemma2
from archetype.families.gemma3_text import gemma3_text
from archetype.families.gpt2 import gpt2
from archetype.families.keys import ConfigTable, Expected, Row
from archetype.families.mpt import mpt
from archetype.families.qwen2 import qwen2
from archetype.families.qwen3 import qwen3
from archetype.families.qwen3_moe import qwen3_moe
from archetype.families.t5 import KEYS as T5_KEYS
from archetype.families.t5 import t5
from archetype.models.encoder.spec import Encoder
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.parts.activation.spec import GELU, GELUTanh, SiLU
from archetype.parts.head.spec import NoHead


def _table(build: Callable[..., Any], rows: tuple[Row, ...]) -> ConfigTable:
    return ConfigTable(build, rows, parts=decoders.GATED_PARTS)


# as Llama: RMSNorm, gated feed-forward parts and rotary positions, with further rows
def _gated(build: Callable[..., Any], *rows: Row) -> ConfigTable:
    return _table(build, (*decoders.DESIGN, *rows))


# as GPT-2: LayerNorm and heads of the usual width
def _standard(build: Callable[..., Any], *rows: Row) -> ConfigTable:
    return ConfigTable(build, (*decoders.STANDARD, *rows), parts=decoders.STANDARD_PARTS)


def _without_windows(name: str, table: ConfigTable, **further: Any) -> Gguf:
    settings = {"check": decoder_check(decoders.anything, SiLU()), "computed": decoders.without_windows} | further
    return Gguf(name, table, decoders.APART, **settings)


# Gemma: GGUF files have norm weights with 1 added
def _around_one(name: str, table: ConfigTable, check: Callable[..., None]) -> Gguf:
    checked = decoder_check(check, GELUTanh(), tied=True)
    return Gguf(name, table, decoders.APART, (changes.AROUND_ONE,), checked)


# queries, keys and values are one tensor in these files
def _fused(name: str, table: ConfigTable, activation: Any) -> Gguf:
    return Gguf(name, table, decoders.FUSED, check=decoder_check(decoders.check_scale, activation))


SHOWN = 16  # names in a message
ALIBI = (
    Expected("attention.max_alibi_bias", 8.0, "other slopes", path=lambda model: 8.0),
    Expected("attention.clamp_kqv", 0.0, "clipped queries, keys and values"),
)
# three families have one architecture in llama.cpp, whose rotary positions turn neighbouring pairs
LLAMA = _without_windows(
    "llama",
    _gated(decoders.llama_or_mixtral, decoders.EXPERTS, decoders.BIASES, decoders.MLP_BIAS),
    changes=changes.PAIRED,
)
GGUF: dict[str, Gguf] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "mixtral": LLAMA,
    "qwen2": _without_windows("qwen2", _gated(qwen2), check=decoder_check(decoders.check_qwen2, SiLU())),
    "qwen3": _without_windows("qwen3", _gated(qwen3)),
    "qwen3_moe": _without_windows("qwen3moe", _table(qwen3_moe, decoders.QWEN3_MOE)),
    "gemma": _around_one("gemma", _table(gemma1, gemma.GEMMA), gemma.check_gemma),
    "gemma2": _around_one("gemma2", _table(gemma2, gemma.GEMMA2), gemma.check_gemma2),
    "gemma3_text": _around_one("gemma3", _table(gemma3_text, gemma.GEMMA3), gemma.check_gemma3),
    "gpt2": _fused("gpt2", _standard(gpt2), GELUTanh()),
    "bloom": _fused("bloom", _standard(bloom), GELUTanh()),
    # llama.cpp only has the tanh approximation of GELU; its converter uses it for MPT's exact GELU, as for BERT's
    "mpt": _fused("mpt", _standard(mpt, *ALIBI), GELU()),
    "bert": Gguf(
        "bert",
        ConfigTable(partial(bert, head=NoHead()), encoders.BERT, Encoder, encoders.BERT_PARTS),
        encoders.BERT_RULES,
        (changes.NO_POOLER, changes.USED_POSITIONS),
        encoders.check_bert,
        encoders.as_vectors,
    ),
    "t5": Gguf(
        "t5",
        ConfigTable(t5, encoders.T5, EncoderDecoder, T5_KEYS.parts),
        encoders.T5_RULES,
        (changes.HEAD_SCALE,),
        encoders.check_t5,
        encoders.with_usual_scale,
    ),
    "t5encoder": Gguf(
        "t5encoder",
        ConfigTable(encoders.t5_encoder, encoders.T5_ENCODER, Encoder),
        encoders.T5_ENCODER_RULES,
        check=encoders.check_t5_encoder,
        computed=plain,
    ),
}


GGUF |= ROWS
GGUF |= dict.fromkeys(("roberta", "xlm-roberta", "camembert", "data2vec-text"), GGUF["bert"])
# Model types that llama.cpp divides into several architectures.
ALSO = {"nemotron_h": ("nemotron_h_moe",)}


def few(names: list[str]) -> str:
    """Return the first names of a list, and the number of the others."""
    return f"{', '.join(names[:SHOWN])} and {len(names) - SHOWN} more"


def families_of(architecture: object, place: str) -> list[str]:
    """Return the families that use a llama.cpp architecture.

    Raises:
        CheckpointError: no family in the table uses the architecture.
    """
    # several, such as llama, mistral and mixtral
    names = [name for name, target in GGUF.items() if target.architecture == architecture]
    if not names:
        known = list(dict.fromkeys(target.architecture for target in GGUF.values()))
        reason = REFUSED.get(str(architecture))
        cause = f"{architecture!r:.80} is not supported{'' if reason is None else f': {reason}'}"
        raise CheckpointError(f"{place}: general.architecture", cause, f"use one of {few(known)}")
    return names
