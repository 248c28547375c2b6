"""LLaMA, Llama 2, 3, 3.1 and 3.2 (Touvron 2023, Dubey 2024). Format: transformers' `llama`."""

from functools import partial
from operator import itemgetter
from typing import Any

from archetype.errors import CheckpointError
from archetype.families.config import Config
from archetype.families.decoder_classes import OF_PREFIXED_SPANS
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Key, Row, Values, expect_kind, ignored, width, with_defaults
from archetype.families.rope import read_rotary, write_rotary
from archetype.families.rules import weight_rules
from archetype.families.standard_block import ALL_BIASES, decoder, first_attention
from archetype.models.block.spec import Block, PreNorm, SandwichNorm
from archetype.models.decoder.spec import Decoder
from archetype.parts.attention.spec import Attention, ProjectionBiases
from archetype.parts.feedforward.spec import EightThirds, GatedMLP
from archetype.parts.norm.spec import RMSNorm
from archetype.parts.pattern.spec import Full
from archetype.parts.position.spec import Llama3Scaling, Rotary
from archetype.roles.activation import Activation
from archetype.roles.pattern import Pattern
from archetype.roles.wiring import Wiring
from archetype.spec.base import Spec


def llama(
    *,
    num_layers: int,
    d_model: int,
    num_heads: int,
    d_ff: int | EightThirds,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    vocab_size: int = 32_000,
    context_length: int = 4096,
    patterns: tuple[Pattern, ...] = (Full(),),
    activation: Activation | str = "silu",
    eps: float = 1e-5,
    unit_offset: bool = False,
    sandwich: bool = False,
    attention_bias: bool | ProjectionBiases = False,
    mlp_bias: bool = False,
    attention_dropout: float = 0.0,
    attention: dict[str, Any] | None = None,
    position: Rotary = Rotary(),
    **model: Any,
) -> Decoder:
    """Build a Llama decoder, with the settings in which its descendants differ.

    Args:
        patterns: attention patterns, cycled over the layers.
        unit_offset: whether norms multiply by 1 + weight.
        sandwich: whether each part has a norm before and after it.
        attention: additional fields of `spec.Attention`.
        model: further arguments of `standard_block.decoder`, such as `tied`, and fields of `spec.Decoder`.
    """
    norm = RMSNorm(eps=eps, unit_offset=unit_offset)
    if isinstance(attention_bias, bool):
        attention_bias = ALL_BIASES if attention_bias else ProjectionBiases()
    mixer = Attention(
        num_heads=num_heads,
        # defaults are left out, so that equal models have equal specifications
        num_kv_heads=None if num_kv_heads == num_heads else num_kv_heads,
        head_dim=None if head_dim is not None and head_dim * num_heads == d_model else head_dim,
        bias=attention_bias,
        position=position,
        dropout=attention_dropout,
        **(attention or {}),
    )
    wiring: Wiring = SandwichNorm(norm=norm) if sandwich else PreNorm(norm=norm)
    feedforward = GatedMLP(d_ff=d_ff, activation=activation, bias=mlp_bias)
    block = Block(wiring=wiring, mixer=mixer, feedforward=feedforward)
    blocks = tuple(block.replace(mixer=mixer.replace(pattern=pattern)) for pattern in patterns)
    sizes: dict[str, Any] = dict(d_model=d_model, vocab_size=vocab_size, context_length=context_length)
    return decoder(blocks, num_layers=num_layers, norm=norm, **sizes, **model)


def rotary_keys(theta: float, whole: bool = True, trained: int | None = None, rereads: bool = False) -> Converted:
    """Return the row for rotary positions.

    Args:
        theta: default in transformers.
        whole: whether the format always rotates all features of a head.
        trained: default of the original context length in transformers.
        rereads: whether the class recomputes a sequence that outgrows the original context.
    """

    def read(config: Config, values: Values) -> Values:
        position = read_rotary(config, values["head_dim"], values["context_length"], theta, trained, rereads)
        if whole and position.dim is not None:  # transformers rotates whole heads here and ignores the key
            raise config.error("partial_rotary_factor", "this format rotates whole heads", "remove it")
        return {"position": position}

    def write(model: Decoder) -> dict[str, Any]:
        mixer = first_attention(model)
        heads, position = mixer.sizes(model.d_model), mixer.position
        if whole and heads.rotary_dim != heads.head_dim:
            cause = "this format rotates whole heads"
            raise CheckpointError("layers[0].mixer.position.dim", cause, "export to another family")
        rotary = expect_kind(Rotary, position, "layers[0].mixer.position")
        return {"rope_parameters": write_rotary(rotary, heads.head_dim)}

    return Converted(read, write)


