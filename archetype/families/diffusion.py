"""Masked diffusion models: LLaDA (Nie 2025) and Dream (Ye 2025), with layers of Llama and Qwen2 that see both sides.

Their classes are in the repositories of the weights (LLaDAModelLM and DreamModel), not in transformers.
"""

from operator import itemgetter
from typing import Any

from archetype.families.config import Config
from archetype.families.eurobert import PARTS, eurobert
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Expected, Key, Row, Values, expect_kind, ignored, width
from archetype.families.llama import INV_FREQ, RULES, design_keys
from archetype.families.rules import weight_rules
from archetype.families.standard_block import first_attention
from archetype.models.encoder.spec import Encoder
from archetype.parts.attention.spec import ProjectionBiases
from archetype.parts.head.spec import MaskedLogitsHead
from archetype.parts.position.spec import Rotary


def llada(*, position: Rotary = Rotary(theta=500_000.0), **design: Any) -> Encoder:
    """Build a LLaDA encoder. `design` takes the arguments of `llama`."""
    sizes = {"vocab_size": 126_464, "context_length": 4096}
    return eurobert(position=position, **sizes | design)


def dream(*, tied: bool = False, position: Rotary = Rotary(theta=1_000_000.0), **design: Any) -> Encoder:
    """Build a Dream encoder, which predicts each token from the vector before it. Takes the arguments of `llama`."""
    sizes = {"vocab_size": 152_064, "context_length": 131_072, "eps": 1e-6}
    biases, head = ProjectionBiases(q=True, k=True, v=True), MaskedLogitsHead(tied=tied, shifted=True)
    return eurobert(position=position, attention_bias=biases, head=head, **sizes | design)


def _read_theta(config: Config, values: Values) -> Values:
    return {"position": Rotary(theta=config.positive("rope_theta", 10_000.0))}


def _write_theta(model: Encoder) -> dict[str, Any]:
    attention = first_attention(model)
    return {"rope_theta": expect_kind(Rotary, attention.position, "layers[0].mixer.position").theta}


def _fixed(name: str, value: Any) -> Expected:
    return Expected(name, value, "another design than LLaDA's", lambda model: value)


# Keys of LLaDAConfig with values of the only design that was published; the class has other defaults.
DESIGN = {
    "activation_type": "silu", "block_type": "llama", "layer_norm_type": "rms", "rope": True, "alibi": False,
    "include_bias": False, "layer_norm_with_affine": True, "bias_for_layer_norm": False, "scale_logits": False,
    "attention_layer_norm": False, "input_emb_norm": False, "block_group_size": 1,
    "include_qkv_bias": False, "multi_query_attention": None,
}  # fmt: skip
LLADA_KEYS: tuple[Row, ...] = (
    Key("d_model", "d_model", 768),
    Key("n_heads", "num_heads", 12),
    Key("n_kv_heads", "num_kv_heads", itemgetter("num_heads"), null=itemgetter("num_heads")),
    Key("n_layers", "num_layers", 12),
    Key("mlp_hidden_size", "d_ff", path=width("block.feedforward")),
    Key("max_sequence_length", "context_length", 1024),
    Key("vocab_size", "vocab_size", 50_257),
    Expected("embedding_size", itemgetter("vocab_size"), "a table with rows that no token has", "vocab_size"),
    Key("rms_norm_eps", "eps", 1e-5),
    Key("weight_tying", "tied", True),
    Key("attention_dropout", "attention_dropout", 0.1),
    Key("init_std", "std", 0.02),
    Converted(_read_theta, _write_theta),
    *(_fixed(name, value) for name, value in DESIGN.items()),
    ignored("mlp_ratio", "alibi_bias_max", "attention_layer_norm_with_affine", "embedding_dropout", "residual_dropout",
        "flash_attention", "init_device", "init_fn", "init_cutoff_factor", "precision", "rope_full_precision",
        "mask_token_id"),
)  # fmt: skip
LLADA_RULES = weight_rules("""
    model.transformer.wte                        embedding.token
    model.transformer.blocks.{i}.attn_norm       blocks.{i}.mixer_norm
    model.transformer.blocks.{i}.{q,k,v}_proj    blocks.{i}.mixer.{q,k,v}
    model.transformer.blocks.{i}.attn_out        blocks.{i}.mixer.o
    model.transformer.blocks.{i}.ff_norm         blocks.{i}.feedforward_norm
    model.transformer.blocks.{i}.ff_proj         blocks.{i}.feedforward.gate
    model.transformer.blocks.{i}.up_proj         blocks.{i}.feedforward.up
    model.transformer.blocks.{i}.ff_out          blocks.{i}.feedforward.down
    model.transformer.ln_f                       final_norm
    model.transformer.ff_out                     lm_head
""")
DREAM_KEYS: tuple[Row, ...] = (
    *design_keys(1_000_000.0, hidden_size=4096, num_key_value_heads=32, vocab_size=151_936,
        intermediate_size=22_016, max_position_embeddings=32_768),
    Key("hidden_act", "activation", "silu"),
    Expected("use_mrope", False, "positions in three parts"),
    Expected("use_sliding_window", False, "windows"),
    ignored("sliding_window", "max_window_layers", "mask_token_id"),
)  # fmt: skip
TINY = dict(num_layers=2, num_heads=4, d_ff=172, vocab_size=257)  # 256 bytes and a mask
FAMILIES = {
    "llada": Family("llada", {
        **presets("Nie 2025, table 7; GSAI-ML/LLaDA-8B-Base config.json", llada, {
            "llada-8b": dict(num_layers=32, d_model=4096, num_heads=32, d_ff=12_288),
        }),
        **tiny(llada, {"llada-tiny": TINY}),
    }, Format("llada", "LLaDAModelLM", ConfigTable(llada, LLADA_KEYS, Encoder, PARTS), LLADA_RULES, "model.")),
    "Dream": Family("Dream", presets("Ye 2025; Dream-org/Dream-v0-Base-7B config.json", dream, {
        "dream-7b": dict(num_layers=28, d_model=3584, num_heads=28, num_kv_heads=4, d_ff=18_944),
    }), Format("Dream", "DreamModel", ConfigTable(dream, DREAM_KEYS, Encoder, PARTS), RULES, "model.", INV_FREQ)),
}  # fmt: skip
