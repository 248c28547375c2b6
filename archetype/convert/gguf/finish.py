"""What single architectures of llama.cpp compute otherwise, as changes of the model that their graph reads.

Each has two functions: one changes the model, the other returns the keys that the first one reads.
"""

from collections.abc import Callable
from typing import Any

from archetype.convert.gguf.keys import FileKeys, Keys, unsupported
from archetype.families.keys import expect_kind
from archetype.models.block.spec import SandwichNorm
from archetype.parts.activation.spec import SiLU, Swish
from archetype.parts.attention.spec import Attention, QueryScale
from archetype.parts.experts.spec import MixtureOfExperts
from archetype.parts.mamba2.spec import Mamba2
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.pattern.spec import Chunked
from archetype.parts.together.spec import FeedForwardsTogether, MixersTogether

CHUNK = 8192  # constant of llama.cpp: size of Llama 4's chunks, and positions by which its queries grow
WITHOUT_NORMS = 128  # experts of Llama 4 Maverick, whose queries and keys have no norms
EMBEDDING, RESIDUAL, WIDTH = 12.0, 1.4, 256  # constants of MiniCPM3 in llama.cpp: factors, and the width of the head


def _changed(model: Any, mixer: Callable[[Any], Any], feedforward: Callable[[Any], Any] | None = None) -> Any:
    # with other mixers and feed-forward parts in all layers
    blocks = (
        block.replace(
            mixer=mixer(block.mixer), feedforward=feedforward(block.feedforward) if feedforward else block.feedforward
        )
        for block in model.layers
    )
    return model.replace(layers=tuple(blocks))


def _first(model: Any) -> Attention:
    return expect_kind(Attention, model.layers[0].mixer, "layers[0].mixer")


def llama4(keys: FileKeys, model: Any) -> Any:
    """Layers that rotate have chunks and norms after the rotation; queries of the others grow with their position."""
    has_norms = keys.count("expert_count", 0) != WITHOUT_NORMS
    norms = {"qk_norm": RMSNorm(eps=model.final_norm.eps, weight=False), "qk_norm_after_rope": True}
    rotated = {"pattern": Chunked(size=CHUNK), **(norms if has_norms else {})}
    growing = {"query_scale": QueryScale(beta=0.1, length=CHUNK, offset=1)}
    return _changed(
        model,
        lambda mixer: mixer.replace(**(growing if mixer.position.is_absent else rotated)),
        lambda part: part.replace(weighs="inputs") if isinstance(part, MixtureOfExperts) else part,
    )


def growing(keys: FileKeys, model: Any) -> Any:
    """Queries grow with their position beyond the original context (Ministral 3)."""
    if not (beta := keys.number("attention.temperature_scale", 0.0)):
        return model
    scale = QueryScale(beta=beta, length=keys.size("rope.scaling.original_context_length"))
    return _changed(model, lambda mixer: mixer.replace(query_scale=scale))


def growing_keys(model: Any) -> Keys:
    growth = _first(model).query_scale
    return {} if growth is None else {"attention.temperature_scale": growth.beta}


def grok(keys: FileKeys, model: Any) -> Any:
    """Capped scores with a scale of their own, and a capped head."""
    keys.used.add("router_logit_softcapping")  # which llama.cpp does not use
    head_dim = _first(model).sizes(model.d_model).head_dim
    scale = keys.positive("attention.output_scale", 128**-0.5)
    softcap = keys.positive("attn_logit_softcapping", 30.0)
    usual = abs(scale - head_dim**-0.5) < 1e-7 * scale
    model = _changed(model, lambda mixer: mixer.replace(scale=None if usual else scale, softcap=softcap))
    return model.replace(head=model.head.replace(softcap=keys.optional_positive("final_logit_softcapping")))


def grok_keys(model: Any) -> Keys:
    mixer, head = _first(model), model.head
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
    return _changed(model, lambda mixer: mixer, change)


def minicpm3(keys: FileKeys, model: Any) -> Any:
    """Constant factors of token vectors, residuals and logits."""
    factor = RESIDUAL / model.num_layers**0.5
    return model.replace(
        embedding=model.embedding.replace(scale=EMBEDDING),
        layers=tuple(block.replace(residual_scale=factor) for block in model.layers),
        head=model.head.replace(scale=WIDTH / model.d_model),
    )


def bitnet(keys: FileKeys, model: Any) -> Any:
    """Norms of the inputs of both output projections."""
    norm = RMSNorm(eps=model.final_norm.eps)
    return _changed(model, lambda mixer: mixer.replace(heads_norm=norm), lambda part: part.replace(hidden_norm=norm))


def scaled_values(keys: FileKeys, model: Any) -> Any:
    """Values have a constant factor (MiMo-V2)."""
    scale = keys.number("attention.value_scale", 0.0) or 1.0
    return _changed(model, lambda mixer: mixer.replace(value_scale=scale))


def scaled_values_keys(model: Any) -> Keys:
    return {"attention.value_scale": _first(model).value_scale}


def doubled_width(model: Any) -> Keys:
    """Return the width of the first Qwen's network as its key counts it: of gate and up together."""
    network = model.layers[0].feedforward
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
    plain = _changed(model, mixer, network)
    embedding, head = model.embedding.replace(scale=1.0), model.head.replace(scale=1.0)
    return plain.replace(embedding=embedding, head=head)
