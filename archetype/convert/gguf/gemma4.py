"""Gemma 4 in GGUF: one layer of a file has a block of attention and network, and a block of its per-layer input."""

from dataclasses import dataclass
from typing import Any

from archetype.convert.gguf.finish import capped_keys, usual_cap
from archetype.convert.gguf.keys import DecoderTable, FileKeys, Keys, Layer, unsupported, written_sizes
from archetype.convert.gguf.names import OUTER
from archetype.convert.gguf.rope import FACTORS, UNROTATED
from archetype.errors import CheckpointError
from archetype.families.gemma4_text import GLOBAL, LOCAL, gemma4_text
from archetype.families.keys import expect_kind
from archetype.families.rules import Rule, weight_rules
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.pattern.spec import Window
from archetype.parts.position.spec import ProportionalScaling, Rotary
from archetype.parts.together.spec import FeedForwardsTogether
from archetype.spec.repeats import MAX_LAYERS

EPS, WINDOW = "attention.layer_norm_rms_epsilon", "attention.sliding_window"


@dataclass(frozen=True)
class Gemma4(DecoderTable):
    """Keys of gemma4, read and written."""

    def read(self, config: Any) -> Decoder:
        keys: FileKeys = config
        num_layers = keys.size("block_count", most=MAX_LAYERS)
        local = keys.get(f"{WINDOW}_pattern")
        if not isinstance(local, list) or len(local) != num_layers or False not in local:
            raise keys.error(f"{WINDOW}_pattern", f"{local!r:.80} does not fit {num_layers} layers", "fix the file")
        period = local.index(False) + 1
        if local != [(layer + 1) % period != 0 for layer in range(num_layers)]:
            raise keys.error(f"{WINDOW}_pattern", "has no period", "this model is not supported")
        if False not in local[: num_layers - keys.count("attention.shared_kv_layers", 0)]:
            raise keys.error("attention.shared_kv_layers", "leaves no layer of each kind with keys", "fix the file")
        layers = [Layer(keys, index) for index in range(num_layers)]
        first, full, last = layers[0], layers[period - 1], layers[-1]
        sparse = first.has("ffn_gate_inp.weight")
        theta, local_theta = keys.positive("rope.freq_base", 1e4), keys.positive("rope.freq_base_swa", 1e4)
        head_dim, full_head_dim = keys.size("attention.key_length_swa"), keys.size("attention.key_length")
        for name, value in {
            "attention.value_length": full_head_dim,
            "attention.value_length_swa": head_dim,
            "rope.dimension_count": full_head_dim,
            "rope.dimension_count_swa": head_dim,
        }.items():
            keys.expect(name, value, "heads of another width")
        d_ff, shared_d_ff = first.count("feed_forward_length"), last.count("feed_forward_length")
        down = first.shape("ffn_down_exps.weight")
        keys.used.add("expert_feed_forward_length")
        return gemma4_text(
            num_layers=num_layers,
            num_heads=keys.size("attention.head_count"),
            num_kv_heads=first.count("attention.head_count_kv"),
            full_kv_heads=full.count("attention.head_count_kv"),
            d_ff=d_ff,
            shared_d_ff=None if shared_d_ff == d_ff else shared_d_ff,
            window=keys.size(WINDOW),
            period=period,
            head_dim=head_dim,
            full_head_dim=full_head_dim,
            keys_as_values=not full.has("attn_v.weight"),
            num_shared=keys.count("attention.shared_kv_layers", 0),
            layer_features=keys.count("embedding_length_per_layer_input", 0),
            num_experts=keys.count("expert_count", 0) if sparse else 0,
            experts_per_token=keys.count("expert_used_count", 0) if sparse else 1,
            expert_d_ff=down[-1] if down else 1,
            softcap=usual_cap(keys),
            **keys.sizes(),
            eps=keys.positive(EPS),
            position=_global(keys, theta),
            local_position=LOCAL.replace(theta=local_theta),
        )

    def write(self, model: ModelSpec) -> Keys:
        decoder = expect_kind(Decoder, model, "kind")
        blocks = [block for block in decoder.layers if not block.mixer.is_absent]
        mixers = [expect_kind(Attention, block.mixer, "layers[*].mixer") for block in blocks]
        local = [isinstance(mixer.pattern, Window) for mixer in mixers]
        networks = [_network(block.feedforward) for block in blocks]
        first = next((index for index, mixer in enumerate(mixers) if mixer.keys_from is not None), len(mixers))
        if True not in local or False not in local:
            raise unsupported(
                "layers[*].mixer.pattern", "gemma4 without windows, or without layers that see everything"
            )
        if first < len(mixers) and local[first - 2 : first] != [True, False]:
            cause = "keys of other layers than the two before the first that has none"
            raise unsupported("layers[*].mixer.keys_from", cause)
        swa, full = mixers[local.index(True)], mixers[local.index(False)]
        sizes, full_sizes = swa.sizes(decoder.d_model), full.sizes(decoder.d_model)
        norm = expect_kind(RMSNorm, decoder.final_norm, "final_norm")
        embedding = expect_kind(Embedding, decoder.embedding, "embedding")
        expect_kind(LanguageModelHead, decoder.head, "head")
        keys: Keys = {
            **written_sizes(decoder),
            "block_count": len(blocks),
            EPS: norm.eps,
            WINDOW: getattr(swa.pattern, "size", 0),
            f"{WINDOW}_pattern": local,
            "attention.head_count": sizes.num_heads,
            "attention.head_count_kv": [mixer.sizes(decoder.d_model).num_kv_heads for mixer in mixers],
            "attention.shared_kv_layers": len(mixers) - first,
            "embedding_length_per_layer_input": embedding.layer_features,
            "feed_forward_length": [network.width(decoder.d_model) for network, _ in networks],
            **capped_keys(decoder),
        }
        for suffix, heads, mixer in (("", full_sizes, full), ("_swa", sizes, swa)):
            position = expect_kind(Rotary, mixer.position, "layers[*].mixer.position")
            keys |= {f"attention.{name}_length{suffix}": heads.head_dim for name in ("key", "value")}
            keys |= {f"rope.dimension_count{suffix}": heads.head_dim, f"rope.freq_base{suffix}": position.theta}
        experts = networks[0][1]
        if experts is not None:
            keys["expert_count"], keys["expert_used_count"] = experts.num_experts, experts.experts_per_token
            keys["expert_feed_forward_length"] = experts.expert.width(decoder.d_model)
        return keys


