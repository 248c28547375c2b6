"""Inference of a layer's feed-forward part from tensor shapes."""

import re
from typing import Any, Literal, get_args

from archetype.convert.infer.checkpoint_info import CheckpointInfo, list_item
from archetype.convert.infer.names import BESIDE_EXPERTS
from archetype.convert.infer.spellings import ACTIVATION, EXPERTS_PER_TOKEN, GROUPS, RENORMALIZE, ROUTER_SCALE, SCORING
from archetype.convert.infer.tensors import Layer, Names
from archetype.errors import CheckpointError
from archetype.parts.activation.spec import GaussianTopK, SiLU, Swish
from archetype.parts.channel_mixing.spec import ChannelMixing
from archetype.parts.experts.spec import ExpertGroups, MixtureOfExperts
from archetype.parts.feedforward.spec import MLP, GatedMLP, NoFeedForward
from archetype.parts.gain.spec import Gain
from archetype.parts.norm.spec import NoNorm
from archetype.parts.router.spec import (
    HashRouter,
    MLPRouter,
    SigmoidRouter,
    SoftmaxRouter,
    SparseMixerRouter,
    SqrtSoftplusRouter,
)
from archetype.parts.together.spec import FeedForwardsTogether, SumConvolutions
from archetype.roles.feedforward import FeedForward
from archetype.roles.router import Router

NETWORK_SCALES = "mlp_multipliers"
IDLE = "zero_expert_num"  # number of experts that return their input
LIMIT, BETA = "swiglu_limit", "swiglu_alpha"  # of gates as in gpt-oss
UP_BOUND = "activation_situ_linear_beta"  # of the other factor, with the activation SiTU
SPARSITY = "activation_sparsity_pattern"
LIMITS = ("swiglu_limits", "swiglu_limits_shared")  # of each layer: of experts, and of networks for all tokens
# Kinds of routers by their score functions.
ROUTERS: dict[str, type[SoftmaxRouter | SigmoidRouter | SqrtSoftplusRouter]] = {
    "softmax": SoftmaxRouter, "sigmoid": SigmoidRouter, "sqrtsoftplus": SqrtSoftplusRouter,
}  # fmt: skip
AFFINITIES = {"softmax": "softmax", "sigmoid": "sigmoid", "sqrtsoftplus": "sqrt_softplus"}  # of routers by token id
# Concatenated in either order, or interleaved row by row.
GateUpOrder = Literal["gate_up", "up_gate", "gate_up_in_turn"]


def read_feedforward(info: CheckpointInfo, layer: Layer, transposed: bool, apart: bool) -> FeedForward:
    """Infer the feed-forward part of a layer, with a factor and a convolution of its output.

    Args:
        transposed: whether matrices are stored as (inputs, outputs).
        apart: whether a layer may have either a mixer or a feed-forward part (Nemotron-H, DeciLM).
    """
    part = _read_feedforward(info, layer, transposed, apart)
    kernel = layer.around.get("convolutions.output.weight")
    if kernel is None and "scales" not in layer.around:
        return part
    if layer.dense:
        raise info.missing(layer.prefix, "a factor or a convolution after an MLP parallel to experts")
    convolutions = None if kernel is None else SumConvolutions(kernel=info.shapes[kernel][-1])
    scales = "learned" if "scales" in layer.around else None
    return FeedForwardsTogether(parts=(part,), scales=scales, convolutions=convolutions)


def _read_feedforward(info: CheckpointInfo, layer: Layer, transposed: bool, apart: bool) -> FeedForward:
    if layer.sparse:
        experts = _experts(info, layer)
        experts = experts.replace(
            expert=_bounded(info, layer, experts.expert, LIMITS[0]),
            shared=experts.shared and _bounded(info, layer, experts.shared, LIMITS[1]),
        )
        if not layer.dense:
            return experts
        if info.quirks.delayed_experts:
            parts = (_dense(info, layer, layer.dense, transposed), experts)
            return FeedForwardsTogether(parts=parts, delayed=(False, True))
        return _beside_experts(info, layer, experts, transposed)
    names = layer.network
    if not names and (layer.reader.stands_alone or apart):
        return NoFeedForward()
    if "mix" in names and "down.weight" in names:  # RWKV-4
        width = info.sides(names["down.weight"])[1]
        return ChannelMixing(d_ff=width, receptance="receptance.weight" in names, mix_of="token")
    _settle_first_matrix(info, layer, names.get("gate.weight", ""))
    names = layer.network
    network = _sparse(info, layer, _bounded(info, layer, _dense(info, layer, names, transposed), LIMITS[1]))
    network = _scaled(info, network)
    if "gate_gain.weight" in names:  # Dory: sqrt(D) times what is stored
        network = network.replace(hidden_gain=Gain(init=layer.d_model**0.5))
    if "hidden_norm.weight" not in names and not info.quirks.output_norms:
        return network
    if not isinstance(network, MLP | GatedMLP):
        raise info.missing(layer.prefix, "an inner norm in a feed-forward network with learned factors")
    return network.replace(hidden_norm=info.norm(bias="hidden_norm.bias" in names))


