"""DeepSeek-V2 in GGUF. llama.cpp computes multi-head latent attention on the latents."""

from typing import Any

from archetype.convert.gguf.decoders import NETWORK, NORMS, OUTER, RMS_EPS, SIZES, SPARSE, TIED
from archetype.convert.gguf.keys import Keys, unsupported
from archetype.families.config import Config
from archetype.families.deepseek_v2 import dense_layers, dense_width, expert_width, shared_width
from archetype.families.keys import Converted, Expected, Key, Row, Values, expect_kind
from archetype.families.rules import weight_rules
from archetype.models.decoder.spec import Decoder
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP, NoFeedForward
from archetype.parts.latent_attention.spec import LatentAttention, LowRankQuery
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.position.spec import NoScaling, Rotary, RotaryScaling, YarnScaling

# Layer counts, and (layers, vocabulary) pairs, by which llama.cpp recognizes models without low-rank queries.
LITE, OTHER_LITE = (26, 27), (48, 128_256)
SOFTMAX = 1  # llama.cpp's number for softmax routing
TENTH = 0.1  # stored factor, removed again by llama.cpp's reader (TAG_DEEPSEEK2_YARN_LOG_MUL_FIX in its sources)


def check(decoder: Decoder) -> None:
    """Refuse fields with values for which deepseek2 has no key."""
    mixer = expect_kind(LatentAttention, decoder.layers[0].mixer, "layers[0].mixer")
    norm = expect_kind(RMSNorm, decoder.final_norm, "final_norm")
    inner = expect_kind(RMSNorm, mixer.norm, "layers[0].mixer.norm")
    if inner.eps != norm.eps:
        raise unsupported("layers[*].mixer.norm.eps", f"{inner.eps} with {norm.eps} in the other norms")
    if mixer.bias:
        raise unsupported("layers[*].mixer.bias", "biases in deepseek2")
    lite = decoder.num_layers in LITE or (decoder.num_layers, decoder.vocab_size) == OTHER_LITE
    if isinstance(mixer.query, LowRankQuery) and lite:
        cause = f"low-rank queries in deepseek2 with {decoder.num_layers} layers"
        raise unsupported("layers[*].mixer.query", cause)
    field = "layers[-1].feedforward"
    experts = expect_kind(MixtureOfExperts, decoder.layers[-1].feedforward, field)
    if expect_kind(GatedMLP, experts.shared or NoFeedForward(), f"{field}.shared").bias:
        raise unsupported("layers[*].feedforward.bias", "biases in deepseek2")
    if experts.groups is not None and experts.groups.groups_per_token < experts.groups.num_groups:
        # llama.cpp implements DeepSeek-V3's groups, which are ranked by the sum of their two best experts
        raise unsupported(f"{field}.groups", "groups of experts ranked by their best expert")
    _written_scaling(mixer.position.scaling)


def without_groups(decoder: Decoder) -> Decoder:
    """Remove expert groups, since `check` has ensured that every token may use all groups."""

    def plain(part: Any) -> Any:
        return part.replace(groups=None) if isinstance(part, MixtureOfExperts) else part

    return decoder.replace(
        layers=tuple(block.replace(feedforward=plain(block.feedforward)) for block in decoder.layers)
    )


def _read_latents(config: Config, values: Values) -> Values:
    # New files describe one key-value head as wide as the cached latent, and the real head widths in keys ending in
    # _mla. Old files have the real number and widths of heads.
    rank, rope = config.size("attention.kv_lora_rank"), config.size("rope.dimension_count")
    config.used.add("attention.head_count_kv")
    kind = "_mla" if config.get("attention.key_length_mla") is not None else ""
    head_dim, v_head_dim = config.size(f"attention.key_length{kind}"), config.size(f"attention.value_length{kind}")
    if kind:
        config.expect("attention.key_length", rank + rope, "heads of another width")
        config.expect("attention.value_length", rank, "heads of another width")
    if head_dim <= rope:
        raise config.error(
            f"attention.key_length{kind}", f"{head_dim} must exceed the {rope} rotated features", "fix the file"
        )
    return {
        "kv_lora_rank": rank,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": head_dim - rope,
        "v_head_dim": v_head_dim,
        "q_lora_rank": config.count("attention.q_lora_rank", 0) or None,
        "position": Rotary(
            theta=config.positive("rope.freq_base", 10_000.0), interleaved=True, scaling=_read_scaling(config)
        ),
    }


