"""Kimi K3 in GGUF: attention over depth, bounded networks, and a norm on the output of latent experts."""

from typing import Any

from archetype.convert.gguf.changes import Change
from archetype.convert.gguf.keys import FileKeys, Keys, Layer
from archetype.convert.gguf.plain import with_one_epsilon
from archetype.families.keys import expect_kind
from archetype.families.rules import Rule, rule
from archetype.parts.activation.spec import SiTU
from archetype.parts.depth_attention.spec import DepthAttention
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP

BLOCK, BETA, BOUND = "attn_res.block_size", "activation.situ_beta", "activation.situ_linear_beta"
LATENT = "expert_latent_length"
NORM = "blk.{i}.ffn_routed_norm    blocks.{i}.feedforward.latent_norm"
# A sublayer's query times the weights of its norm. The first sublayer has none, but llama.cpp reads a tensor for it.
SCORES = Change(
    r"(?!blk\.0\.)(blk\.\d+\.(attn|ffn)|output)_res_score\.weight",
    lambda tensor, model, blocks: (tensor.float().prod(0),),
    lambda stored, model: stored[-1].unsqueeze(0),
    shapes=lambda shape, model: (shape[1:],),
)
FIRST_SCORES = Change(
    r"blk\.0\.ffn_res_score\.weight",
    lambda tensor, model, blocks: (tensor.new_zeros(tensor.shape[1:]).float(), tensor.float().prod(0)),
    SCORES.read,
    ("attn_res_score", "ffn_res_score"),
    lambda shape, model: (shape[1:], shape[1:]),
)


def score_rules(model: Any) -> tuple[Rule, ...]:
    """Return the rules of the queries, multiplied by the weights of their norms if there are any."""
    has_norm = getattr(model.residual, "norm_weight", False)
    names = ("query", "norm_weight") if has_norm else ("query",)
    places = {"output": "residual_exit"} | {
        f"blk.{{i}}.{theirs}": f"blocks.{{i}}.{ours}_residual.attend"
        for theirs, ours in (("attn", "mixer"), ("ffn", "feedforward"))
    }
    return tuple(
        rule(f"{file}_res_score.weight", *(f"{place}.{name}" for name in names), shape=(len(names), model.d_model))
        for file, place in places.items()
    )


def computed(model: Any) -> Any:
    """Return the model without norm weights in attention over depth, since the file's queries contain them."""
    residual = model.residual
    if isinstance(residual, DepthAttention):
        residual = residual.replace(norm_weight=False)
    return with_one_epsilon(model.replace(residual=residual))


def with_depth(keys: FileKeys, model: Any) -> Any:
    """Add attention over depth, the bounds of all networks, and the norms that have tensors."""
    bound = keys.number(BOUND, 0.0)
    bounds = {"activation": SiTU(beta=keys.positive(BETA)), "up_bound": bound if bound > 0.0 else None}
    keys.used.add(LATENT)
    norm = model.final_norm

    def network(layer: int, part: Any) -> Any:
        if not isinstance(part, MixtureOfExperts):
            return part.replace(**bounds)
        shared = None if part.shared is None else part.shared.replace(**bounds)
        normed = {"latent_norm": norm} if Layer(keys, layer).has("ffn_routed_norm.weight") else {}
        return part.replace(expert=part.expert.replace(**bounds), shared=shared, **normed)

    blocks = (block.replace(feedforward=network(layer, block.feedforward)) for layer, block in enumerate(model.layers))
    residual = DepthAttention(layers_per_block=keys.size(BLOCK), norm_eps=norm.eps)
    return model.replace(layers=tuple(blocks), residual=residual)


def depth_keys(model: Any) -> Keys:
    residual = expect_kind(DepthAttention, model.residual, "residual")
    parts = [block.feedforward for block in model.layers]
    latent = next((part.latent_width for part in parts if isinstance(part, MixtureOfExperts)), None)
    network = expect_kind(GatedMLP, getattr(parts[0], "expert", parts[0]), "layers[0].feedforward")
    activation = expect_kind(SiTU, network.activation, "layers[0].feedforward.activation")
    return {
        BLOCK: residual.layers_per_block,
        BETA: activation.beta,
        BOUND: network.up_bound or 0.0,
        **({} if latent is None else {LATENT: latent}),
    }