def _dense(info: CheckpointInfo, layer: Layer, names: Names, transposed: bool) -> MLP | GatedMLP:
    if "down.weight" not in names:
        raise info.missing(layer.prefix, "an unknown kind of feed-forward part")
    gated = "gate.weight" in names or "gate_up.weight" in names
    if "gate_up.weight" in names:
        gate_up_order(info)
    width = info.sides(names["down.weight"])[0 if transposed else 1]
    return _network(info, gated, width, bias="down.bias" in names)


def _beside_experts(
    info: CheckpointInfo, layer: Layer, experts: MixtureOfExperts, transposed: bool
) -> FeedForwardsTogether:
    # Gemma 4: a network and experts have separate input norms and separate output norms
    if layer.around.keys() != {*BESIDE_EXPERTS.values()}:
        raise info.missing(layer.prefix, "a feed-forward network parallel to experts, without norms of both")
    dense, norm = _dense(info, layer, layer.dense, transposed), info.norm(bias=False)
    experts = experts.replace(norm=norm)
    return FeedForwardsTogether(parts=(dense, experts), norms=(norm, NoNorm()), post_norms=(norm, norm))


def _scaled(info: CheckpointInfo, network: MLP | GatedMLP) -> FeedForward:
    # Falcon-H1: factors on the gate before its activation, and on the output; silu(m g) is m times the swish of slope m
    scales = info.config.get(NETWORK_SCALES)
    match scales:
        case None | [1, 1]:
            return network
        case [float() | int() as gate, float() | int() as down] if gate > 0:
            if not isinstance(network, GatedMLP) or network.activation != SiLU() or network.bias:
                raise info.missing(f"{info.config.place}: {NETWORK_SCALES}", "factors in a network other than SwiGLU")
            network = network.replace(activation=Swish(beta=gate))
            return FeedForwardsTogether(parts=(network,), scales=(gate * down,))
    raise info.config.error(NETWORK_SCALES, "is not a pair of factors, of gate and output", "fix the file")


def _network(info: CheckpointInfo, gated: bool, width: int, bias: bool = False, routed: bool = False) -> MLP | GatedMLP:
    limit, beta = info.config.optional_positive(LIMIT), info.config.optional_positive(BETA)
    if (clamped := info.quirks.clamps) is not None:
        limit = limit if routed or clamped == "all" else None
        return GatedMLP(d_ff=width, activation=info.activation(gated), bias=bias, limit=limit)
    if gated and info.first(ACTIVATION) == "situ":
        bound = info.config.optional_positive(UP_BOUND)
        return GatedMLP(d_ff=width, activation=info.activation(gated), bias=bias, up_bound=bound)
    if not gated or (limit is None and beta is None):
        kind = GatedMLP if gated else MLP
        return kind(d_ff=width, activation=info.activation(gated), bias=bias)
    if beta is None:
        raise info.missing(f"{info.config.place}: {LIMIT}", "clamped gates that differ from gpt-oss's")
    info.first(ACTIVATION)  # the clamped gate has a separate activation
    info.assume("layers[*].feedforward.unit_offset", True, f"as in gpt-oss, since {BETA} is there")
    return GatedMLP(d_ff=width, activation=Swish(beta=beta), bias=bias, limit=limit, unit_offset=True)