def _write_latents(model: Any) -> Keys:
    mixer = expect_kind(LatentAttention, model.layers[0].mixer, "layers[0].mixer")
    rank, rope = mixer.kv_lora_rank, mixer.qk_rope_head_dim
    return {
        "attention.head_count_kv": 1,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": mixer.head_dim,
        "attention.value_length_mla": mixer.v_head_dim,
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": mixer.query.rank if isinstance(mixer.query, LowRankQuery) else 0,
        "rope.dimension_count": rope,
        "rope.freq_base": mixer.position.theta,
        **_written_scaling(mixer.position.scaling),
    }


def _read_scaling(config: Config) -> RotaryScaling:
    config.used.add("rope.scaling.finetuned")
    match config.get("rope.scaling.type", "none"):
        case "none":
            return NoScaling()
        case "yarn":
            every = config.positive("rope.scaling.yarn_log_multiplier") / TENTH
            every = float(f"{every:.7g}")  # a float32 in the file: 0.0707 / 0.1 should give 0.707 again
            return YarnScaling(
                factor=config.positive("rope.scaling.factor"),
                original_context_length=config.size("rope.scaling.original_context_length"),
                beta_fast=config.positive("rope.scaling.yarn_beta_fast", 32.0),
                beta_slow=config.positive("rope.scaling.yarn_beta_slow", 1.0),
                mscale=every,
                mscale_all_dim=every,
            )
        case kind:
            raise config.error("rope.scaling.type", f"{kind!r} is not supported", "use 'none' or 'yarn'")


def _written_scaling(scaling: RotaryScaling) -> Keys:
    # llama.cpp has only one of DeepSeek's two factors (mscale, mscale_all_dim). If they are equal, rotation keeps the
    # length of vectors.
    field = "layers[*].mixer.position.scaling"
    match scaling:
        case NoScaling():
            return {}
        case YarnScaling(mscale=float(mscale), mscale_all_dim=float(every)) if mscale == every:
            if scaling.attention_factor is not None:
                raise unsupported(f"{field}.attention_factor", "an attention factor in deepseek2")
            if not scaling.truncate:
                raise unsupported(f"{field}.truncate", "a ramp that is not truncated to whole pairs")
            return {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": scaling.factor,
                "rope.scaling.original_context_length": scaling.original_context_length,
                "rope.scaling.yarn_beta_fast": scaling.beta_fast,
                "rope.scaling.yarn_beta_slow": scaling.beta_slow,
                "rope.scaling.yarn_log_multiplier": TENTH * every,
            }
        case YarnScaling():
            raise unsupported(f"{field}.mscale", "yarn with different mscale and mscale_all_dim in deepseek2")
        case _:
            raise unsupported(field, f"{scaling.kind} scaling in deepseek2")


KEYS: tuple[Row, ...] = (
    *SIZES,
    Key("attention.head_count", "num_heads"),
    RMS_EPS,
    Converted(_read_latents, _write_latents),
    Key(
        "leading_dense_block_count",
        "num_dense_layers",
        0,
        check=Config.count,
        path=lambda model: len(dense_layers(model)),
    ),
    Key("feed_forward_length", "d_ff", path=dense_width),
    Key("expert_count", "num_experts"),
    Key("expert_used_count", "experts_per_token"),
    Key("expert_feed_forward_length", "expert_d_ff"),
    Key("expert_shared_count", "num_shared_experts", path=lambda model: shared_width(model) // expert_width(model)),
    Key("expert_weights_scale", "router_scale", 1.0, check=Config.positive, path="last.feedforward.router.scale"),
    Expected("expert_weights_norm", False, "normalized weights", path="last.feedforward.router.renormalize"),
    Expected("expert_gating_func", SOFTMAX, "another affinity", path=lambda model: SOFTMAX),
    Expected("expert_group_count", 1, "groups of experts"),
    Expected("expert_group_used_count", 1, "groups of experts"),
    TIED,
)


RULES = weight_rules(f"""{OUTER}{NORMS}{NETWORK}{SPARSE}
    blk.{{i}}.attn_{{q,output}}                  blocks.{{i}}.mixer.{{q,o}}
    blk.{{i}}.attn_q_{{a,a_norm,b}}              blocks.{{i}}.mixer.{{q_down,q_norm,q_up}}
    blk.{{i}}.attn_kv_{{a_mqa,a_norm,b}}         blocks.{{i}}.mixer.{{kv_down,kv_norm,kv_up}}
    blk.{{i}}.ffn_{{gate,up,down}}_shexp         blocks.{{i}}.feedforward.shared.{{gate,up,down}}
""")
