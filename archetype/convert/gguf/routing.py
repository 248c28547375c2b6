"""Experts in GGUF: their keys, and the properties that an architecture of llama.cpp fixes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from archetype.convert.gguf.keys import FileKeys, Has, Keys, Layer, has, unsupported
from archetype.errors import CheckpointError
from archetype.parts.experts.spec import ExpertGroups, MixtureOfExperts
from archetype.parts.feedforward.spec import MLP, GatedMLP
from archetype.parts.router.spec import SigmoidRouter, SoftmaxRouter

SOFTMAX, SIGMOID = 1, 2  # llama.cpp's numbers for the affinities of experts


@dataclass(frozen=True)
class Routing:
    """Experts of an architecture.

    Attributes:
        affinity: `softmax`, `sigmoid`, or `key` if a key declares it.
        usual: affinity of a file without the key.
        renormalize: whether the weights of a token's experts sum to 1 (None: a key declares it).
        scaled: whether the file has a factor on the weights.
        shared: key with the width of the shared expert: its multiple of an expert's, or the width itself ("": no
            shared expert; `alike`: no key, since it is as wide as the others).
        has_shared: whether there is a shared expert, if there may be one.
        shared_gate: whether the shared expert has a gate.
        correction: whether a bias is added when experts are selected.
        biases: whether logits and experts have biases.
        latent: whether experts may work in a smaller space.
        dense: layers without experts: none, the first ones, those that the key `interleave_moe_layer_step` leaves out
            (`step`), after the first ones too (`every`), or any.
        expert: fields of every expert besides width, activation and bias.
    """

    affinity: Literal["softmax", "sigmoid", "key"] = "softmax"
    usual: Literal["softmax", "sigmoid"] = "softmax"
    renormalize: bool | None = True
    scaled: bool = False
    shared: Literal["", "alike", "expert_shared_count", "expert_shared_feed_forward_length"] = ""
    has_shared: Has = "all"
    shared_gate: bool = False
    correction: Has = "no"
    biases: bool = False
    latent: bool = False
    dense: Literal["", "first", "every", "step", "any"] = ""
    expert: Mapping[str, Any] = field(default_factory=dict)


def read_experts(layer: Layer, routing: Routing, expert: Callable[..., MLP | GatedMLP]) -> MixtureOfExperts:
    """Return the experts of a layer.

    Args:
        expert: (width, whether it has biases, other fields) -> an expert.
    """
    keys, router, down = layer.keys, layer.shape("ffn_gate_inp.weight"), layer.shape("ffn_down_exps.weight")
    if router is None or down is None:
        raise CheckpointError(keys.place, f"layer {layer.index} lacks ffn_down_exps.weight", "fix the file")
    numbers = {"softmax": SOFTMAX, "sigmoid": SIGMOID}
    number = numbers[routing.usual if routing.affinity == "key" else routing.affinity]
    if routing.affinity == "key":
        # 0 stands for no number
        number = keys.count("expert_gating_func", 0) or number
    else:  # a key that llama.cpp does not read here
        keys.expect("expert_gating_func", number, "other affinities")
    if number not in numbers.values():
        raise keys.error("expert_gating_func", f"{number} is not supported", "only 1 and 2 are")
    renormalize = routing.renormalize
    if renormalize is None:
        renormalize = keys.flag("expert_weights_norm", False)
    else:
        keys.expect("expert_weights_norm", renormalize, "other weights")
    if not routing.scaled:
        keys.expect("expert_weights_scale", 1.0, "a factor on the weights")
    kind = SoftmaxRouter if number == SOFTMAX else SigmoidRouter
    shared = layer.shape("ffn_down_shexp.weight")
    latent = layer.shape("ffn_latent_down.weight") or layer.shape("ffn_routed_down.weight")
    if not routing.shared or (shared is None and routing.has_shared == "any"):
        shared = None
    elif shared is None:
        raise CheckpointError(keys.place, f"layer {layer.index} lacks ffn_down_shexp.weight", "fix the file")
    return MixtureOfExperts(
        num_experts=router[0],
        experts_per_token=layer.count("expert_used_count"),
        expert=expert(down[-1], routing.biases, **routing.expert),
        latent_width=latent[0] if latent is not None and routing.latent else None,
        shared=None if shared is None else expert(shared[-1]),
        shared_gate=routing.shared_gate and shared is not None,
        router=kind(
            renormalize=renormalize,
            scale=(keys.number("expert_weights_scale", 0.0) or 1.0) if routing.scaled else 1.0,
            expert_bias=has(routing.correction, layer.has("exp_probs_b.bias") or layer.has("exp_probs_b")),
            bias=routing.biases,
        ),
        groups=_groups(keys, routing),
    )


def written_layers(is_sparse: list[bool], dense: str) -> Keys:
    """Return the keys that declare which layers have experts."""
    keys: Keys = {}
    first = is_sparse.index(True)
    if all(is_sparse[first:]) and dense in ("first", "every"):
        keys["leading_dense_block_count"] = first
        return keys | ({"interleave_moe_layer_step": 1} if dense == "every" else {})
    step = is_sparse[first + 1 :].index(True) + 1 if any(is_sparse[first + 1 :]) else 1
    every = [layer >= first and (layer + 1) % step == 0 for layer in range(len(is_sparse))]
    if dense == "every" and every == is_sparse:
        return {"leading_dense_block_count": first, "interleave_moe_layer_step": step}
    if dense == "step" and is_sparse == [(layer + 1) % (first + 1) == 0 for layer in range(len(is_sparse))]:
        return {"interleave_moe_layer_step": first + 1}
    if not all(is_sparse) and dense != "any":
        raise unsupported("layers[*].feedforward", "experts in these layers only")
    return {}


def written_router(part: MixtureOfExperts, routing: Routing, width: int, d_model: int) -> Keys:
    """Return the keys of the router and the shared expert."""
    keys: Keys = {}
    router = part.router
    if part.shared is not None and routing.shared:
        shared = part.shared.width(d_model)
        is_count, is_alike = routing.shared == "expert_shared_count", routing.shared == "alike"
        if (is_count and shared % width) or (is_alike and shared != width):
            only = f"only {'a multiple of ' if is_count else ''}an expert's {width}"
            raise unsupported("layers[*].feedforward.shared.d_ff", f"{shared}, {only}")
        if not is_alike:
            keys[routing.shared] = shared // width if is_count else shared
    elif routing.shared and routing.has_shared == "all":
        raise unsupported("layers[*].feedforward.shared", "experts without a shared expert here")
    elif routing.shared == "expert_shared_count":
        keys[routing.shared] = 0
    if routing.affinity == "key":
        keys["expert_gating_func"] = SIGMOID if isinstance(router, SigmoidRouter) else SOFTMAX
    if routing.renormalize is None:
        keys["expert_weights_norm"] = router.renormalize
    if routing.scaled:
        keys["expert_weights_scale"] = router.scale
    if part.groups is not None:
        keys["expert_group_count"] = part.groups.num_groups
        keys["expert_group_used_count"] = part.groups.groups_per_token
    return keys


def _groups(keys: FileKeys, routing: Routing) -> ExpertGroups | None:
    num_groups, used = keys.count("expert_group_count", 0), keys.count("expert_group_used_count", 0)
    if num_groups > 1 and routing.biases:
        raise keys.error("expert_group_count", "groups experts by logits", "only groups by affinities are supported")
    # llama.cpp ranks groups by the sum of their two best experts
    return ExpertGroups(num_groups=num_groups, groups_per_token=used, top_k_in_group=2) if num_groups > 1 else None
