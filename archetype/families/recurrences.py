"""Designs of recurrences with matrices or sums as memory: xLSTM, RWKV-4 and Mamba-3. They have no positions."""

from functools import partial
from typing import Any

from archetype.families.family import Family, presets, tiny
from archetype.families.linear_attention import linear_decoder
from archetype.families.standard_block import decoder
from archetype.models.block.spec import Block, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.channel_mixing.spec import ChannelMixing
from archetype.parts.embedding.spec import Embedding
from archetype.parts.mamba3.spec import Mamba3
from archetype.parts.mlstm.spec import MLSTM
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.rwkv4.spec import RWKV4

# mLSTM layers, whose queries and keys have half the width, and a soft cap on logits
xlstm = partial(linear_decoder, vocab_size=50_304, softcap=30.0)


def rwkv4(*, d_model: int, vocab_size: int = 50_277, **model: Any) -> Decoder:
    """Build an RWKV-4 decoder (Peng 2023)."""
    network, norm = ChannelMixing(d_ff=4 * d_model, receptance=True, mix_of="token"), LayerNorm()
    block, embedding = Block(wiring=PreNorm(norm=norm), mixer=RWKV4(), feedforward=network), Embedding(norm=norm)
    return decoder((block,), norm=norm, embedding=embedding, d_model=d_model, vocab_size=vocab_size, **model)


FAMILY = Family("recurrences", {
    **presets("Beck 2025, table 2; NX-AI/xLSTM-7b config.json", xlstm, {
        "xlstm-7b": dict(num_layers=32, d_model=4096, mixer=MLSTM(num_heads=8), d_ff=10_944, context_length=8192),
    }),
    **presets("Peng 2023, table 2; RWKV/rwkv-4-*-pile config.json", partial(rwkv4, context_length=1024), {
        "rwkv4-169m": dict(num_layers=12, d_model=768),
        "rwkv4-430m": dict(num_layers=24, d_model=1024),
        "rwkv4-1.5b": dict(num_layers=24, d_model=2048),
        "rwkv4-3b": dict(num_layers=32, d_model=2560),
        "rwkv4-7b": dict(num_layers=32, d_model=4096),
        "rwkv4-14b": dict(num_layers=40, d_model=5120),
    }),
    **tiny(xlstm, {"xlstm-tiny": dict(num_layers=2, mixer=MLSTM(num_heads=4), d_ff=172)}),
    **tiny(rwkv4, {"rwkv4-tiny": dict(num_layers=2)}),
    **tiny(linear_decoder, {  # Mamba-3 (Lahoti 2026)
        "mamba3-tiny": dict(num_layers=2, d_ff=172, mixer=Mamba3(num_heads=8, head_dim=16, state_size=16)),
    }),
})
