"""Gemma 4's texts (Google 2026): keys of earlier layers, per-layer inputs, keys as values, experts added to a network.

Published folders, of texts or of texts with images, are inferred from their files.
"""

from typing import Any

from archetype.families.family import Family, presets, tiny
from archetype.families.standard_block import decoder
from archetype.models.block.spec import Block, NoMixer, OutputNorm, SandwichNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import Attention
from archetype.parts.embedding.spec import Embedding, PerLayerEmbedding
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.per_layer_input.spec import PerLayerInput
from archetype.parts.position.spec import ProportionalScaling, Rotary
from archetype.parts.router.spec import SoftmaxRouter
from archetype.parts.together.spec import FeedForwardsTogether
from archetype.roles.feedforward import FeedForward

LOCAL = Rotary(theta=10_000.0)
GLOBAL = Rotary(theta=1_000_000.0, scaling=ProportionalScaling(share=0.25))


def gemma4_text(
    *,
    num_layers: int,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    d_ff: int,
    window: int = 1024,
    period: int = 6,
    head_dim: int = 256,
    full_head_dim: int = 512,
    full_kv_heads: int | None = None,
    keys_as_values: bool = False,
    num_shared: int = 0,
    shared_d_ff: int | None = None,
    layer_features: int = 0,
    num_experts: int = 0,
    experts_per_token: int = 8,
    expert_d_ff: int = 704,
    eps: float = 1e-6,
    position: Rotary = GLOBAL,
    local_position: Rotary = LOCAL,
    **model: Any,
) -> Decoder:
    """Build a Gemma 4 decoder.

    Every `period`-th layer has full attention, with its own head width, number of key heads and, with
    `keys_as_values`, no projection to values. The last `num_shared` layers read the keys of the last earlier layer of
    their kind. With `layer_features`, a block with a per-layer input follows each layer. With `num_experts`, each
    network has experts beside it, whose router reads the residual stream.
    """
    norm = RMSNorm(eps=eps)
    first_shared, each = num_layers - num_shared, 2 if layer_features else 1
    full = [(layer + 1) % period == 0 for layer in range(num_layers)]

    def mixer(layer: int) -> Attention:
        is_full = full[layer]
        kv_heads, width = (full_kv_heads or num_kv_heads, full_head_dim) if is_full else (num_kv_heads, head_dim)
        candidates = [before for before in range(first_shared) if full[before] == is_full]
        return Attention(
            num_heads=num_heads,
            num_kv_heads=None if kv_heads == num_heads else kv_heads,
            head_dim=None if width * num_heads == d_model else width,
            scale=1.0,
            qk_norm=norm,
            keys_as_values=keys_as_values and is_full,
            value_norm=norm.replace(weight=False),
            position=position if is_full else local_position,
            pattern=Full() if is_full else Window(size=window),
            keys_from=each * candidates[-1] if layer >= first_shared else None,
        )

    def network_of(width: int) -> FeedForward:
        network = GatedMLP(d_ff=width, activation="gelu_tanh")
        if not num_experts:
            return network
        experts = MixtureOfExperts(
            num_experts=num_experts,
            experts_per_token=experts_per_token,
            expert=network.replace(d_ff=expert_d_ff),
            norm=norm,
            router=SoftmaxRouter(renormalize=True, norm=norm, scaled=True, expert_scales=True),
        )
        return FeedForwardsTogether(parts=(network, experts), norms=(norm, NoNorm()), post_norms=(norm, norm))

    blocks: list[Block] = []
    for layer in range(num_layers):
        width = shared_d_ff if shared_d_ff is not None and layer >= first_shared else d_ff
        wiring, network = SandwichNorm(norm=norm), network_of(width)
        if num_experts:  # each has separate norms
            wiring = SandwichNorm(norm=norm, feedforward_norm=NoNorm())
        blocks.append(Block(wiring=wiring, mixer=mixer(layer), feedforward=network))
        if layer_features:
            own = PerLayerInput(features=layer_features)
            blocks.append(Block(wiring=OutputNorm(norm=norm), mixer=NoMixer(), feedforward=own))
        blocks[-1] = blocks[-1].replace(output_scale=True)
    per_layer = PerLayerEmbedding(features=layer_features, norm=norm) if layer_features else None
    return decoder(
        tuple(blocks),
        norm=norm,
        tied=True,
        d_model=d_model,
        embedding=Embedding(scale=d_model**0.5, round_scale=True, per_layer=per_layer),
        **({"vocab_size": 262_144, "context_length": 131_072, "softcap": 30.0} | model),
    )


SIZES: dict[str, dict[str, Any]] = {
    "gemma4-e2b": dict(num_layers=35, d_model=1536, num_heads=8, num_kv_heads=1, d_ff=6144, window=512, period=5,
        num_shared=20, shared_d_ff=12_288, layer_features=256),
    "gemma4-26b-a4b": dict(num_layers=30, d_model=2816, num_heads=16, num_kv_heads=8, d_ff=2112, full_kv_heads=2,
        keys_as_values=True, num_experts=128, context_length=262_144),
    "gemma4-31b": dict(num_layers=60, d_model=5376, num_heads=32, num_kv_heads=16, d_ff=21_504, full_kv_heads=4,
        keys_as_values=True, context_length=262_144),
}  # fmt: skip
FAMILY = Family("gemma4_text", {
    **presets("text_config of google/gemma-4-* config.json", gemma4_text, SIZES),
    **presets("pytorch/executorch examples/models/gemma4/config/e4b_config.json", gemma4_text, {
        "gemma4-e4b": dict(num_layers=42, d_model=2560, num_heads=8, num_kv_heads=2, d_ff=10_240, window=512,
            num_shared=18, layer_features=256),
    }),
    **tiny(gemma4_text, {
        "gemma4-tiny": dict(num_layers=2, num_heads=2, num_kv_heads=1, d_ff=160, window=32, period=2, head_dim=16,
            full_head_dim=32, keys_as_values=True, layer_features=16),
        "gemma4-moe-tiny": dict(num_layers=2, num_heads=2, num_kv_heads=1, d_ff=80, window=32, period=2, head_dim=16,
            full_head_dim=32, keys_as_values=True, num_experts=4, experts_per_token=2, expert_d_ff=40),
    }),
})
