"""The sizes that benchmarks use: models of Llama's form, and other architectures of about 100 M parameters."""

from collections.abc import Callable

from archetype.families.deepseek_v2 import deepseek_v2
from archetype.families.llama import llama
from archetype.families.mamba import mamba
from archetype.families.mistral import mistral
from archetype.families.mixtral import mixtral
from archetype.families.qwen3_next import qwen3_next
from archetype.families.t5 import t5
from archetype.parts.position.spec import Rotary
from archetype.spec import Decoder, EncoderDecoder, Window, assign

SHAPES = {
    "15M": {"vocab_size": 4096, "d_model": 384, "d_ff": 1024, "num_layers": 6, "num_heads": 6},
    "110M": {"vocab_size": 32_000, "d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12, "num_kv_heads": 4},
    "500M": {
        "vocab_size": 151_936,
        "d_model": 896,
        "d_ff": 4864,
        "num_layers": 24,
        "num_heads": 14,
        "num_kv_heads": 2,
    },
}
ARCHITECTURES: dict[str, Callable[[], Decoder | EncoderDecoder]] = {
    "Mistral-like": lambda: mistral(
        window=1024, context_length=32_768, vocab_size=32_000, d_model=768, d_ff=2048, num_layers=12, num_heads=12,
        num_kv_heads=4, tied=True,
    ),
    "DeepSeek-V2-like": lambda: deepseek_v2(
        context_length=32_768, vocab_size=32_000, d_model=768, d_ff=2048, num_layers=8, num_experts=16,
        experts_per_token=4, expert_d_ff=256, num_heads=12, kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=32,
        v_head_dim=64, tied=True,
    ),
    "Mamba": lambda: mamba(num_layers=24, d_model=768, vocab_size=32_000),
    "T5": lambda: t5(num_layers=6, d_model=768, num_heads=12, d_ff=3072),
}  # fmt: skip
_BASE = {"vocab_size": 32_000, "d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12, "tied": True}
# What looks back at the tokens before in one way or another, for lengths of 4,096 and more.
MIXERS: dict[str, Callable[[], Decoder]] = {
    "full": lambda: llama(context_length=32_768, **_BASE),  # type: ignore[arg-type]
    "GQA, 4 of 12": lambda: llama(context_length=32_768, num_kv_heads=4, **_BASE),  # type: ignore[arg-type]
    "MQA": lambda: llama(context_length=32_768, num_kv_heads=1, **_BASE),  # type: ignore[arg-type]
    "window of 256": lambda: llama(context_length=32_768, num_kv_heads=4, patterns=(Window(size=256),), **_BASE),  # type: ignore[arg-type]
    "latent": lambda: ARCHITECTURES["DeepSeek-V2-like"](),  # type: ignore[dict-item, return-value]
    "Mamba": lambda: ARCHITECTURES["Mamba"](),  # type: ignore[dict-item, return-value]
}
_SMALL = {"vocab_size": 4096, "context_length": 1024, "d_model": 384, "num_layers": 6, "num_heads": 6}
# Four of the models of `benchmarks.plain_loop`, about 15 M parameters, without transformers.
TRAINED: dict[str, Callable[[], Decoder]] = {
    "llama": lambda: llama(d_ff=1024, num_kv_heads=2, eps=1e-6, **_SMALL),  # type: ignore[arg-type]
    "mixtral": lambda: mixtral(d_ff=384, num_kv_heads=2, balance_loss=0.001, **_SMALL),  # type: ignore[arg-type]
    "deepseek_v2": lambda: deepseek_v2(
        d_ff=1024, num_experts=8, experts_per_token=2, expert_d_ff=256, num_shared_experts=1, kv_lora_rank=128,
        qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64, position=Rotary(interleaved=True),
        **_SMALL,  # type: ignore[arg-type]
    ),
    "qwen3_next": lambda: assign(qwen3_next(num_layers=6, d_model=384, num_heads=6, num_kv_heads=2), [
        "vocab_size=4096", "context_length=1024",
        *(f"layers[0,1,2,4,5].mixer.{size}=64" for size in ("head_dim", "v_head_dim")),
        "layers[0,1,2,4,5].mixer.num_heads=8", "layers[0,1,2,4,5].mixer.num_key_heads=4",
        "layers[3].mixer.head_dim=64", "layers[3].mixer.position.dim=16",
        "layers[*].feedforward.num_experts=8", "layers[*].feedforward.experts_per_token=2",
        *(f"layers[*].feedforward.{expert}.d_ff=256" for expert in ("expert", "shared")),
    ]),
}  # fmt: skip


def shape(name: str) -> Decoder:
    """The specification of a shape."""
    return llama(name=name, context_length=2048, tied=True, **SHAPES[name])  # type: ignore[arg-type]