def _network(part: Any) -> tuple[GatedMLP, MixtureOfExperts | None]:
    if isinstance(part, FeedForwardsTogether) and len(part.parts) == 2:
        network, experts = part.parts
        place = "layers[*].feedforward.parts"
        return expect_kind(GatedMLP, network, f"{place}[0]"), expect_kind(MixtureOfExperts, experts, f"{place}[1]")
    return expect_kind(GatedMLP, part, "layers[*].feedforward"), None


def _global(keys: FileKeys, theta: float) -> Rotary:
    # a tensor of divisors says which pairs rotate
    factors = keys.vector(FACTORS) if FACTORS in keys.shapes else []
    keys.used_tensors.add(FACTORS)
    turning = [factor for factor in factors if factor < UNROTATED]
    if not turning or factors != [turning[0]] * len(turning) + [UNROTATED] * (len(factors) - len(turning)):
        cause = "does not say which pairs rotate"
        raise CheckpointError(f"{keys.place}: {FACTORS}", cause, "convert the model again")
    scaling = ProportionalScaling(share=len(turning) / len(factors), factor=turning[0])
    return GLOBAL.replace(theta=theta, scaling=scaling)


PER_LAYER_TABLES = """
    per_layer_token_embd             embedding.per_layer.token
    per_layer_model_proj             embedding.per_layer.projection
    per_layer_proj_norm              embedding.per_layer.norm
"""
INNER = """
    blk.{i}.attn_norm                        blocks.{b}.mixer_norm
    blk.{i}.attn_{q,k,v,output}              blocks.{b}.mixer.{q,k,v,o}
    blk.{i}.attn_{q,k}_norm                  blocks.{b}.mixer.{q,k}_norm
    blk.{i}.post_attention_norm              blocks.{b}.mixer_post_norm
    blk.{i}.post_ffw_norm                    blocks.{b}.feedforward_post_norm
    blk.{i}.layer_output_scale.weight      = blocks.{e}.output_scale
"""
PER_LAYER = """
    blk.{i}.inp_gate                         blocks.{e}.feedforward.gate
    blk.{i}.proj                             blocks.{e}.feedforward.down
    blk.{i}.post_norm                        blocks.{e}.feedforward_norm
"""
DENSE = """
    blk.{i}.ffn_norm                         blocks.{b}.feedforward_norm
    blk.{i}.ffn_{gate,up,down}               blocks.{b}.feedforward.{gate,up,down}
"""
SPARSE = """
    blk.{i}.ffn_norm                         blocks.{b}.feedforward.norms.0
    blk.{i}.ffn_{gate,up,down}               blocks.{b}.feedforward.parts.0.{gate,up,down}
    blk.{i}.post_ffw_norm_1                  blocks.{b}.feedforward.post_norms.0
    blk.{i}.pre_ffw_norm_2                   blocks.{b}.feedforward.parts.1.norm
    blk.{i}.post_ffw_norm_2                  blocks.{b}.feedforward.post_norms.1
    blk.{i}.ffn_gate_inp                     blocks.{b}.feedforward.parts.1.router
    blk.{i}.ffn_gate_inp.scale             = blocks.{b}.feedforward.parts.1.router.norm.weight
    blk.{i}.ffn_down_exps.scale            = blocks.{b}.feedforward.parts.1.expert_scales
    blk.{i}.ffn_{gate,up,down}_exps.weight = blocks.{b}.feedforward.parts.1.experts.{gate,up,down}
"""


def rules(model: Any) -> tuple[Rule, ...]:
    """Return the rules of a model, whose layers have one block or two."""
    all_rules = list(weight_rules(OUTER + PER_LAYER_TABLES))
    begins = [index for index, block in enumerate(model.layers) if not block.mixer.is_absent]
    for layer, (begin, end) in enumerate(zip(begins, [*begins[1:], len(model.layers)], strict=True)):
        block = model.layers[begin]
        table = INNER + (SPARSE if isinstance(block.feedforward, FeedForwardsTogether) else DENSE)
        table += PER_LAYER if end - begin > 1 else ""
        for name, value in (("{i}", layer), ("{b}", begin), ("{e}", end - 1)):
            table = table.replace(name, str(value))
        all_rules += weight_rules(table)
    return tuple(all_rules)
