"""Gemma 3n's texts (Google 2025): alternating updates, LAuReL, sparse gates, and keys of earlier layers.

Published folders are inferred from their files.
"""

from typing import Any

from archetype.families.family import Family, presets, tiny
from archetype.families.gemma4_text import gemma4_text
from archetype.models.block.spec import Block, Laurel, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.activation.spec import GaussianTopK
from archetype.parts.altup.spec import AltUp
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.norm.spec import Affine, NoNorm
from archetype.parts.per_layer_input.spec import PerLayerInput
from archetype.parts.position.spec import Rotary


def gemma3n_text(
    *, share: float = 0.95, num_sparse: int = 10, num_streams: int = 4, rank: int = 64, rows: int = 2**18, **sizes: Any
) -> Decoder:
    """Build a Gemma 3n decoder from the sizes of a Gemma 4 decoder, which sums outputs in one stream.

    Args:
        share: share of the gates that are zero in the first `num_sparse` layers.
        num_streams: number of residual streams.
        rank: rank of the path beside attention.
        rows: rows of the table of per-layer vectors.
    """
    usual = {"window": 512, "period": 5, "layer_features": 256, "vocab_size": 262_400, "context_length": 32_768}
    model: Any = gemma4_text(**{"full_head_dim": 256, "position": Rotary(theta=1e6), **usual, **sizes})
    norm = model.final_norm

    def block(index: int) -> Block:
        plain = model.layers[index].replace(output_scale=False)
        match plain.feedforward:
            case PerLayerInput():
                streams = {"num_streams": num_streams, "input_norm": Affine(bias=False), "added_norm": norm}
                return plain.replace(wiring=PreNorm(norm=NoNorm()), feedforward=plain.feedforward.replace(**streams))
            case GatedMLP() if index < 2 * num_sparse:
                sparse = GaussianTopK(share=share, activation=plain.feedforward.activation)
                plain = plain.replace(feedforward=plain.feedforward.replace(activation=sparse))
        return plain.replace(wiring=Laurel(norm=norm, rank=rank))

    return model.replace(
        embedding=model.embedding.replace(per_layer=model.embedding.per_layer.replace(rows=rows)),
        layers=tuple(block(index) for index in range(model.num_layers)),
        residual=AltUp(num_streams=num_streams, norm=norm),
    )


FAMILY = Family("gemma3n_text", {
    **presets("text_config of google/gemma-3n-* config.json", gemma3n_text, {
        "gemma3n-e2b": dict(num_layers=30, d_model=2048, num_heads=8, num_kv_heads=2, d_ff=8192, num_shared=10),
        "gemma3n-e4b": dict(num_layers=35, d_model=2048, num_heads=8, num_kv_heads=2, d_ff=16_384, num_shared=15),
    }),
    **tiny(gemma3n_text, {
        "gemma3n-tiny": dict(num_layers=2, num_heads=2, num_kv_heads=1, d_ff=160, window=32, period=2, head_dim=32,
            full_head_dim=32, layer_features=16, num_sparse=1, num_streams=2, rank=8, rows=256),
    }),
})  # fmt: skip