def _sparse(info: CheckpointInfo, layer: Layer, network: Any) -> Any:
    # Gemma 3n: the share of the gates that are zero, in each layer
    shares = info.config.get(SPARSITY)
    if shares is None:
        return network
    share = list_item(shares, layer.number)
    if not isinstance(share, float | int) or isinstance(share, bool) or share >= 1:
        raise info.config.error(SPARSITY, f"has no share below 1 for layer {layer.number}", "fix the file")
    if share <= 0:
        return network
    return network.replace(activation=GaussianTopK(share=float(share), activation=network.activation))


def _bounded(info: CheckpointInfo, layer: Layer, network: Any, key: str) -> Any:
    # Step 3.5: a bound of the factors of the product in some layers; 0 or null for none
    bounds = info.config.get(key)
    if bounds is None:
        return network
    bound = bounds[layer.number] if isinstance(bounds, list) and layer.number < len(bounds) else -1
    if not (bound is None or (isinstance(bound, float | int) and bound >= 0)):
        raise info.config.error(key, f"has no bound for layer {layer.number}", "fix the file")
    if bound and not hasattr(network, "limit_after"):
        raise info.missing(layer.prefix, "clamping in a feed-forward network without a gate")
    return network.replace(limit=float(bound), limit_after=True) if bound else network


def _experts(info: CheckpointInfo, layer: Layer) -> MixtureOfExperts:
    names = layer.network
    matrix = names.get("router.weight", names.get("router.out.weight"))
    if matrix is None:
        raise info.missing(layer.prefix, "an unknown kind of router")
    # the router's matrix is (E, D)
    rows, width = info.sides(matrix)[0], _expert_width(info, layer)
    idle = rows - info.config.size("num_experts") if info.quirks.idle_output == "zero" else _idle(info)
    always = info.shapes[names["always.down.weight"]][0] if "always.down.weight" in names else 0
    num_experts = rows - idle - always
    if num_experts < 1:
        raise info.missing(layer.prefix, f"a router of {rows} experts, {idle + always} of them idle or always active")
    if always and (layer.experts or layer.are_stacked_by_rows(info)):
        raise info.missing(layer.prefix, "always active experts together with experts in separate tensors")
    if tensor := next((name for _, expert, name in layer.experts if expert >= num_experts), None):
        raise CheckpointError(tensor, f"belongs to an expert beyond the {num_experts} of the router", "fix the file")
    if "experts.gate_up.weight" in names or "shared.gate_up.weight" in names:
        gate_up_order(info)
    first = next((name for param, _, name in layer.experts if ".gate" in param), "")
    _settle_first_matrix(info, layer, names.get("experts.gate.weight", first))
    gated = any(name.startswith("experts.gate") for name in (*names, *(param for param, _, _ in layer.experts)))
    shared = None
    if "shared.down.weight" in names:
        if info.config.get("shared_expert_combination_strategy", "sum") != "sum":
            raise info.missing(layer.prefix, "the mean of the shared and the routed experts")
        shared = _network(info, gated, info.sides(names["shared.down.weight"])[1])
    return MixtureOfExperts(
        num_experts=num_experts,
        idle=idle,
        idle_output=info.quirks.idle_output if idle else "input",
        always=always,
        experts_per_token=_experts_per_token(info),
        expert=_network(info, gated, width, routed=True),
        latent_width=info.sides(names["latent_down.weight"])[0] if "latent_down.weight" in names else None,
        latent_norm=info.norm(bias=False) if "latent_norm.weight" in names else NoNorm(),
        weighs="inputs"
        if info.settle("weighs_inputs", (False, True), "no file says what router weights multiply")
        else "outputs",
        shared=shared,
        shared_gate="shared_gate.weight" in names,
        router=_router(info, names),
        groups=_groups(info, num_experts, expert_bias="correction" in names),
    )


def _idle(info: CheckpointInfo) -> int:
    # LongCat-Flash
    return info.config.size(IDLE) if info.config.get(IDLE) else 0


def gate_up_order(info: CheckpointInfo) -> GateUpOrder:
    """Return the order of the gate and up projections in a fused tensor."""
    return info.settle("gate_up_order", get_args(GateUpOrder), "no file says which half is the gate")


