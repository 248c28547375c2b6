"""What single architectures of llama.cpp compute otherwise, as changes of the model that their graph reads.

Each has two functions: one changes the model, the other returns the keys that the first one reads.
"""

from math import isclose
from typing import Any

from archetype.convert.gguf.keys import FileKeys, Keys, Layer, unsupported
from archetype.families.keys import expect_kind
from archetype.families.loops import unrolled
from archetype.families.standard_block import changed, first_attention
from archetype.models.block.spec import NoMixer, SandwichNorm
from archetype.parts.activation.spec import SiLU, Swish
from archetype.parts.attention.spec import Attention, QueryScale
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.mamba2.spec import Mamba2
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.pattern.spec import Chunked, Window
from archetype.parts.position.spec import Alibi, NoPosition, NoScaling, Rotary
from archetype.parts.together.spec import FeedForwardsTogether, MixersTogether
from archetype.spec.repeats import MAX_LAYERS

CHUNK = 8192  # constant of llama.cpp: size of Llama 4's chunks, and positions by which its queries grow
WITHOUT_NORMS = 128  # experts of Llama 4 Maverick, whose queries and keys have no norms
LARGEST_SLOPE = 8.0  # exponent of ALiBi's slopes in all known models
POST_EPS = 1e-8  # constant of llama.cpp: epsilon of Muse Glimmer's norms of outputs
EMBEDDING, RESIDUAL, WIDTH = 12.0, 1.4, 256  # constants of MiniCPM in llama.cpp: factors, and the width of the head


def with_index(keys: FileKeys, model: Any, index: Any) -> Any:
    """Add an index to the layers that have its tensors, with the rotary positions of the layer's queries and keys."""

    def mixer(layer: int, attention: Any) -> Any:
        if not Layer(keys, layer).has("indexer.q_proj.weight"):
            return attention
        rotated = attention.sizes(model.d_model).rotary_dim
        position = attention.position.replace(dim=None if rotated == index.head_dim else rotated)
        return attention.replace(index=index.replace(position=position))

    blocks = (block.replace(mixer=mixer(layer, block.mixer)) for layer, block in enumerate(model.layers))
    return model.replace(layers=tuple(blocks))


def llama4(keys: FileKeys, model: Any) -> Any:
    """Layers that rotate have chunks and norms after the rotation; queries of the others grow with their position."""
    has_norms = keys.count("expert_count", 0) != WITHOUT_NORMS
    norms = {"qk_norm": RMSNorm(eps=model.final_norm.eps, weight=False), "qk_norm_after_rope": True}
    rotated = {"pattern": Chunked(size=CHUNK), **(norms if has_norms else {})}
    growing = {"query_scale": QueryScale(beta=0.1, length=CHUNK, offset=1)}
    return changed(
        model,
        mixer=lambda mixer: mixer.replace(**(growing if mixer.position.is_absent else rotated)),
        feedforward=lambda part: part.replace(weighs="inputs") if isinstance(part, MixtureOfExperts) else part,
    )


def growing(keys: FileKeys, model: Any) -> Any:
    """Queries grow with their position beyond the original context (Ministral 3)."""
    if not (beta := keys.number("attention.temperature_scale", 0.0)):
        return model
    scale = QueryScale(beta=beta, length=keys.size("rope.scaling.original_context_length"))
    return changed(model, mixer=lambda mixer: mixer.replace(query_scale=scale))


def growing_keys(model: Any) -> Keys:
    growth = first_attention(model).query_scale
    return {} if growth is None else {"attention.temperature_scale": growth.beta}


OLD_GROK = {"logit_scale": 3**-0.5, "embedding_scale": 6144**0.5}  # factors of a file without their keys


def grok(keys: FileKeys, model: Any) -> Any:
    """Set the soft caps of scores and head, and the scale of scores."""
    keys.used.add("router_logit_softcapping")  # which llama.cpp does not use
    head_dim = first_attention(model).sizes(model.d_model).head_dim
    scale = keys.positive("attention.output_scale", 128**-0.5)
    softcap = keys.positive("attn_logit_softcapping", 30.0)
    usual = abs(scale - head_dim**-0.5) < 1e-7 * scale
    model = changed(model, mixer=lambda mixer: mixer.replace(scale=None if usual else scale, softcap=softcap))
    return model.replace(head=model.head.replace(softcap=keys.optional_positive("final_logit_softcapping")))