def design_keys(
    theta: float = 10_000.0, feedforward: str = "block.feedforward", rotary: bool = True, **defaults: Any
) -> tuple[Row, ...]:
    """Return the keys for Llama-like formats. `theta` and `defaults` are the defaults of the transformers class.

    `feedforward` is the path of the part with the inner width. Without `rotary`, the format adds a position row.
    """
    rows: tuple[Row, ...] = (
        Key("hidden_size", "d_model", 4096),
        Key("num_attention_heads", "num_heads", 32),
        Key("head_dim", "head_dim", lambda values: max(1, values["d_model"] // values["num_heads"])),
        Key("max_position_embeddings", "context_length", 2048),
        *([rotary_keys(theta)] if rotary else []),
        Key("num_hidden_layers", "num_layers", 32),
        Key("num_key_value_heads", "num_kv_heads", itemgetter("num_heads"), null=itemgetter("num_heads")),
        Key("intermediate_size", "d_ff", 11_008, path=width(feedforward)),
        Key("vocab_size", "vocab_size", 32_000),
        Key("rms_norm_eps", "eps", 1e-6),
        Key("attention_dropout", "attention_dropout", 0.0),
        Key("tie_word_embeddings", "tied", False),
        Key("initializer_range", "std", 0.02),
    )
    return with_defaults(rows, **defaults)


# The only kinds of parts in Llama-like formats.
PARTS: dict[str, type[Spec]] = {
    "final_norm": RMSNorm,
    "block.mixer": Attention,
    "block.mixer.position": Rotary,
    "block.feedforward": GatedMLP,
}
KEYS = ConfigTable(llama, (
    ignored("pretraining_tp"),  # splits products without changing the result
    *design_keys(),
    Key("hidden_act", "activation", "silu"),
    Key("attention_bias", "attention_bias", False),
    Key("mlp_bias", "mlp_bias", False),
), parts=PARTS)


# Rules of Llama-like formats: all but norms and feed-forward parts, which differ.
FRAME = weight_rules("""
    model.embed_tokens                          embedding.token
    model.layers.{i}.self_attn.{q,k,v,o}_proj   blocks.{i}.mixer.{q,k,v,o}
    model.norm                                  final_norm
    lm_head                                     lm_head
""")
PRE_NORMS = weight_rules("""
    model.layers.{i}.input_layernorm            blocks.{i}.mixer_norm
    model.layers.{i}.post_attention_layernorm   blocks.{i}.feedforward_norm
""")
GATED_MLP = weight_rules("""
    model.layers.{i}.mlp.{gate,up,down}_proj    blocks.{i}.feedforward.{gate,up,down}
""")
RULES = (*FRAME, *PRE_NORMS, *GATED_MLP)


def _llama3(**sizes: Any) -> Decoder:
    settings: dict[str, Any] = {"vocab_size": 128_256, "num_kv_heads": 8, "position": Rotary(theta=500_000.0)}
    return llama(**(settings | {"context_length": 8192} | sizes))


def _llama31(factor: float, **sizes: Any) -> Decoder:
    # `rope_scaling` of the configurations; the paper gives only theta
    bands = {"low_frequency_factor": 1.0, "high_frequency_factor": 4.0, "original_context_length": 8192}
    position = Rotary(theta=500_000.0, scaling=Llama3Scaling(factor=factor, **bands))
    return _llama3(context_length=131_072, position=position, **sizes)


PRESETS = {
    **presets("Touvron 2023 (LLaMA), table 2; params.json of the release", partial(llama, context_length=2048), {
        "llama-7b": dict(num_layers=32, d_model=4096, num_heads=32, d_ff=11_008, eps=1e-6),
        "llama-13b": dict(num_layers=40, d_model=5120, num_heads=40, d_ff=13_824, eps=1e-6),
        "llama-33b": dict(num_layers=60, d_model=6656, num_heads=52, d_ff=17_920, eps=1e-6),
        "llama-65b": dict(num_layers=80, d_model=8192, num_heads=64, d_ff=22_016),
    }),
    **presets("Touvron 2023 (Llama 2), meta-llama/Llama-2-*-hf config.json", llama, {
        "llama-2-7b": dict(num_layers=32, d_model=4096, num_heads=32, d_ff=11_008),
        "llama-2-13b": dict(num_layers=40, d_model=5120, num_heads=40, d_ff=13_824),
        "llama-2-70b": dict(num_layers=80, d_model=8192, num_heads=64, num_kv_heads=8, d_ff=28_672),
    }),
    **presets("Dubey 2024, table 3; meta-llama/Meta-Llama-3-* config.json", _llama3, {
        "llama-3-8b": dict(num_layers=32, d_model=4096, num_heads=32, d_ff=14_336),
        "llama-3-70b": dict(num_layers=80, d_model=8192, num_heads=64, d_ff=28_672),
    }),
    **presets("Dubey 2024, table 3; meta-llama/Llama-3.1-* config.json", _llama31,
        {"llama-3.1-405b": dict(num_layers=126, d_model=16_384, num_heads=128, d_ff=53_248, factor=8.0)}),
    **presets("meta-llama/Llama-3.2-* config.json", partial(_llama31, factor=32.0, tied=True), {
        "llama-3.2-1b": dict(num_layers=16, d_model=2048, num_heads=32, d_ff=8192),
        "llama-3.2-3b": dict(num_layers=28, d_model=3072, num_heads=24, d_ff=8192),
    }),
    **tiny(llama, {"llama-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=172)}),
}

INV_FREQ = (r".*rotary_emb\.inv_freq",)  # a buffer in old files
FORMAT = Format("llama", "LlamaForCausalLM", KEYS, RULES, "model.", INV_FREQ, class_heads=OF_PREFIXED_SPANS)
FAMILY = Family("llama", PRESETS, FORMAT)
