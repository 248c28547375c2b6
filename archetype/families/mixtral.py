"""Mixtral (Jiang 2024): Llama with experts."""

from archetype import spec
from archetype.families.family import Family, sizes, tiny


def mixtral(
    *,
    name: str = "",
    num_layers: int,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    d_ff: int,
    num_experts: int = 8,
    experts_per_token: int = 2,
    vocab_size: int = 32_000,
    context_length: int = 32_768,
    position: spec.Rotary = spec.Rotary(theta=1_000_000.0),
    eps: float = 1e-5,
    balance_loss: float = 0.02,
    std: float = 0.02,
) -> spec.Decoder:
    """A decoder of Mixtral's design; the weights of a token's experts sum to one."""
    norm = spec.RMSNorm(eps=eps)
    block = spec.Block(
        wiring=spec.PreNorm(norm=norm),
        mixer=spec.Attention(num_heads=num_heads, num_kv_heads=num_kv_heads, position=position),
        feedforward=spec.MixtureOfExperts(
            num_experts=num_experts,
            experts_per_token=experts_per_token,
            expert=spec.GatedMLP(d_ff=d_ff, activation="silu"),
            router=spec.SoftmaxRouter(renormalize=True),
            balance_loss=balance_loss,
        ),
    )
    return spec.Decoder(
        name=name,
        vocab_size=vocab_size,
        context_length=context_length,
        d_model=d_model,
        layers=spec.repeat(num_layers, block),
        final_norm=norm,
        initialization=spec.NormalInitialization(std=std),
    )


FAMILY = Family(
    "mixtral",
    {
        **sizes(
            "Jiang 2024, table 1; mistralai/Mixtral-8x7B-v0.1 config.json",
            mixtral,
            {"mixtral-8x7b": dict(num_layers=32, d_model=4096, num_heads=32, num_kv_heads=8, d_ff=14_336)},
        ),
        **sizes(
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
)
