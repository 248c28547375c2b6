"""Mixtral (Jiang 2024): Llama with experts; as transformers' `mixtral` writes it."""

from typing import Any

from archetype import spec
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format, expect_kind
from archetype.families.llama import BLOCK, FRAME, INV_FREQ, LAYER, PRE_NORMS, llama, read_design, write_design
from archetype.families.rules import rule


def mixtral(
    *,
    num_experts: int = 8,
    experts_per_token: int = 2,
    balance_loss: float = 0.02,
    context_length: int = 32_768,
    position: spec.Rotary = spec.Rotary(theta=1_000_000.0),
    **design: Any,
) -> spec.Decoder:
    """A decoder of Mixtral's design: the weights of a token's experts sum to one; `design` is as in `llama`."""
    dense = llama(context_length=context_length, position=position, **design)
    return dense.replace(layers=tuple(
        block.replace(feedforward=spec.MixtureOfExperts(
            num_experts=num_experts,
            experts_per_token=experts_per_token,
            expert=block.feedforward,
            router=spec.SoftmaxRouter(renormalize=True),
            balance_loss=balance_loss,
        ))
        for block in dense.layers
    ))  # fmt: skip


def read(config: Config) -> spec.Decoder:
    """config.json to specification."""
    design = read_design(
        config,
        num_key_value_heads=8,
        intermediate_size=14_336,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        rope_theta=1_000_000.0,
    )
    config.get("output_router_logits")  # what training returns, not what it computes
    config.expect("router_jitter_noise", 0.0, "noise on what the router reads")
    window = config.optional_size("sliding_window")
    return mixtral(
        **design,
        num_experts=config.size("num_local_experts", 8),
        experts_per_token=config.size("num_experts_per_tok", 2),
        balance_loss=config.number("router_aux_loss_coef", 0.001),
        activation=config.activation("hidden_act", "silu"),
        patterns=(spec.Full() if window is None else spec.Window(size=window),),
    )


def write(model: spec.ModelSpec) -> dict[str, Any]:
    """Specification to config.json."""
    block = expect_kind(spec.Decoder, model, "kind").layers[0]
    experts = expect_kind(spec.MixtureOfExperts, block.feedforward, "layers[0].feedforward")
    mixer = expect_kind(spec.Attention, block.mixer, "layers[0].mixer")
    dense = model.replace(layers=(block.replace(feedforward=experts.expert),))
    return write_design(dense) | {
        "num_hidden_layers": model.num_layers,
        "num_local_experts": experts.num_experts,
        "num_experts_per_tok": experts.experts_per_token,
        "router_aux_loss_coef": experts.balance_loss,
        "sliding_window": mixer.pattern.size if isinstance(mixer.pattern, spec.Window) else None,
    }


EXPERTS = f"{BLOCK}.block_sparse_moe"
RULES = (
    *FRAME,
    *PRE_NORMS,
    rule(f"{EXPERTS}.gate.weight", f"{LAYER}.feedforward.router.weight"),
    *(
        rule(f"{EXPERTS}.experts.{{e}}.{theirs}.weight", f"{LAYER}.feedforward.experts.{ours}")
        for theirs, ours in (("w1", "gate"), ("w3", "up"), ("w2", "down"))
    ),
)

FAMILY = Family(
    "mixtral",
    {
        **presets(
            "Jiang 2024, table 1; mistralai/Mixtral-8x7B-v0.1 config.json",
            mixtral,
            {"mixtral-8x7b": dict(num_layers=32, d_model=4096, num_heads=32, num_kv_heads=8, d_ff=14_336)},
        ),
        **presets(
            "mistralai/Mixtral-8x22B-v0.1 config.json (its Instruct version has 32,768 tokens)",
            mixtral,
            {
                "mixtral-8x22b": dict(
                    num_layers=56,
                    d_model=6144,
                    num_heads=48,
                    num_kv_heads=8,
                    d_ff=16_384,
                    context_length=65_536,
                    balance_loss=0.001,
                )
            },
        ),
        **tiny(
            mixtral,
            {"mixtral-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=96, num_experts=4)},
        ),
    },
    Format("mixtral", "MixtralForCausalLM", read, write, RULES, "model.", INV_FREQ),
)
