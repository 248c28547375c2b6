"""Canonical form of equal specifications, for comparison with what a file describes."""

from typing import Any

from archetype.families.standard_block import changed
from archetype.models.block.spec import NormedWiring
from archetype.models.decoder.spec import Decoder
from archetype.models.encoder.spec import Encoder
from archetype.parts.attention.spec import Attention
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.latent_attention.spec import LatentAttention
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.pattern.spec import Full, Window
from archetype.parts.position.spec import Rotary
from archetype.parts.together.spec import MixersTogether
from archetype.roles.wiring import Wiring

LATENTS_EPS = 1e-6


def plain(model: Any) -> Any:
    """Return an equal specification without defaults, with each common norm written once."""
    if isinstance(model, Encoder):
        model = model.replace(pooler=False, pooling="first")  # which need a head
    if not isinstance(model, Decoder | Encoder):
        return model
    return changed(
        model,
        wiring=_plain_wiring,
        mixer=lambda mixer: _plain_mixer(mixer, model.d_model),
        feedforward=lambda part: _plain_network(part, model.d_model),
    )


def without_windows(model: Any) -> Any:
    """Replace sliding windows with full attention, which llama.cpp computes for these architectures.

    The context is shortened to the narrowest window, within which both mechanisms are equal.
    """
    blocks, widths = list(model.layers), []
    for index, block in enumerate(blocks):
        if isinstance(block.mixer, Attention) and isinstance(block.mixer.pattern, Window):
            widths.append(block.mixer.pattern.size)
            blocks[index] = block.replace(mixer=block.mixer.replace(pattern=Full()))
    if not widths:
        return plain(model)
    return plain(model.replace(layers=tuple(blocks), context_length=min(model.context_length, *widths)))


def with_one_epsilon(model: Any) -> Any:
    """Set the epsilon of latent norms to that of the other norms; llama.cpp has only one (Kimi's classes use 1e-6).

    The mean square of a latent is near 1, so a difference of 9e-6 is below bfloat16's rounding.
    """

    def mixer(part: Any) -> Any:
        if not isinstance(part, LatentAttention) or part.norm != RMSNorm(eps=LATENTS_EPS):
            return part
        return part.replace(norm=part.norm.replace(eps=model.final_norm.eps))

    if not isinstance(model.final_norm, RMSNorm):
        return plain(model)
    return plain(changed(model, mixer=mixer))


def _plain_wiring(wiring: Wiring) -> Wiring:
    if not isinstance(wiring, NormedWiring):
        return wiring
    names = [name for name in type(wiring).model_fields if name.endswith("_norm") and name != "shared_norm"]
    return wiring.replace(**{name: None for name in names if getattr(wiring, name) == wiring.norm})


def _plain_mixer(mixer: Any, d_model: int) -> Any:
    if isinstance(mixer, MixersTogether):
        return mixer.replace(parts=tuple(_plain_mixer(part, d_model) for part in mixer.parts))
    if not isinstance(mixer, Attention):
        return mixer
    sizes, position = mixer.sizes(d_model), mixer.position
    if isinstance(position, Rotary) and position.dim == sizes.head_dim:
        position = position.replace(dim=None)
    return mixer.replace(
        num_kv_heads=None if sizes.num_kv_heads == sizes.num_heads else sizes.num_kv_heads,
        head_dim=None if sizes.head_dim * sizes.num_heads == d_model else sizes.head_dim,
        v_head_dim=None if mixer.v_head_dim == sizes.head_dim else mixer.v_head_dim,
        position=position,
    )


def _plain_network(part: Any, d_model: int) -> Any:
    if isinstance(part, MixtureOfExperts):
        groups = part.groups
        if groups is not None and groups.num_groups == groups.groups_per_token:
            groups = None  # every token may use all groups
        fields = {name: _plain_network(getattr(part, name), d_model) for name in ("expert", "shared")}
        return part.replace(groups=groups, **fields)
    if isinstance(part, MLP | GatedMLP):
        down = None if part.down_bias == part.bias else part.down_bias
        return part.replace(d_ff=part.width(d_model), down_bias=down)
    return part
