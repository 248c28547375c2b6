"""Latent attention and mixtures of experts compute what transformers does for Mixtral and DeepSeek-V2, all random."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DeepseekV2Config, DynamicCache, MixtralConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import (
    DeepseekV2Attention,
    DeepseekV2Moe,
    DeepseekV2RotaryEmbedding,
)
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from archetype import spec
from archetype.hf.cache import NAME
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.experts.module import MixtureOfExperts
from archetype.parts.latent_attention.module import LatentAttention
from tests.helpers.weights import distance, randomize

EXACT = 1e-5
D, T = 32, 12
X = torch.randn(2, T, D, generator=torch.Generator().manual_seed(0))


def experts_of(theirs: nn.Module) -> dict[str, Tensor]:
    """Gate and up lie in one tensor there."""
    gate, up = theirs.experts.gate_up_proj.chunk(2, dim=1)
    named = {"router.weight": theirs.gate.weight, "experts.gate": gate, "experts.up": up}
    return named | {"experts.down": theirs.experts.down_proj}


def compare(ours: MixtureOfExperts, theirs: nn.Module, weights: dict[str, Tensor]) -> None:
    ours.load_state_dict(weights)
    with torch.no_grad():
        assert distance(ours.eval()(X, ForwardContext.of(X)), theirs(X.clone())) < EXACT
        # a lost tensor would show
        ours.router.weight.copy_(ours.router.weight.roll(1, 0))
        assert distance(ours(X, ForwardContext.of(X)), theirs(X.clone())) > 1e-3


@pytest.mark.parametrize("chosen", [1, 2, 8])
def test_mixtral(chosen: int) -> None:
    config = MixtralConfig(hidden_size=D, intermediate_size=44, num_local_experts=8, num_experts_per_tok=chosen)
    theirs = randomize(MixtralSparseMoeBlock(config))
    expert = spec.GatedMLP(d_ff=44, activation="silu")
    router = spec.SoftmaxRouter(renormalize=True)
    part = spec.MixtureOfExperts(num_experts=8, experts_per_token=chosen, expert=expert, router=router)
    compare(MixtureOfExperts(part, Place(D)), theirs, experts_of(theirs))


@pytest.mark.parametrize("groups", [None, spec.ExpertGroups(num_groups=4, groups_per_token=2)])
@pytest.mark.parametrize("scale", [1.0, 16.0])
def test_deepseek_v2(groups: spec.ExpertGroups | None, scale: float) -> None:
    grouped: dict[str, Any] = {"topk_method": "greedy"}
    if groups is not None:
        grouped = {
            "topk_method": "group_limited_greedy", "n_group": groups.num_groups, "topk_group": groups.groups_per_token,
        }  # fmt: skip
    config = DeepseekV2Config(
        hidden_size=D, moe_intermediate_size=10, n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3,
        routed_scaling_factor=scale, **grouped,
    )  # fmt: skip
    theirs = randomize(DeepseekV2Moe(config))
    expert = spec.GatedMLP(d_ff=10, activation="silu")
    part = spec.MixtureOfExperts(
        num_experts=8,
        experts_per_token=3,
        expert=expert,
        shared=expert.replace(d_ff=20),
        router=spec.SoftmaxRouter(scale=scale),
        groups=groups,
    )
    dense = theirs.shared_experts
    shared = {f"shared.{name}.weight": getattr(dense, f"{name}_proj").weight for name in ("gate", "up", "down")}
    compare(MixtureOfExperts(part, Place(D)), theirs, experts_of(theirs) | shared)


SIZES = {"kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 8}
YARN = {"factor": 40.0, "original_max_position_embeddings": 8}
SCALINGS: dict[str, tuple[dict[str, Any], spec.RotaryScaling, float]] = {
    # rope parameters there; scaling here; what mscale_all_dim multiplies the scale with
    "none": ({"rope_type": "default"}, spec.NoScaling(), 1.0),
    "linear": ({"rope_type": "linear", "factor": 4.0}, spec.LinearScaling(factor=4.0), 1.0),
    "yarn": ({"rope_type": "yarn"} | YARN, spec.YarnScaling(factor=40.0, original_context_length=8), 1.0),
    "yarn with mscale": (
        {"rope_type": "yarn", "mscale": 0.707, "mscale_all_dim": 0.3} | YARN,
        spec.YarnScaling(factor=40.0, original_context_length=8, mscale=0.707, mscale_all_dim=0.3),
        (0.1 * 0.3 * math.log(40.0) + 1) ** 2,
    ),
}
NAMES = {
    "q_proj": "q", "q_a_proj": "q_down", "q_a_layernorm": "q_norm", "q_b_proj": "q_up", "kv_a_proj_with_mqa": "kv_down",
    "kv_a_layernorm": "kv_norm", "kv_b_proj": "kv_up", "o_proj": "o",
}  # fmt: skip


def attentions(rank: int | None, scaling: str, bias: bool) -> tuple[LatentAttention, DeepseekV2Attention]:
    """Ours and theirs, with one set of weights."""
    parameters, ours, temperature = SCALINGS[scaling]
    config = DeepseekV2Config(
        hidden_size=D, num_attention_heads=4, q_lora_rank=rank, attention_bias=bias, max_position_embeddings=64,
        rope_parameters={"rope_theta": 100.0} | parameters, attn_implementation="eager", **SIZES,
    )  # fmt: skip
    theirs = randomize(DeepseekV2Attention(config, layer_idx=0))
    mixer = spec.LatentAttention(
        num_heads=4,
        query=spec.LowRankQuery(rank=rank) if rank else spec.DirectQuery(),
        position=spec.Rotary(theta=100.0, interleaved=True, scaling=ours),
        bias=bias,
        scale=temperature / math.sqrt(SIZES["qk_nope_head_dim"] + SIZES["qk_rope_head_dim"]),
        **SIZES,
    )
    part = LatentAttention(mixer, Place(D, causal=True)).eval()
    named = ((*name.split("."), tensor) for name, tensor in theirs.state_dict().items())
    part.load_state_dict({f"{NAMES[module]}.{kind}": tensor for module, kind, tensor in named})
    return part, theirs


@torch.no_grad()
def their_result(theirs: DeepseekV2Attention, x: Tensor, cache: DynamicCache | None = None, start: int = 0) -> Tensor:
    positions = torch.arange(start, start + x.shape[1])
    angles = DeepseekV2RotaryEmbedding(theirs.config)(x, positions[None])
    later = positions[:, None] < torch.arange(start + x.shape[1])
    mask = torch.zeros(later.shape).masked_fill(later, -math.inf)[None, None]
    return theirs(x, attention_mask=mask, position_embeddings=angles, **{NAME: cache})[0]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("rank", [None, 10])
@torch.no_grad()
def test_latent_attention(rank: int | None, scaling: str, bias: bool) -> None:
    part, theirs = attentions(rank, scaling, bias)
    expected = their_result(theirs, X)
    assert distance(part(X, ForwardContext.of(X)), expected) < EXACT
    # another order of the turned pairs would show
    part.rotary.spec = part.rotary.spec.replace(interleaved=False)
    assert distance(part(X, ForwardContext.of(X)), expected) > 1e-3


@pytest.mark.parametrize("rank", [None, 10])
@torch.no_grad()
def test_latent_attention_on_a_state(rank: int | None) -> None:
    """Nine tokens, then one by one: theirs expands its cache, ours looks at the latents."""
    part, theirs = attentions(rank, "yarn with mscale", True)
    state, cache = part.new_state(2, T, X.dtype, X.device), DynamicCache()
    for start, end in ((0, 9), (9, 10), (10, 11), (11, 12)):
        x = X[:, start:end]
        y = part(x, ForwardContext.of(x, torch.full((2,), start)), state)
        assert distance(y, their_result(theirs, x, cache, start)) < EXACT
    assert part.spec.absorbs(1, T)
