"""Designs of recurrences with matrices or sums as memory: xLSTM, RWKV and Mamba-3. They have no positions."""

from functools import partial
from typing import Any

from archetype.families.family import Family, presets, tiny
from archetype.families.linear_attention import linear_decoder
from archetype.families.standard_block import decoder
from archetype.models.block.spec import Block, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.channel_mixing.spec import ChannelMixing
from archetype.parts.embedding.spec import Embedding
from archetype.parts.feedforward.spec import GatedMLP
from archetype.parts.mamba3.spec import Mamba3
from archetype.parts.mlstm.spec import MLSTM
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.rwkv4.spec import RWKV4
from archetype.parts.rwkv7.spec import RWKV7
from archetype.roles.mixer import Mixer


def xlstm(*, num_heads: int, d_ff: int, **model: Any) -> Decoder:
    """Build an xLSTM decoder of mLSTM layers, whose queries and keys have half the width (Beck 2025)."""
    feedforward = GatedMLP(d_ff=d_ff, activation="silu")
    mixer, usual = MLSTM(num_heads=num_heads), {"vocab_size": 50_304, "softcap": 30.0}
    return linear_decoder(mixer=mixer, feedforward=feedforward, **(usual | model))


def _rwkv(mixers: tuple[Mixer, ...], feedforward: ChannelMixing, **model: Any) -> Decoder:
    norm = LayerNorm()
    blocks = tuple(Block(wiring=PreNorm(norm=norm), mixer=mixer, feedforward=feedforward) for mixer in mixers)
    return decoder(blocks, norm=norm, embedding=Embedding(norm=norm), **model)


def rwkv4(*, num_layers: int, d_model: int, **model: Any) -> Decoder:
    """Build an RWKV-4 decoder (Peng 2023)."""
    feedforward = ChannelMixing(d_ff=4 * d_model, receptance=True, mix_of="token")
    return _rwkv(num_layers * (RWKV4(),), feedforward, d_model=d_model, **({"vocab_size": 50_277} | model))


def rwkv7(
    *,
    num_layers: int,
    d_model: int,
    head_dim: int = 64,
    decay_rank: int = 64,
    value_rank: int = 32,
    gate_rank: int = 128,
    **model: Any,
) -> Decoder:
    """Build an RWKV-7 decoder, whose rates have the rank of its decays (Peng 2025)."""
    first = RWKV7(
        num_heads=d_model // head_dim, decay_rank=decay_rank, rate_rank=decay_rank, gate_rank=gate_rank,
        value_rank=value_rank, eps=head_dim * 1e-5,
    )  # fmt: skip
    mixers = (first, *(num_layers - 1) * (first.replace(values_from=0),))
    return _rwkv(mixers, ChannelMixing(d_ff=4 * d_model), d_model=d_model, **({"vocab_size": 65_536} | model))


def mamba3(*, mixer: Mamba3, d_ff: int, **model: Any) -> Decoder:
    """Build a decoder whose layers have Mamba-3 and a gated network (Lahoti 2026)."""
    return linear_decoder(mixer=mixer, feedforward=GatedMLP(d_ff=d_ff, activation="silu"), **model)


FAMILY = Family("recurrences", {
    **presets("Beck 2025, table 2; NX-AI/xLSTM-7b config.json", xlstm, {
        "xlstm-7b": dict(num_layers=32, d_model=4096, num_heads=8, d_ff=10_944, context_length=8192),
    }),
    **presets("Peng 2023, table 2; RWKV/rwkv-4-*-pile config.json", partial(rwkv4, context_length=1024), {
        "rwkv4-169m": dict(num_layers=12, d_model=768),
        "rwkv4-430m": dict(num_layers=24, d_model=1024),
        "rwkv4-1.5b": dict(num_layers=24, d_model=2048),
        "rwkv4-3b": dict(num_layers=32, d_model=2560),
        "rwkv4-7b": dict(num_layers=32, d_model=4096),
        "rwkv4-14b": dict(num_layers=40, d_model=5120),
    }),
    **presets("Peng 2025; no published file was read", partial(rwkv7, context_length=4096), {
        "rwkv7-0.1b": dict(num_layers=12, d_model=768),
        "rwkv7-0.4b": dict(num_layers=24, d_model=1024),
        "rwkv7-1.5b": dict(num_layers=24, d_model=2048, decay_rank=96, value_rank=64, gate_rank=256),
        "rwkv7-2.9b": dict(num_layers=32, d_model=2560, decay_rank=96, value_rank=64, gate_rank=320),
    }),
    **tiny(xlstm, {"xlstm-tiny": dict(num_layers=2, num_heads=4, d_ff=172)}),
    **tiny(rwkv4, {"rwkv4-tiny": dict(num_layers=2)}),
    **tiny(rwkv7, {"rwkv7-tiny": dict(num_layers=2, head_dim=16, decay_rank=8, value_rank=8, gate_rank=16)}),
    **tiny(mamba3, {
        "mamba3-tiny": dict(num_layers=2, d_ff=172, mixer=Mamba3(num_heads=8, head_dim=16, state_size=16)),
    }),
})
