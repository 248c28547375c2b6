"""RWKV-7 (Peng 2025). Format: flash-linear-attention's `rwkv7`."""

from dataclasses import replace
from functools import partial
from typing import Any

from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.flash_linear_attention import network_width, of_model
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Expected, Key, Values
from archetype.families.rules import Rule, weight_rules
from archetype.families.standard_block import decoder
from archetype.models.block.spec import Block, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.channel_mixing.spec import ChannelMixing
from archetype.parts.embedding.spec import Embedding
from archetype.parts.norm.spec import LayerNorm, NoNorm
from archetype.parts.rwkv7.spec import RWKV7

KERNEL_EPS = 1e-6  # on squared lengths of removal keys, in fla's fused kernels


def rwkv7(
    *,
    num_layers: int,
    d_model: int,
    head_dim: int = 64,
    d_ff: int | None = None,
    norm: LayerNorm = LayerNorm(),
    norm_first: bool = True,
    **arguments: Any,
) -> Decoder:
    """Build an RWKV-7 decoder, with a norm before the first layer. `arguments` has fields of mixer and model."""
    eps = {"eps": head_dim * norm.eps}  # of the norm of heads
    fields = eps | {name: arguments.pop(name) for name in RWKV7.model_fields if name in arguments}
    first, network = RWKV7(num_heads=d_model // head_dim, **fields), ChannelMixing(d_ff=d_ff or 4 * d_model)
    mixers = (first, *(num_layers - 1) * (first.replace(values_from=0),))
    blocks = tuple(Block(wiring=PreNorm(norm=norm), mixer=mixer, feedforward=network) for mixer in mixers)
    embedding = Embedding(norm=norm if norm_first else NoNorm())
    return decoder(blocks, num_layers=num_layers, norm=norm, embedding=embedding, d_model=d_model, **arguments)


def _read_heads(config: Config, values: Values) -> Values:
    d_model, widths = values["d_model"], config.get("value_dim")
    if any(each not in (None, d_model) for each in (widths if isinstance(widths, list) else [widths])):
        raise config.error("value_dim", f"{widths} unlike hidden_size is not supported", "use hidden_size")
    # published files state num_heads that contradict head_dim, which then counts alone
    config.get("num_heads")
    size = config.optional_size("head_dim", 64) or d_model // config.size("num_heads")
    if not size or d_model % size:
        raise config.error("head_dim", f"heads of {size} features do not divide {d_model} features", "fix the file")
    return {"head_dim": size}


RANKS = (("decay", "decay_rank", 64), ("a", "rate_rank", 64), ("v", "value_rank", 16), ("gate", "gate_rank", 128))
KEYS = ConfigTable(rwkv7, (
    *of_model(),
    Expected("hidden_act", "sqrelu", "another activation", path=lambda model: "sqrelu"),
    *network_width(4.0, 1.0, 32, "block.feedforward.d_ff"),
    Converted(_read_heads, lambda model: {"head_dim": model.d_model // model.layers[0].mixer.num_heads}),
    *(Key(f"{name}_low_rank_dim", argument, default, null=None) for name, argument, default in RANKS),
    Key("norm_eps", "norm", 1e-5, check=Config.positive, path="final_norm.eps",
        decode=lambda eps, values: LayerNorm(eps=eps)),
    Converted(lambda config, values: {"norm": values["norm"].replace(bias=config.flag("norm_bias", True))},
        lambda model: {"norm_bias": model.final_norm.bias}),
    Key("norm_first", "norm_first", True, null=False, check=Config.flag,
        path=lambda model: not model.embedding.norm.is_absent),
    Key("fuse_norm", "length_eps", True, null=False, check=Config.flag, encode=lambda eps: eps > 0,
        decode=lambda fused, values: KERNEL_EPS if fused else 0.0),
), parts={"block.mixer": RWKV7, "block.feedforward": ChannelMixing, "final_norm": LayerNorm})

RULES = weight_rules("""
    model.embeddings                                    embedding.token
    model.layers.0.pre_norm                             embedding.norm
    model.layers.{i}.attn_norm                          blocks.{i}.mixer_norm
    model.layers.{i}.ffn_norm                           blocks.{i}.feedforward_norm
    model.layers.{i}.attn.{r,k,v,o}_proj                blocks.{i}.mixer.{r,k,v,o}
    model.layers.{i}.attn.{w,a,v,g}_lora.lora.0         blocks.{i}.mixer.{decay,rate,value_share,gate}_down
    model.layers.{i}.attn.{w,a,v,g}_lora.lora.2.weight = blocks.{i}.mixer.{decay,rate,value_share,gate}_up.weight
    model.layers.{i}.attn.{w,a,v}_lora.lora.2.bias    = blocks.{i}.mixer.{decay,rate,value_share}
    model.layers.{i}.attn.{k_k,k_a,r_k}               = blocks.{i}.mixer.{removed,key_rate,bonus}
    model.layers.{i}.attn.g_norm                        blocks.{i}.mixer.norm
    model.layers.{i}.ffn.x_k                          = blocks.{i}.feedforward.mix
    model.layers.{i}.ffn.{key,value}                    blocks.{i}.feedforward.{up,down}
    model.norm                                          final_norm
    lm_head                                             lm_head
""")


def _rules(model: Any) -> tuple[Rule, ...]:
    shares = weight_rules("model.layers.{i}.attn.x_{r,w,k,v,a,g} = blocks.{i}.mixer.mix_{r,decay,k,v,rate,gate}")
    return (*RULES, *(replace(share, shape=(1, 1, model.d_model)) for share in shares))


WIDE = {"decay_rank": 96, "rate_rank": 96, "value_rank": 64}
FAMILY = Family("rwkv7", {
    **presets("Peng 2025, table 15", partial(rwkv7, vocab_size=65_536, context_length=4096), {
        "rwkv7-0.1b": dict(num_layers=12, d_model=768),
        "rwkv7-0.4b": dict(num_layers=24, d_model=1024),
        "rwkv7-1.5b": dict(num_layers=24, d_model=2048, gate_rank=256, **WIDE),
        "rwkv7-2.9b": dict(num_layers=32, d_model=2560, gate_rank=320, **WIDE),
    }),
    **tiny(rwkv7, {"rwkv7-tiny": dict(num_layers=2, head_dim=16, decay_rank=8, rate_rank=8, value_rank=8,
        gate_rank=16)}),
}, Format("rwkv7", "RWKV7ForCausalLM", KEYS, _rules, "model.", class_heads={}))