def grok_keys(model: Any) -> Keys:
    mixer, head = first_attention(model), model.head
    if mixer.softcap is None:
        raise unsupported("layers[*].mixer.softcap", "grok without capped scores")
    return {
        "attention.output_scale": mixer.scale or mixer.sizes(model.d_model).head_dim ** -0.5,
        "attn_logit_softcapping": mixer.softcap,
        **({} if head.softcap is None else {"final_logit_softcapping": head.softcap}),
    }


def with_shares(model: Any) -> Any:
    """Renormalize the weights of a token's experts, whose sum the norm behind them removes (Grok)."""

    def change(part: Any) -> Any:
        if not isinstance(part, MixtureOfExperts):
            return part
        return part.replace(router=part.router.replace(renormalize=True))

    if not all(isinstance(block.wiring, SandwichNorm) for block in model.layers):
        return model
    return changed(model, feedforward=change)


def _scale_of_scores(model: Any, largest: int) -> float | None:
    # by the number of layers llama.cpp knows the 27B models, whose scores it scales by (d_model / num_heads) ** -0.5
    sizes = first_attention(model).sizes(model.d_model)
    width = model.d_model // sizes.num_heads if model.num_layers == largest else sizes.head_dim
    return None if width == sizes.head_dim else width**-0.5


def _check_gemma(model: Any, largest: int, windows: list[bool]) -> None:
    mixers = [expect_kind(Attention, block.mixer, "layers[*].mixer") for block in model.layers]
    local = [isinstance(mixer.pattern, Window) for mixer in mixers]
    if any(local) and local != windows:
        raise unsupported("layers[*].mixer.pattern", "windows in other layers than usual here")
    head_dim = mixers[0].sizes(model.d_model).head_dim
    scale, own = _scale_of_scores(model, largest) or head_dim**-0.5, mixers[0].scale or head_dim**-0.5
    if not isclose(scale, own):
        raise unsupported(
            "layers[*].mixer.scale", f"a scale other than {round(scale**-2)} ** -0.5 in this architecture"
        )


GEMMA2_LAYERS, GEMMA3_LAYERS = 46, 62  # of the 27B models


def gemma2(keys: FileKeys, model: Any) -> Any:
    """Soft caps of scores and logits, and another scale of the scores in the largest model."""
    softcap, scale = keys.positive("attn_logit_softcapping", 50.0), _scale_of_scores(model, GEMMA2_LAYERS)
    model = changed(model, mixer=lambda mixer: mixer.replace(scale=scale, softcap=softcap))
    return model.replace(head=model.head.replace(softcap=keys.positive("final_logit_softcapping", 30.0)))


def gemma2_keys(model: Any) -> Keys:
    softcap = first_attention(model).softcap
    _check_gemma(model, GEMMA2_LAYERS, [layer % 2 == 0 for layer in range(model.num_layers)])
    if softcap is None or model.head.softcap is None:
        raise unsupported("layers[*].mixer.softcap", "gemma2 without soft caps")
    return {"attn_logit_softcapping": softcap, "final_logit_softcapping": model.head.softcap}


def gemma3(keys: FileKeys, model: Any) -> Any:
    """A soft cap of the logits, and another scale of the scores in the largest model."""
    softcap, scale = keys.number("final_logit_softcapping", 0.0) or None, _scale_of_scores(model, GEMMA3_LAYERS)
    model = changed(model, mixer=lambda mixer: mixer.replace(scale=scale))
    return model.replace(head=model.head.replace(softcap=softcap))


def gemma3_keys(model: Any) -> Keys:
    _check_gemma(model, GEMMA3_LAYERS, [(layer + 1) % 6 != 0 for layer in range(model.num_layers)])
    return capped_keys(model) if model.head.softcap else {}


def old_minicpm(keys: FileKeys) -> Keys:
    """Return the factors of a file without their keys."""
    scales = {"embedding_scale": EMBEDDING, "residual_scale": RESIDUAL / keys.size("block_count") ** 0.5}
    return scales | {"logit_scale": WIDTH / keys.size("embedding_length")}


