"""Mamba (Gu 2023), and Mamba on bytes (Wang 2024). Format: transformers' `mamba`."""

from collections.abc import Callable
from functools import partial
from typing import Any

from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Expected, Key, Values, ignored
from archetype.families.rules import weight_rules
from archetype.families.standard_block import decoder
from archetype.models.block.spec import Block, PreNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.mamba.spec import Mamba
from archetype.parts.norm.spec import RMSNorm
from archetype.roles.mixer import Mixer

TRAINED = 2048  # length of training sequences, for which published configurations have no key


def mamba(
    *,
    num_layers: int,
    eps: float = 1e-5,
    tied: bool = True,
    std: float = 0.02,
    name: str = "",
    d_model: int,
    vocab_size: int = 50_280,
    context_length: int = TRAINED,
    kind: Callable[..., Mixer] = Mamba,
    **mixer: Any,
) -> Decoder:
    """Build a decoder of state-space layers without feed-forward parts. `mixer` has fields of `spec.Mamba`.

    `context_length` is the length of training sequences, not a limit.
    """
    norm = RMSNorm(eps=eps)
    block = Block(wiring=PreNorm(norm=norm), mixer=kind(**mixer))
    sizes: dict[str, Any] = dict(name=name, d_model=d_model, vocab_size=vocab_size, context_length=context_length)
    return decoder((block,), num_layers=num_layers, norm=norm, tied=tied, std=std, **sizes)


def unless_automatic(rank: int | None, values: Values) -> int | None:
    # the default, written as "auto" in the authors' program
    return None if rank == -(-values["d_model"] // 16) else rank


def _check_rank(config: Config, name: str, default: Any) -> Any:
    return None if config.get(name, "auto") == "auto" else config.size(name)


STATE_SPACE = (  # keys shared by Mamba and Mamba-2
    Key("conv_kernel", "conv_kernel", 4),
    Key("use_conv_bias", "conv_bias", True, check=Config.flag),
    Key("use_bias", "bias", False, check=Config.flag),
    Key("time_step_min", "dt_min", 0.001, check=Config.positive),
    Key("time_step_max", "dt_max", 0.1, check=Config.positive),
    # a key of Archetype, which transformers keeps but does not read
    Key("max_position_embeddings", "context_length", TRAINED),
    Key("layer_norm_epsilon", "eps", 1e-5),
    Key("initializer_range", "std", 0.1),
)
KEYS = ConfigTable(mamba, (
    # keys of the authors' program and of computation, which follow from other keys or do not affect outputs
    ignored("d_model", "d_inner", "n_layer", "ssm_cfg", "rms_norm", "fused_add_norm", "pad_vocab_size_multiple",
        "residual_in_fp32", "rescale_prenorm_residual", "time_step_init_scheme", "time_step_floor", "time_step_scale",
        "use_mambapy", "use_associative_scan", "layer_types"),
    Key("hidden_size", "d_model", 768),
    Key("expand", "expand", 2),
    Expected("intermediate_size", lambda values: values["expand"] * values["d_model"], "a width unlike expand",
        path=lambda model: model.layers[0].mixer.expand * model.d_model),
    Expected("hidden_act", "silu", "another activation", path=lambda model: "silu"),
    Key("time_step_rank", "dt_rank", check=_check_rank, decode=unless_automatic,
        path=lambda model: model.layers[0].mixer.rank(model.d_model)),
    Key("num_hidden_layers", "num_layers", 32),
    Key("state_size", "state_size", 16),
    *STATE_SPACE,
    Key("vocab_size", "vocab_size", 50_280),
    Key("tie_word_embeddings", "tied", True),
), parts={"block.mixer": Mamba, "final_norm": RMSNorm})


RULES = weight_rules("""
    backbone.embeddings                         embedding.token
    backbone.layers.{i}.norm                    blocks.{i}.mixer_norm
    backbone.layers.{i}.mixer.{A_log,D}       = blocks.{i}.mixer.{A_log,D}
    backbone.layers.{i}.mixer.conv1d            blocks.{i}.mixer.conv
    backbone.layers.{i}.mixer.{in,x,dt,out}_proj   blocks.{i}.mixer.{in,x,dt,out}_proj
    backbone.norm_f                             final_norm
    lm_head                                     lm_head
""")

FAMILY = Family("mamba", {
    **presets("Gu 2023, table 12; state-spaces/mamba-*-hf config.json", mamba, {
        "mamba-130m": dict(num_layers=24, d_model=768),
        "mamba-370m": dict(num_layers=48, d_model=1024),
        "mamba-790m": dict(num_layers=48, d_model=1536),
        "mamba-1.4b": dict(num_layers=48, d_model=2048),
        "mamba-2.8b": dict(num_layers=64, d_model=2560),
    }),
    **presets("Wang 2024 (MambaByte), appendix: sizes of the models",
        partial(mamba, vocab_size=256, context_length=8192), {
        "mambabyte-353m": dict(num_layers=53, d_model=1024),
        "mambabyte-972m": dict(num_layers=48, d_model=1792),
    }),
    **tiny(mamba, {
        "mamba-tiny": dict(num_layers=2),
        # sequences of bytes are long, and the cost per byte of a state space does not grow with length
        "mambabyte-tiny": dict(num_layers=2, context_length=512),
    }),
}, Format("mamba", "MambaForCausalLM", KEYS, RULES, "backbone.", class_heads={}))
