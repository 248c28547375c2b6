"""Table of the model families that llama.cpp supports, with their GGUF keys and tensor names. Imports no torch.

Names are those in llama.cpp's src/llama-arch.cpp. Reading and writing use the same table. A field that llama.cpp
computes differently is refused with an error that names the field.
"""

from dataclasses import replace

from archetype.convert.gguf import changes, encoders, finish
from archetype.convert.gguf.graph import Graph, Windows
from archetype.convert.gguf.graphs import BIASED, NO_BIAS, OF_BERT, OF_GPT2, PERIODS, ROWS, row
from archetype.convert.gguf.keys import Gguf
from archetype.convert.gguf.names import FUSED
from archetype.convert.gguf.plain import plain, without_windows
from archetype.convert.gguf.refused import REFUSED
from archetype.convert.gguf.routing import Routing
from archetype.errors import CheckpointError
from archetype.families.keys import ConfigTable
from archetype.families.t5 import KEYS as T5_KEYS
from archetype.families.t5 import t5
from archetype.models.encoder.spec import Encoder
from archetype.models.encoder_decoder.spec import EncoderDecoder
from archetype.parts.activation.spec import GELU, GELUTanh
from archetype.parts.embedding.spec import Embedding
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import Learned

SHOWN = 16  # names in a message
# three families have one architecture in llama.cpp, whose rotary positions turn neighbouring pairs
LLAMA = row("llama", of=BIASED, routing=Routing(), changed=changes.PAIRED, computed=without_windows)
GEMMA = Graph(norm=RMSNorm(unit_offset=True), activation=GELUTanh(), embedding=Embedding(round_scale=True), root=True)
GEMMA_2 = replace(
    GEMMA, wiring="sandwich", windows=Windows(2, size=4096), finish=finish.gemma2, further=finish.gemma2_keys
)
GEMMA_3 = replace(
    GEMMA,
    wiring="sandwich",
    qk_norm="head",
    windows=Windows(6, theta=10_000.0, scaled=False),
    finish=finish.gemma3,
    further=finish.gemma3_keys,
)
GPT2 = replace(OF_GPT2, activation=GELUTanh(), qkv_bias="all", grouped=False, rotates=PERIODS["none"])
GGUF: dict[str, Gguf] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "mixtral": LLAMA,
    "qwen2": row("qwen2", computed=without_windows),
    "qwen3": row("qwen3", qk_norm="head", computed=without_windows),
    "qwen3_moe": row("qwen3moe", qk_norm="head", routing=Routing(), computed=without_windows),
    "gemma": row("gemma", of=GEMMA, changed=(changes.AROUND_ONE,)),
    "gemma2": row("gemma2", of=GEMMA_2, changed=(changes.AROUND_ONE,)),
    "gemma3_text": row("gemma3", of=GEMMA_3, changed=(changes.AROUND_ONE,)),
    "gpt2": row("gpt2", of=GPT2, embedding=Embedding(position=Learned()), attention=FUSED),
    "bloom": row("bloom", of=GPT2, finish=finish.bloom, attention=FUSED),
    # llama.cpp only has the tanh approximation of GELU; its converter uses it for MPT's exact GELU, as for BERT's
    "mpt": row(
        "mpt",
        norm=NO_BIAS,
        activation=GELU(),
        gated=False,
        qkv_bias="no",
        grouped=False,
        rotates=PERIODS["none"],
        finish=finish.mpt,
        further=finish.mpt_keys,
        attention=FUSED,
    ),
    "bert": row(
        "bert",
        of=OF_BERT,
        gated=False,
        output_bias="all",
        mlp_bias="all",
        rotates=PERIODS["none"],
        changed=(changes.NO_POOLER, changes.USED_POSITIONS),
        computed=encoders.as_vectors,
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
ALSO = {"nemotron_h": ("nemotron_h_moe",), "kimi_linear": ("kimi_k3",)}


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
