"""OPT (Zhang 2022): GPT-3's sizes with ReLU, all layers dense."""

from typing import Any

from archetype.families.family import Family, presets
from archetype.families.standard_block import standard_decoder
from archetype.models.block.spec import PostNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.activation.spec import NoActivation
from archetype.parts.embedding.spec import Embedding
from archetype.parts.head.spec import HeadTransform, LanguageModelHead
from archetype.parts.norm.spec import LayerNorm, NoNorm
from archetype.parts.position.spec import Learned


def opt(**design: Any) -> Decoder:
    """Build an OPT decoder. `design` takes the arguments of `standard_decoder`."""
    embedding = Embedding(position=Learned(offset=2))  # the first two rows are unused
    sizes = {"vocab_size": 50_272, "context_length": 2048}
    return standard_decoder(norm=LayerNorm(), activation="relu", model={"embedding": embedding}, **sizes | design)


def narrow_opt(*, width: int, **design: Any) -> Decoder:
    """Build OPT-350M: `opt` with post-norm and narrower embedding tables of size `width`."""
    # `do_layer_norm_before: false` and `word_embed_proj_dim: 512`, in this size only
    model = opt(wiring=PostNorm(norm=LayerNorm()), **design)
    embedding = model.embedding.replace(width=width, project_first=True)
    transform = HeadTransform(activation=NoActivation(), bias=False, width=width)
    head = LanguageModelHead(tied=True, transform=transform)
    return model.replace(embedding=embedding, head=head, final_norm=NoNorm())


SOURCE = "Zhang 2022, table 1; facebook/opt-* config.json"
FAMILY = Family("opt", presets(SOURCE, narrow_opt, {
    "opt-350m": dict(num_layers=24, d_model=1024, num_heads=16, width=512),
}) | presets(SOURCE, opt, {
    "opt-125m": dict(num_layers=12, d_model=768, num_heads=12),
    "opt-1.3b": dict(num_layers=24, d_model=2048, num_heads=32),
    "opt-2.7b": dict(num_layers=32, d_model=2560, num_heads=32),
    "opt-6.7b": dict(num_layers=32, d_model=4096, num_heads=32),
    "opt-13b": dict(num_layers=40, d_model=5120, num_heads=40),
    "opt-30b": dict(num_layers=48, d_model=7168, num_heads=56),
    "opt-66b": dict(num_layers=64, d_model=9216, num_heads=72),
}))
