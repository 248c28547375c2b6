"""RWKV-7 in GGUF: all shares of the previous token are one tensor, and some tensors of the first layer are unused."""

from dataclasses import dataclass
from typing import Any

from archetype.convert.gguf.changes import Change, reshaped
from archetype.convert.gguf.keys import DecoderTable, FileKeys, Keys, unsupported, written_sizes
from archetype.convert.gguf.names import OUTER
from archetype.families.keys import expect_kind
from archetype.families.rules import weight_rules
from archetype.families.rwkv7 import rwkv7
from archetype.models.decoder.spec import Decoder
from archetype.models.spec import ModelSpec
from archetype.parts.channel_mixing.spec import ChannelMixing
from archetype.parts.head.spec import LanguageModelHead
from archetype.parts.norm.spec import LayerNorm
from archetype.parts.rwkv7.spec import MIXED, RWKV7
from archetype.spec.repeats import MAX_LAYERS

EPS, HEADS_EPS = "attention.layer_norm_epsilon", 64e-5  # the second is a constant of llama.cpp
SHIFTED = 2  # parts of a layer that read the previous token
STEP = 64  # llama.cpp's kernels read this many features of a head at once, beyond the end of a narrower one
RANKS = {"decay": "decay", "iclr": "rate", "value_residual_mix": "value", "gate": "gate"}


@dataclass(frozen=True)
class Rwkv7(DecoderTable):
    """Keys of rwkv7, read and written."""

    def read(self, config: Any) -> Decoder:
        keys: FileKeys = config
        sizes, head_dim = keys.sizes(), keys.size("wkv.head_size")
        keys.expect("attention.head_count", 0, "heads of attention")
        keys.expect("token_shift_count", SHIFTED, "another number of previous tokens")
        ranks: dict[str, Any] = {
            f"{ours}_rank": keys.size(f"attention.{theirs}_lora_rank") for theirs, ours in RANKS.items()
        }
        return rwkv7(
            **sizes,
            **ranks,
            num_layers=keys.size("block_count", most=MAX_LAYERS),
            head_dim=head_dim,
            d_ff=keys.size("feed_forward_length"),
            norm=LayerNorm(eps=keys.positive(EPS)),
            eps=HEADS_EPS,
        )

    def write(self, model: ModelSpec) -> Keys:
        decoder = expect_kind(Decoder, model, "kind")
        mixers = [expect_kind(RWKV7, block.mixer, "layers[*].mixer") for block in decoder.layers]
        network = expect_kind(ChannelMixing, decoder.layers[0].feedforward, "layers[0].feedforward")
        first, last = mixers[0], mixers[-1]
        head_dim = decoder.d_model // first.num_heads
        if head_dim % STEP:
            raise unsupported("layers[*].mixer.num_heads", f"heads of {head_dim} features, only multiples of {STEP}")
        if expect_kind(LanguageModelHead, decoder.head, "head").tied:
            raise unsupported("head.tied", "a tied head in rwkv7")
        return {
            **written_sizes(decoder),
            "feed_forward_length": network.d_ff,
            EPS: expect_kind(LayerNorm, decoder.final_norm, "final_norm").eps,
            "attention.head_count": 0,
            "wkv.head_size": head_dim,
            # of a layer that mixes in the values of the first
            **{f"attention.{theirs}_lora_rank": getattr(last, f"{ours}_rank") for theirs, ours in RANKS.items()},
        }


def _doubled(part: str) -> Change:
    # llama.cpp needs shares of the first layer's values, as large as its rates, and does not use them
    return Change(
        rf"blk\.0\.time_mix_a{part}\.weight",
        lambda tensor, model, blocks: (tensor, tensor),
        lambda stored, model: stored[0],
        (f"time_mix_a{part}", f"time_mix_v{part}"),
        lambda shape, model: (shape, shape),
    )


# all shares in one tensor: (6 D) as (6, 1, 1, D)
SHARES = reshaped(
    r"blk\.\d+\.time_mix_lerp_fused\.weight",
    lambda s, model: (len(MIXED), 1, 1, s[0] // len(MIXED)),
    lambda s, model: (-1,),
)
BONUS = reshaped(
    r"blk\.\d+\.time_mix_r_k\.weight",
    lambda s, model: (s[0] * s[1],),
    lambda s, model: (model.layers[0].mixer.num_heads, -1),
)
CHANGES = (SHARES, BONUS, *map(_doubled, "012"))
RULES = weight_rules(
    OUTER
    + """
    blk.{i}.attn_norm                                   blocks.{i}.mixer_norm
    blk.{i}.attn_norm_2                                 blocks.{i}.feedforward_norm
    blk.{i}.time_mix_{receptance,key,value,output}      blocks.{i}.mixer.{r,k,v,o}
    blk.{i}.time_mix_{w1,a1,v1,g1}                      blocks.{i}.mixer.{decay,rate,value_share,gate}_down
    blk.{i}.time_mix_{w2,a2,v2,g2}                      blocks.{i}.mixer.{decay,rate,value_share,gate}_up
    blk.{i}.time_mix_{w0,a0,v0}.weight                = blocks.{i}.mixer.{decay,rate,value_share}
    blk.{i}.time_mix_lerp_fused.weight                = blocks.{i}.mixer.mix_{r,decay,k,v,rate,gate}
    blk.{i}.time_mix_{k_k,k_a,r_k}.weight             = blocks.{i}.mixer.{removed,key_rate,bonus}
    blk.{i}.time_mix_ln                                 blocks.{i}.mixer.norm
    blk.{i}.channel_mix_lerp_k.weight                 = blocks.{i}.feedforward.mix
    blk.{i}.channel_mix_{key,value}                     blocks.{i}.feedforward.{up,down}
"""
)