def minicpm3(keys: FileKeys, model: Any) -> Any:
    """Constant factors of token vectors, residuals and logits."""
    factor = RESIDUAL / model.num_layers**0.5
    return changed(model, residual_scale=lambda _: factor).replace(
        embedding=model.embedding.replace(scale=EMBEDDING),
        head=model.head.replace(scale=WIDTH / model.d_model),
    )


def bitnet(keys: FileKeys, model: Any) -> Any:
    """Norms of the inputs of both output projections."""
    norm = RMSNorm(eps=model.final_norm.eps)
    return changed(
        model,
        mixer=lambda mixer: mixer.replace(heads_norm=norm),
        feedforward=lambda part: part.replace(hidden_norm=norm),
    )


def scaled_values(keys: FileKeys, model: Any) -> Any:
    """Values have a constant factor (MiMo-V2)."""
    scale = keys.number("attention.value_scale", 0.0) or 1.0
    return changed(model, mixer=lambda mixer: mixer.replace(value_scale=scale))


def scaled_values_keys(model: Any) -> Keys:
    return {"attention.value_scale": first_attention(model).value_scale}


def halved_width(keys: FileKeys, model: Any) -> Any:
    """Halve the width of the feed-forward network, since the key counts gate and up together (the first Qwen)."""

    def halved(part: Any) -> GatedMLP:
        network = expect_kind(GatedMLP, part, "layers[*].feedforward")
        return network.replace(d_ff=network.width(model.d_model) // 2)

    return changed(model, feedforward=halved)


def doubled_width(model: Any) -> Keys:
    network = expect_kind(GatedMLP, model.layers[0].feedforward, "layers[0].feedforward")
    return {"feed_forward_length": 2 * network.width(model.d_model)}


def without_factors(model: Any) -> Any:
    """Leave out the constant factors of Falcon-H1, which `changes.FOLDED` multiplies into the matrices."""
    first = model.layers[0]
    if getattr(model.head, "tied", False) and (model.embedding.scale, model.head.scale) != (1.0, 1.0):
        raise unsupported("head.tied", "a tied head with factors in falcon-h1")

    def mixer(together: Any) -> Any:
        if not isinstance(together, MixersTogether) or len(together.parts) != 2:
            return together
        attention, scan = together.parts
        attention = attention.replace(scale=None) if isinstance(attention, Attention) else attention
        scan = scan.replace(in_scales=None) if isinstance(scan, Mamba2) else scan
        return together.replace(parts=(attention, scan), scales=None, input_scales=None)

    def network(part: Any) -> Any:
        if not isinstance(part, FeedForwardsTogether) or len(part.parts) != 1 or part.norms or part.post_norms:
            return part
        (inner,) = part.parts
        return inner.replace(activation=SiLU()) if isinstance(getattr(inner, "activation", None), Swish) else inner

    if any((block.mixer, block.feedforward) != (first.mixer, first.feedforward) for block in model.layers):
        raise unsupported("layers[*]", "layers with other factors than the first in falcon-h1")
    plain = changed(model, mixer=mixer, feedforward=network)
    embedding, head = model.embedding.replace(scale=1.0), model.head.replace(scale=1.0)
    return plain.replace(embedding=embedding, head=head)


def in_pairs(model: Any) -> Any:
    """Rotate adjacent features, to which `latents.LAST_IN_PAIRS` reorders halves (Hy4)."""

    def pairs(part: Any) -> Any:
        position = getattr(part, "position", None)
        return part.replace(position=position.replace(interleaved=True)) if isinstance(position, Rotary) else part

    def mixer(latent: Any) -> Any:
        index = getattr(latent, "index", None)
        return pairs(latent) if index is None else pairs(latent).replace(index=pairs(index))

    return changed(model, mixer=mixer)


def slopes(keys: FileKeys, model: Any) -> Any:
    """ALiBi's slopes instead of a rotation (Refact)."""
    return changed(model, mixer=lambda mixer: mixer.replace(position=Alibi()))


def bloom(keys: FileKeys, model: Any) -> Any:
    """ALiBi's slopes, and normed token vectors."""
    return slopes(keys, model.replace(embedding=model.embedding.replace(norm=model.final_norm)))


def _has_slopes(keys: FileKeys) -> bool:
    exponent = keys.number("attention.max_alibi_bias", 0.0)
    if exponent not in (0.0, LARGEST_SLOPE):
        raise keys.error("attention.max_alibi_bias", f"{exponent} is not supported", f"only {LARGEST_SLOPE} is")
    return exponent > 0.0


def mpt(keys: FileKeys, model: Any) -> Any:
    """ALiBi's slopes, whose exponent is a key, and no clipped queries, keys and values."""
    if not _has_slopes(keys):
        raise keys.error("attention.max_alibi_bias", "is 0 or missing", f"only {LARGEST_SLOPE} is supported")
    keys.expect("attention.clamp_kqv", 0.0, "clipped queries, keys and values")
    return slopes(keys, model)


def mpt_keys(model: Any) -> Keys:
    return {"attention.max_alibi_bias": LARGEST_SLOPE}


def baichuan(keys: FileKeys, model: Any) -> Any:
    """Use ALiBi in the 13B models, which llama.cpp recognizes by their 40 layers."""
    return slopes(keys, model) if model.num_layers == 40 else model


def jais(keys: FileKeys, model: Any) -> Any:
    """Slopes if a key has their exponent, and scores divided by the width of a head."""
    scale = 1.0 / first_attention(model).sizes(model.d_model).head_dim
    position = Alibi() if _has_slopes(keys) else NoPosition()
    return changed(model, mixer=lambda mixer: mixer.replace(position=position, scale=scale))


def jais_keys(model: Any) -> Keys:
    return {"attention.max_alibi_bias": 0.0 if first_attention(model).position.is_absent else LARGEST_SLOPE}


def jina_bert_v2(keys: FileKeys, model: Any) -> Any:
    """Use bidirectional ALiBi, and a bias only in the down projection of networks."""
    return changed(slopes(keys, model), feedforward=lambda part: part.replace(bias=False, down_bias=True))


def deepseek_ocr(keys: FileKeys, model: Any) -> Any:
    """Rotate whole heads without scaling; no key changes that."""

    def rotated(mixer: Any) -> Any:
        if mixer.head_dim is not None or mixer.position.theta != Rotary().theta:
            raise unsupported(
                "layers[*].mixer", "another theta than 10,000, or another head_dim than d_model / num_heads"
            )
        return mixer.replace(position=Rotary())

    return changed(model, mixer=rotated)


def periodic(keys: FileKeys, model: Any) -> Any:
    """Experts in layers that a period names, and tensors show (Nomic)."""
    keys.used.add("moe_every_n_layers")
    return model


def periodic_keys(model: Any) -> Keys:
    layers, sparse = model.layers, [isinstance(block.feedforward, MixtureOfExperts) for block in model.layers]
    places = [layer for layer, is_sparse in enumerate(sparse) if is_sparse]
    period = places[1] - places[0] if len(places) > 1 else len(places) * len(layers)
    if sparse != [period > 0 and layer % period == 1 for layer in range(len(layers))]:
        raise unsupported("layers[*].feedforward", "experts in other layers than every n-th from the second here")
    return {"moe_every_n_layers": period}


def without_heads(model: Any) -> Keys:
    """Return the heads of layers that may have no attention (Deci)."""
    for index, block in enumerate(model.layers):
        if block.feedforward.is_absent:
            raise unsupported(f"layers[{index}].feedforward", "layers without a network in deci")
    heads = [0 if isinstance(block.mixer, NoMixer) else block.mixer.num_heads for block in model.layers]
    if not heads[0]:
        raise unsupported("layers[0].mixer", "a first layer without attention in deci")
    return {"attention.head_count": heads if 0 in heads else heads[0]}


def muse_glimmer(keys: FileKeys, model: Any) -> Any:
    """Normed token vectors, another epsilon of the outputs' norms, and capped logits."""
    post = RMSNorm(eps=POST_EPS)
    model = changed(model, wiring=lambda wiring: wiring.replace(mixer_post_norm=post, feedforward_post_norm=post))
    return model.replace(
        embedding=model.embedding.replace(norm=model.final_norm.replace(weight=False)),
        head=model.head.replace(softcap=usual_cap(keys)),
    )


def usual_cap(keys: FileKeys) -> float | None:
    """Return the soft cap of logits, where llama.cpp caps those of a file without the key."""
    return keys.number("final_logit_softcapping", 30.0) or None


def capped_keys(model: Any) -> Keys:
    return {"final_logit_softcapping": model.head.softcap or 0.0}


CLAMP, OTHERS_CLAMP = "swiglu_clamp_exp", "swiglu_clamp_shexp"  # of experts, and of shared experts and dense networks


def limited(keys: FileKeys, model: Any, everywhere: bool = False) -> Any:
    """Set the clamps of experts' gates and up projections (Maple), or those of all feed-forward networks."""
    bounds = _bounds(keys, CLAMP, [0.0] * model.num_layers)
    others = _bounds(keys, OTHERS_CLAMP, bounds) if everywhere else [0.0] * model.num_layers

    def network(part: Any, limit: float | None, other: float | None) -> Any:
        if not isinstance(part, MixtureOfExperts):
            return part.replace(limit=other) if everywhere else part
        shared = part.shared.replace(limit=other) if part.shared is not None and everywhere else part.shared
        return part.replace(expert=part.expert.replace(limit=limit), shared=shared)

    blocks = (
        block.replace(feedforward=network(block.feedforward, bound or None, other or None))
        for block, bound, other in zip(model.layers, bounds, others, strict=False)
    )
    return model.replace(layers=tuple(blocks))


def _bounds(keys: FileKeys, name: str, default: list[float]) -> list[float]:
    # of each layer
    bounds = keys.get(name, default)
    bounds = bounds if isinstance(bounds, list) else [bounds] * len(default)
    if len(bounds) < len(default) or not all(isinstance(bound, float) for bound in bounds):
        raise keys.error(name, f"{bounds!r:.80} lacks layers", "fix the file")
    return bounds


def limited_keys(model: Any, everywhere: bool = False) -> Keys:
    parts = [block.feedforward for block in model.layers]
    experts = [getattr(part, "expert", None) for part in parts]
    others = [getattr(part, "shared", None) if expert else part for part, expert in zip(parts, experts, strict=True)]
    networks = {CLAMP: experts, **({OTHERS_CLAMP: others} if everywhere else {})}
    return {name: [getattr(one, "limit", None) or 0.0 for one in of_each] for name, of_each in networks.items()}


def unlimited(keys: FileKeys, model: Any) -> Any:
    """Refuse bounds of gates behind their activation."""
    for name in (CLAMP, OTHERS_CLAMP):
        bounds = keys.get(name, 0.0)
        if any(bounds if isinstance(bounds, list) else [bounds]):
            raise keys.error(name, "bounds gates behind their activation", "this model is not supported")
    return model


def step35(keys: FileKeys, model: Any) -> Any:
    """A rotation of half as many features in layers that see everything."""
    keys.used.add("moe_every_n_layers")
    rotated = keys.size("rope.dimension_count", first_attention(model).sizes(model.d_model).head_dim)

    def half(mixer: Any) -> Any:
        if isinstance(mixer.pattern, Window):
            return mixer
        if mixer.position.scaling != NoScaling():
            raise keys.error("rope.scaling.type", "scales rotations", "this model is not supported")
        return mixer.replace(position=mixer.position.replace(dim=rotated // 2))

    return changed(unlimited(keys, model), mixer=half)


def step35_keys(model: Any) -> Keys:
    return {"rope.dimension_count": first_attention(model).sizes(model.d_model).head_dim}


def looped(keys: FileKeys, model: Any) -> Any:
    """Repeat the layers in several passes, with the final norm between passes (Nanbeige 4.2)."""
    passes = keys.size("num_loops", 1, most=MAX_LAYERS // model.num_layers)
    between = not keys.flag("skip_loop_final_norm", False)
    return model.replace(layers=unrolled(model.layers, passes, norm_between=between))


def one_pass(model: Any) -> Any:
    """Return the model with only the layers that have their own weights."""
    return model.replace(layers=tuple(block for block in model.layers if block.weights_of is None))


def looped_keys(model: Any) -> Keys:
    passes = model.num_layers // one_pass(model).num_layers
    normed = any(block.norm_between for block in model.layers)
    return {"num_loops": passes, "skip_loop_final_norm": passes > 1 and not normed}
