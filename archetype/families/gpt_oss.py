"""gpt-oss (OpenAI 2025): attention sinks, alternating sliding windows, and clamped experts.

Format: transformers' `gpt_oss`. The published weights are in MXFP4 and are dequantized to bfloat16.
"""

from typing import Any

from archetype.families.config import Config
from archetype.families.decoder_classes import OF_TOKENS
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Expected, Key, Values, ignored
from archetype.families.layer_types import FULL, SLIDING, read_patterns, write_patterns
from archetype.families.llama import FRAME, INV_FREQ, PARTS, PRE_NORMS, design_keys, llama
from archetype.families.rope import rotary_section
from archetype.families.rules import Rule, rule, weight_rules
from archetype.families.standard_block import changed
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.activation.spec import Swish
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.spec import Rotary, YarnScaling
from archetype.parts.router.spec import SoftmaxRouter
from archetype.roles.pattern import Pattern

# context extended from 4,096 tokens by a factor of 32
LONG = Rotary(theta=150_000.0, scaling=YarnScaling(factor=32.0, original_context_length=4096, truncate=False))


def gpt_oss(
    *,
    num_experts: int,
    experts_per_token: int = 4,
    d_ff: int = 2880,
    limit: float = 7.0,
    beta: float = 1.702,
    window: int = 128,
    patterns: tuple[Pattern, ...] | None = None,
    balance_loss: float = 0.9,
    **design: Any,
) -> Decoder:
    """Build a gpt-oss decoder. `design` takes the arguments of `llama`.

    By default, `patterns` alternate layers with a `window` and layers with full attention. Experts multiply the swish
    of their gate, with `beta`, by 1 + up, both clamped by `limit`.
    """
    usual: dict[str, Any] = {"head_dim": 64, "vocab_size": 201_088, "context_length": 131_072}
    usual |= {"position": LONG, "attention_bias": True}
    model = llama(
        # the dense parts of `llama` are replaced by experts below
        d_ff=d_ff, patterns=patterns or (Window(size=window), Full()), attention={"sinks": True},
        activation=Swish(beta=beta), **usual | design,
    )
    experts = MixtureOfExperts(
        num_experts=num_experts,
        experts_per_token=experts_per_token,
        expert=GatedMLP(d_ff=d_ff, activation=Swish(beta=beta), bias=True, limit=limit, unit_offset=True),
        # the softmax is over the selected experts only, so their weights sum to one
        router=SoftmaxRouter(renormalize=True, bias=True),
        balance_loss=balance_loss,
    )
    return changed(model, feedforward=lambda _: experts)


def _read_windows(config: Config, values: Values) -> Values:
    size = config.optional_size("sliding_window", 128)
    return {"patterns": read_patterns(config, values["num_layers"], size, lambda i: FULL if i % 2 else SLIDING)}


def _read_position(config: Config, values: Values) -> Values:
    # a file without a section on positions has the positions of the published models
    if rotary_section(config) is not None:
        return {}
    return {"position": LONG.replace(theta=config.positive("rope_theta", LONG.theta))}


EXPERT = "block.feedforward.expert"
KEYS = ConfigTable(gpt_oss, (
    # settings of training and output, and the original context length, which is also among YaRN's settings
    ignored("initial_context_length", "output_router_logits", "experts_per_token"),
    Expected("hidden_act", "silu", "another activation", path=lambda model: "silu"),
    *design_keys(150_000.0, f"{EXPERT}", hidden_size=2880, num_attention_heads=64, num_key_value_heads=8, head_dim=64,
        num_hidden_layers=36, vocab_size=201_088, max_position_embeddings=131_072, intermediate_size=2880,
        rms_norm_eps=1e-5),
    Converted(_read_position, lambda model: {}),
    Converted(_read_windows, write_patterns),
    Key("attention_bias", "attention_bias", True),
    Key("num_local_experts", "num_experts", 128),
    Key("num_experts_per_tok", "experts_per_token", 4),
    Key("swiglu_alpha", "beta", 1.702, check=Config.positive, path=f"{EXPERT}.activation.beta"),
    Key("swiglu_limit", "limit", 7.0, check=Config.positive, path=f"{EXPERT}.limit"),
    Key("router_aux_loss_coef", "balance_loss", 0.001),
), parts=PARTS | {"block.feedforward": MixtureOfExperts, EXPERT: GatedMLP})


def _rules(model: ModelSpec) -> tuple[Rule, ...]:
    # all experts are in one tensor, whose gate and up columns are interleaved
    assert isinstance(model, Decoder)
    experts = model.layers[0].feedforward
    assert isinstance(experts, MixtureOfExperts)
    num_experts, d, f = experts.num_experts, model.d_model, experts.expert.width(model.d_model)
    hf, param = "model.layers.{i}.mlp.experts.", "blocks.{i}.feedforward.experts."
    turns: dict[str, Any] = {"heads": num_experts * f}
    return (
        *FRAME,
        *PRE_NORMS,
        *weight_rules("""
            model.layers.{i}.self_attn.sinks                 = blocks.{i}.mixer.sinks
            model.layers.{i}.mlp.router                        blocks.{i}.feedforward.router
            model.layers.{i}.mlp.experts.down_proj_bias      = blocks.{i}.feedforward.experts.down_bias
        """),
        rule(f"{hf}down_proj", f"{param}down", transposed=True),
        rule(f"{hf}gate_up_proj", f"{param}gate", f"{param}up", transposed=True, shape=(num_experts, d, 2 * f),
            **turns),
        rule(f"{hf}gate_up_proj_bias", f"{param}gate_bias", f"{param}up_bias", shape=(num_experts, 2 * f), **turns),
    )


FAMILY = Family("gpt_oss", {
    **presets("OpenAI 2025, table 1; openai/gpt-oss-* config.json", gpt_oss, {
        "gpt-oss-20b": dict(num_layers=24, d_model=2880, num_heads=64, num_kv_heads=8, num_experts=32),
        "gpt-oss-120b": dict(num_layers=36, d_model=2880, num_heads=64, num_kv_heads=8, num_experts=128),
    }, weights={r".*\.experts\.(gate|up|down)": "mxfp4", ".*": "bfloat16"}),
    **tiny(gpt_oss, {
        "gpt-oss-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, head_dim=24, d_ff=64, num_experts=4,
            experts_per_token=2, window=32, position=Rotary(theta=150_000.0)),
    }),
}, Format("gpt_oss", "GptOssForCausalLM", KEYS, _rules, "model.", INV_FREQ, class_heads=OF_TOKENS))