def _settle_first_matrix(info: CheckpointInfo, layer: Layer, gate: str) -> None:
    # swap gate and up of matrices named w1 and w3 if w1 is not the gate
    if not gate.removesuffix(".weight").endswith(".w1") or info.settle(
        "w1_is_gate", (True, False), "no file says whether w1 or w3 is"
    ):
        return

    def other(param: str) -> str:
        return re.sub(r"\b(gate|up)(?=\.)", lambda match: "up" if match[1] == "gate" else "gate", param)

    layer.network = {other(param): name for param, name in layer.network.items()}
    layer.experts = [(other(param), expert, name) for param, expert, name in layer.experts]


def _expert_width(info: CheckpointInfo, layer: Layer) -> int:
    if layer.are_stacked_by_rows(info):
        info.settle("stacked_order", ("by_expert",), "no file says how the rows of all experts are ordered in a matrix")
    if len(stacked := layer.experts_shape(info)) == 3:  # (E, D, F), or (E, F, D) if transposed
        return stacked[1 if layer.experts_transposed(info) else 2]
    single = next((name for param, _, name in layer.experts if param == "experts.down.weight"), None)
    if single is None:
        raise info.missing(layer.prefix, "an unknown layout of experts")
    return info.sides(single)[1]


def _experts_per_token(info: CheckpointInfo) -> int:
    count = info.size(EXPERTS_PER_TOKEN)
    if count is None:
        info.assume("layers[*].feedforward.experts_per_token", 2, "no key names it")
    return count or 2


def _router(info: CheckpointInfo, names: Names) -> Router:
    # sigmoid if a key or the family says so; without a key, also if there is a selection bias, as in DeepSeek-V3
    expert_bias, has_norm = "correction" in names, "router.norm.weight" in names
    if info.quirks.sparse_mixer:
        return SparseMixerRouter(jitter=info.positive(("router_jitter_noise",), 0.01))
    if "router.out.weight" in names:  # ZAYA1
        width, norm = info.sides(names["router.out.weight"])[1], info.norm(bias=False)
        return MLPRouter(width=width, norm=norm, carried="router.carry" in names, expert_bias=expert_bias)
    scoring, renormalize = info.first(SCORING), info.first(RENORMALIZE)
    if info.config.get("expert_selection_fn") == "softmax":  # softmax over the selected experts only
        renormalize = True
    if scoring and scoring not in (*ROUTERS,):  # a list, say, is no key
        raise info.missing(f"{info.config.place}: {SCORING[0]}", f"the score function {scoring!r} of a router")
    sigmoid = scoring == "sigmoid"
    if not scoring:
        usual = expert_bias and not info.quirks.renormalize
        sigmoid = info.settle("sigmoid", (usual, not usual), "no key names the router's score function")
    if renormalize is None:
        why = "no key states whether the weights of a token's experts sum to one"
        renormalize = info.settle("renormalize", (False, True), why)
    name = scoring or ("sigmoid" if sigmoid else "softmax")
    if "router.table" in names:  # of experts by token id, with affinities as in the other layers (DeepSeek-V4)
        affinity: Any = AFFINITIES[name]
        return HashRouter(affinity=affinity, renormalize=bool(renormalize), scale=info.positive(ROUTER_SCALE, 1.0))
    kind = ROUTERS[name]
    why = "no file states what the selection bias is added to"
    return kind(
        # Gemma 4: a norm of the router's own, whose weights have the name of a scale
        norm=info.norm(bias=False) if has_norm else NoNorm(),
        scaled=has_norm,
        expert_scales="expert_scales" in names,
        renormalize=bool(renormalize),
        scale=info.positive(ROUTER_SCALE, 1.0),
        expert_bias=expert_bias,
        expert_bias_on=info.settle("expert_bias_on", ("affinities", "logits"), why) if expert_bias else "affinities",
    )


def _groups(info: CheckpointInfo, num_experts: int, expert_bias: bool) -> ExpertGroups | None:
    num_groups, per_token = info.size(GROUPS), info.size(("topk_group",))
    grouped = info.config.flag("use_grouped_topk", True)
    if num_groups is None or per_token is None or num_groups == 1 or not grouped:
        return None
    if expert_bias:
        # with a selection bias as in DeepSeek-V3: groups are ranked by the sum of their two best experts
        top_k = min(2, num_experts // num_groups)
        return ExpertGroups(num_groups=num_groups, groups_per_token=per_token, top_k_in_group=top_k)
    # with this method the class ignores the groups
    if info.config.get("topk_method") == "greedy":
        return None
    return ExpertGroups(num_groups=num_groups, groups_per_token=per_token)
