"""EuroBERT (Boizard 2025): Llama's layers with bidirectional attention. Format: transformers' `eurobert`."""

from typing import Any

from archetype.families.classes import BARE, MASKED, TEXTS, TOKENS, class_head, head_named, write_classes
from archetype.families.config import Config
from archetype.families.encoder_format import Names, encoder_format
from archetype.families.family import Family, presets, tiny
from archetype.families.keys import Converted, Key, Row, Values, ignored
from archetype.families.llama import PARTS as LLAMA_PARTS
from archetype.families.llama import design_keys, llama
from archetype.models.block.spec import PreNorm
from archetype.models.encoder.spec import Encoder
from archetype.parts.head.spec import HeadTransform, MaskedLogitsHead
from archetype.parts.position.spec import Rotary
from archetype.roles.head import Head


def eurobert(
    *,
    position: Rotary = Rotary(theta=250_000.0),
    mlp_bias: bool = False,
    tied: bool = False,
    head: Head | None = None,
    pooling: str = "first",
    **design: Any,
) -> Encoder:
    """Build a EuroBERT encoder, by default with a masked language modelling head.

    The head has a bias if `mlp_bias` is set. `head` and `pooling` are as in `spec.Encoder`. `design` takes the
    arguments of `llama`.
    """
    sizes = {"vocab_size": 128_256, "context_length": 8192}
    decoder = llama(position=position, mlp_bias=mlp_bias, **sizes | design)
    return Encoder(
        name=decoder.name,
        vocab_size=decoder.vocab_size,
        context_length=decoder.context_length,
        d_model=decoder.d_model,
        layers=decoder.layers,
        final_norm=decoder.final_norm,
        head=head or MaskedLogitsHead(tied=tied, bias=mlp_bias),
        pooling=pooling,
        initialization=decoder.initialization,
    )


POOLINGS = {"bos": "first", "mean": "mean", "late": "late"}


def _read_head(config: Config, values: Values) -> Values:
    pooling = config.get("classifier_pooling", "late")
    if pooling not in POOLINGS:
        raise config.error("classifier_pooling", f"{pooling!r} is not supported", f"use one of {', '.join(POOLINGS)}")
    ending = head_named(config, MASKED, TEXTS, TOKENS, BARE)
    if ending == TEXTS:
        return {"head": class_head(config, ending, transform=HeadTransform()), "pooling": POOLINGS[pooling]}
    return {"head": class_head(config, ending)}


def _write_head(model: Encoder) -> dict[str, Any]:
    names = {ours: theirs for theirs, ours in POOLINGS.items()}
    return {"classifier_pooling": names[model.pooling]} | write_classes(model)


KEYS: tuple[Row, ...] = (
    ignored("pretraining_tp", "mask_token_id"),
    *design_keys(hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
        vocab_size=128_256, max_position_embeddings=8192, rms_norm_eps=1e-5),
    Key("hidden_act", "activation", "silu"),
    Key("attention_bias", "attention_bias", False),
    Key("mlp_bias", "mlp_bias", False),
    Converted(_read_head, _write_head),
)
NAMES = Names(
    body="""
        BASE.embed_tokens                          embedding.token
        BASE.layers.{i}.self_attn.{q,k,v,o}_proj   blocks.{i}.mixer.{q,k,v,o}
        BASE.layers.{i}.input_layernorm            blocks.{i}.mixer_norm
        BASE.layers.{i}.post_attention_layernorm   blocks.{i}.feedforward_norm
        BASE.layers.{i}.mlp.{gate,up,down}_proj    blocks.{i}.feedforward.{gate,up,down}
        BASE.norm                                  final_norm
    """,
    logits="lm_head", tied_bias="lm_head.bias", class_transform="{dense,norm}",
)
PARTS = LLAMA_PARTS | {"block.wiring": PreNorm}
FAMILY = Family("eurobert", {
    **presets("Boizard 2025, table 1; EuroBERT/EuroBERT-* config.json", eurobert, {
        "eurobert-210m": dict(num_layers=12, d_model=768, num_heads=12, d_ff=3072),
        "eurobert-610m": dict(num_layers=26, d_model=1152, num_heads=18, num_kv_heads=6, d_ff=4096),
        "eurobert-2.1b": dict(num_layers=32, d_model=2304, num_heads=18, num_kv_heads=6, d_ff=6144),
    }),
    **tiny(eurobert, {"eurobert-tiny": dict(num_layers=2, num_heads=4, num_kv_heads=2, d_ff=172, vocab_size=257)}),
}, encoder_format("eurobert", "EuroBert", "model", eurobert, KEYS, NAMES, PARTS))
