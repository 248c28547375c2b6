"""Llama 4 (Meta 2025): chunked layers with rotary positions, full layers without positions, weighted expert inputs."""

from typing import Any

from archetype.families.family import Family, presets
from archetype.families.llama import llama
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import QueryScale
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.norm.spec import NoNorm, RMSNorm
from archetype.parts.pattern.spec import Chunked, Full
from archetype.parts.position.spec import Llama3Scaling, NoPosition, NoScaling, Rotary, RotaryScaling
from archetype.parts.router.spec import SigmoidRouter

WHOLE_EVERY = 4
LONG = Llama3Scaling(factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context_length=8192)


def llama4(
    *, num_experts: int, experts_every: int, qk_norm: bool, scaling: RotaryScaling, context_length: int, name: str = ""
) -> Decoder:
    """Build a Llama 4 text decoder.

    Args:
        experts_every: interval between layers with experts (`interleave_moe_layer_step`). The other layers are dense.
        qk_norm: whether queries and keys are normalized after rotation.
    """
    sizes: dict[str, Any] = {"vocab_size": 202_048, "context_length": context_length, "name": name}
    model = llama(
        num_layers=48, d_model=5120, num_heads=40, num_kv_heads=8, head_dim=128, d_ff=16_384,
        position=Rotary(theta=500_000.0, interleaved=True, scaling=scaling), **sizes,
    )
    # `attention_chunk_size` 8192; `use_qk_norm` divides by the root mean square, without weights
    rotates = {"qk_norm": RMSNorm(eps=1e-5, weight=False) if qk_norm else NoNorm(), "qk_norm_after_rope": qk_norm,
               "pattern": Chunked(size=8192)}
    # `no_rope_layers`; without positions, queries are scaled by the logarithm of their position
    # (`attn_temperature_tuning`)
    whole = {"position": NoPosition(), "pattern": Full(), "query_scale": QueryScale(beta=0.1, length=8192, offset=1)}
    expert = GatedMLP(d_ff=8192, activation="silu")
    experts = MixtureOfExperts(
        # a sigmoid of the router's score multiplies the input of an expert, not its output
        num_experts=num_experts, experts_per_token=1, expert=expert, shared=expert, weighs="inputs",
        router=SigmoidRouter(),
    )
    return model.replace(layers=tuple(
        block.replace(
            mixer=block.mixer.replace(**(rotates if layer % WHOLE_EVERY else whole)),
            feedforward=block.feedforward if layer % experts_every else experts,
        )
        for layer, block in enumerate(model.layers, 1)
    ))


# Published files are inferred from their tensors, like files of unregistered families.
FAMILY = Family("llama4", presets("Meta 2025; meta-llama/Llama-4-* config.json, the part that reads text", llama4, {
    "llama-4-scout": dict(num_experts=16, experts_every=1, qk_norm=True, scaling=LONG, context_length=10_485_760),
    "llama-4-maverick": dict(num_experts=128, experts_every=2, qk_norm=False, scaling=NoScaling(),
        context_length=1_048_576),
}))
