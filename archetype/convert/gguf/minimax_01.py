"""MiniMax-Text-01 in GGUF: lightning attention, and a factor on the normed vectors that are added to outputs."""

from dataclasses import dataclass
from typing import Any

from archetype.convert.gguf.keys import DecoderTable, FileKeys, Keys, unsupported, written_sizes
from archetype.convert.gguf.layers import Layer
from archetype.convert.gguf.names import EXPERTS
from archetype.convert.gguf.rope import read_scaling, written_scaling
from archetype.families.keys import expect_kind
from archetype.families.minimax import FULL, LINEAR, minimax
from archetype.families.rules import Rule, rule, weight_rules
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.linear_attention.spec import LinearAttention
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import NoScaling, Rotary
from archetype.spec.repeats import MAX_LAYERS

# llama.cpp normalizes lightning attention with this epsilon too, transformers with 1e-6
EPS, PERIOD, RECURRENT = "attention.layer_norm_rms_epsilon", "full_attention_interval", "attention.recurrent_layers"
USUAL_PERIOD = 8


@dataclass(frozen=True)
class MiniMax01(DecoderTable):
    """Keys of minimax-01, read and written."""

    def read(self, config: Any) -> Decoder:
        keys: FileKeys = config
        num_layers = keys.size("block_count", most=MAX_LAYERS)
        recurrent, period = keys.get(RECURRENT), keys.size(PERIOD, USUAL_PERIOD)
        if recurrent is None:
            recurrent = [(layer + 1) % period != 0 for layer in range(num_layers)]
        if not isinstance(recurrent, list) or len(recurrent) < num_layers:
            raise keys.error(RECURRENT, f"{recurrent!r:.80} lacks layers", "fix the file")
        keys.used |= {"feed_forward_length", "expert_feed_forward_length"}
        down = Layer(keys, 0).shape("ffn_down_exps.weight")
        sizes, num_heads = keys.sizes(), keys.size("attention.head_count")
        d_model = sizes["d_model"]
        head_dim = keys.size("attention.key_length", max(1, d_model // num_heads))
        keys.expect("attention.value_length", head_dim, "values of another width")
        theta, turned = keys.positive("rope.freq_base", 10_000.0), keys.size("rope.dimension_count", head_dim)
        if read_scaling(keys, theta, turned) != NoScaling():
            raise keys.error("rope.scaling.type", "scales rotations", "this model is not supported")
        return minimax(
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=keys.size("attention.head_count_kv", num_heads),
            head_dim=head_dim,
            d_ff=down[-1] if down else 1,
            num_experts=keys.size("expert_count"),
            experts_per_token=keys.size("expert_used_count"),
            layer_types=tuple(LINEAR if is_linear else FULL for is_linear in recurrent[:num_layers]),
            stream_factor=keys.positive("residual_scale"),
            eps=keys.positive(EPS),
            position=Rotary(theta=theta, dim=None if turned == head_dim else turned),
            **sizes,
            tied="output.weight" not in keys.shapes,
        )

    def write(self, model: ModelSpec) -> Keys:
        decoder = expect_kind(Decoder, model, "kind")
        full = next((block.mixer for block in decoder.layers if isinstance(block.mixer, Attention)), None)
        if full is None:
            raise unsupported("layers[*].mixer", "minimax-01 without attention")
        sizes, position = full.sizes(decoder.d_model), expect_kind(Rotary, full.position, "layers[*].mixer.position")
        part = expect_kind(MixtureOfExperts, decoder.layers[0].feedforward, "layers[0].feedforward")
        width = part.expert.width(decoder.d_model)
        norm = expect_kind(RMSNorm, expect_kind(Embedding, decoder.embedding, "embedding").norm, "embedding.norm")
        expect_kind(LanguageModelHead, decoder.head, "head")
        return {
            **written_sizes(decoder),
            EPS: norm.eps,
            "residual_scale": 1.0 / decoder.layers[0].residual_scale,
            RECURRENT: [isinstance(block.mixer, LinearAttention) for block in decoder.layers],
            "attention.head_count": sizes.num_heads,
            "attention.head_count_kv": sizes.num_kv_heads,
            "attention.key_length": sizes.head_dim,
            "attention.value_length": sizes.head_dim,
            "rope.dimension_count": position.dim or sizes.head_dim,
            "rope.freq_base": position.theta,
            **written_scaling(position.scaling),
            "feed_forward_length": width,
            "expert_feed_forward_length": width,
            "expert_count": part.num_experts,
            "expert_used_count": part.experts_per_token,
        }


OUTER = """
    token_embd                   embedding.token
    output                       lm_head
    blk.0.attn_norm              embedding.norm
    blk.{i}.ffn_norm             blocks.{i}.mixer_norm
    blk.{i}.attn_output          blocks.{i}.mixer.o
"""
LIGHTNING = """
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
            rows += weight_rules(LIGHTNING.replace("{i}", str(layer)))
        else:
            table = "blk.{i}.attn_{q,k,v}   blocks.{i}.mixer.{q,k,v}"
            rows += weight_rules(table.replace("{i}", str(layer)))
    return tuple(rows)
