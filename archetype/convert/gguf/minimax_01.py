"""MiniMax-Text-01 in GGUF: lightning attention, and a factor on the normalized residual stream."""

from typing import Any

from archetype.convert.gguf.keys import FileKeys, Keys, unsupported
from archetype.convert.gguf.mixers import OtherMixer
from archetype.convert.gguf.names import EXPERTS
from archetype.families.keys import expect_kind
from archetype.families.minimax import FULL, LINEAR, minimax
from archetype.families.rules import Rule, rule, weight_rules
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.linear_attention.spec import LinearAttention
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import NoScaling

# llama.cpp normalizes lightning attention with this epsilon too, transformers with 1e-6
EPS, PERIOD, RECURRENT = "attention.layer_norm_rms_epsilon", "full_attention_interval", "attention.recurrent_layers"
# the graph reads which layers have it; `with_factor` reads the rest
LIGHTNING = OtherMixer(
    LinearAttention,
    "attn_norm_2.weight",
    lambda layer, eps: LinearAttention(num_heads=layer.count("attention.head_count")),
    lambda mixer, decoder: {},
)


def with_factor(keys: FileKeys, model: Any) -> Any:
    """Return the MiniMax design with the sizes that the graph has read."""
    keys.used |= {PERIOD, RECURRENT}  # which the tensors show
    linear = [isinstance(block.mixer, LinearAttention) for block in model.layers]
    if all(linear):
        raise keys.error(RECURRENT, "lists every layer", "this model is not supported")
    full = model.layers[linear.index(False)].mixer
    experts = expect_kind(MixtureOfExperts, model.layers[0].feedforward, "layers[0].feedforward")
    if getattr(full.position, "scaling", None) != NoScaling():
        raise keys.error("rope.scaling.type", "scales rotations", "this model is not supported")
    sizes = full.sizes(model.d_model)
    return minimax(
        num_layers=model.num_layers,
        num_heads=sizes.num_heads,
        num_kv_heads=sizes.num_kv_heads,
        head_dim=sizes.head_dim,
        d_ff=experts.expert.width(model.d_model),
        num_experts=experts.num_experts,
        experts_per_token=experts.experts_per_token,
        layer_types=tuple(LINEAR if is_linear else FULL for is_linear in linear),
        stream_factor=keys.positive("residual_scale"),
        eps=keys.positive(EPS),
        position=full.position,
        tied=model.head.tied,
        **keys.sizes(),
    )


def factor_keys(model: Any) -> Keys:
    if not any(isinstance(block.mixer, Attention) for block in model.layers):
        raise unsupported("layers[*].mixer", "minimax-01 without attention")
    norm = expect_kind(RMSNorm, expect_kind(Embedding, model.embedding, "embedding").norm, "embedding.norm")
    return {
        EPS: norm.eps,
        "residual_scale": 1.0 / model.layers[0].residual_scale,
        RECURRENT: [isinstance(block.mixer, LinearAttention) for block in model.layers],
    }


OUTER = """
    token_embd                   embedding.token
    output                       lm_head
    blk.0.attn_norm              embedding.norm
    blk.{i}.ffn_norm             blocks.{i}.mixer_norm
    blk.{i}.attn_output          blocks.{i}.mixer.o
"""
OF_LIGHTNING = """
    blk.{i}.attn_norm_2          blocks.{i}.mixer.norm
    blk.{i}.attn_gate            blocks.{i}.mixer.gate
"""


def rules(model: Any) -> tuple[Rule, ...]:
    """Return the rules of a model, whose norms behind a layer are those before the next one."""
    rows = list(weight_rules(OUTER + EXPERTS))
    for layer, block in enumerate(model.layers):
        after = "output_norm" if layer == model.num_layers - 1 else f"blk.{layer + 1}.attn_norm"
        rows.append(rule(f"{after}.weight", f"blocks.{layer}.feedforward_norm.weight"))
        if isinstance(block.mixer, LinearAttention):
            parts = (f"blocks.{layer}.mixer.{name}.weight" for name in "qkv")
            rows.append(rule(f"blk.{layer}.attn_qkv.weight", *parts, heads=block.mixer.num_heads))
            rows += weight_rules(OF_LIGHTNING.replace("{i}", str(layer)))
        else:
            table = "blk.{i}.attn_{q,k,v}   blocks.{i}.mixer.{q,k,v}"
            rows += weight_rules(table.replace("{i}", str(layer)))
    return tuple(rows)
