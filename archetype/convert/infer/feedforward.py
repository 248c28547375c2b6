"""A layer's feed-forward part, by the shapes of its tensors."""

from archetype import spec
from archetype.convert.infer.checkpoint_info import CheckpointInfo
from archetype.convert.infer.quirks import EXPERTS_PER_TOKEN, ROUTER_SCALE
from archetype.convert.infer.tensors import Layer
from archetype.errors import CheckpointError


def read_network(clues: CheckpointInfo, layer: Layer, transposed: bool) -> spec.FeedForward:
    """The feed-forward part of a layer."""
    if layer.sparse:
        return _experts(clues, layer)
    found = layer.network
    if "down.weight" not in found:
        raise clues.missing(layer.prefix, "a layer without a feed-forward part that is known")
    gated = "gate.weight" in found or "gate_up.weight" in found
    width = clues.sides(found["down.weight"])[0 if transposed else 1]
    made = spec.GatedMLP if gated else spec.MLP
    return made(d_ff=width, activation=clues.activation(gated), bias="down.bias" in found)


def _experts(clues: CheckpointInfo, layer: Layer) -> spec.MixtureOfExperts:
    found = layer.network
    if "router.weight" not in found:
        raise clues.missing(layer.prefix, "experts without a router that is known")
    number, width = clues.sides(found["router.weight"])[0], _width(clues, layer)
    if strange := next((name for _, expert, name in layer.experts if expert >= number), None):
        raise CheckpointError(strange, f"is of an expert beyond the {number} that are chosen from", "fix the file")
    activation = clues.activation(gated=True)
    shared = None
    if "shared.down.weight" in found:
        shared = spec.GatedMLP(d_ff=clues.sides(found["shared.down.weight"])[1], activation=activation)
    return spec.MixtureOfExperts(
        num_experts=number,
        experts_per_token=_per_token(clues),
        expert=spec.GatedMLP(d_ff=width, activation=activation),
        shared=shared,
        shared_gate="shared_gate.weight" in found,
        router=_router(clues, corrected="correction" in found),
        groups=_groups(clues, number, corrected="correction" in found),
    )


def _width(clues: CheckpointInfo, layer: Layer) -> int:
    """Of each expert, in one tensor of all or in a tensor for each."""
    stacked = layer.network.get("experts.down.weight")
    if stacked is not None and len(clues.shapes[stacked]) == 3:
        return clues.shapes[stacked][2]
    each = next((name for ours, _, name in layer.experts if ours == "experts.down.weight"), None)
    if each is None:
        raise clues.missing(layer.prefix, "experts of a form that is not known")
    return clues.sides(each)[1]


def _per_token(clues: CheckpointInfo) -> int:
    given = clues.size(EXPERTS_PER_TOKEN)
    if given is None:
        clues.assume("layers[*].feedforward.experts_per_token", 2, "no key names it")
    return given or 2


def _router(clues: CheckpointInfo, corrected: bool) -> spec.Router:
    """Sigmoids where a key or the family says so; with a correction and without a word, as DeepSeek-V3 has them."""
    said, renormalized = clues.config.get("scoring_func"), clues.config.get("norm_topk_prob")
    sigmoid = said == "sigmoid" if said else clues.habit.sigmoid or (corrected and not clues.habit.renormalized)
    if renormalized is None and not clues.habit.renormalized:
        clues.assume("layers[*].feedforward.router.renormalize", False, "no key names it")
    made = spec.SigmoidRouter if sigmoid else spec.SoftmaxRouter
    return made(
        renormalize=bool(clues.habit.renormalized if renormalized is None else renormalized),
        scale=clues.positive(ROUTER_SCALE, 1.0),
        expert_bias=corrected,
    )


def _groups(clues: CheckpointInfo, number: int, corrected: bool) -> spec.ExpertGroups | None:
    count, chosen = clues.size(("n_group",)), clues.size(("topk_group",))
    if count is None or chosen is None or count == 1:
        return None
    if corrected:
        return spec.ExpertGroups(num_groups=count, groups_per_token=chosen, top_k_in_group=min(2, number // count))
    if clues.config.get("topk_method") == "greedy":
        return None
    return spec.ExpertGroups(num_groups=count, groups_per_token=chosen)
