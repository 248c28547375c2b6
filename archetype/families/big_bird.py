"""BigBird (Zaheer 2020): RoBERTa with local, global and random blocks. Format: transformers' `big_bird`."""

from typing import Any

from archetype.families.bert import BODY_KEYS, HeadRow, bert
from archetype.families.config import Config
from archetype.families.encoder_format import Names, encoder_format
from archetype.families.family import Family, presets, tiny
from archetype.families.keys import Converted, Key, Row, Values, with_defaults
from archetype.families.standard_block import first_attention
from archetype.models.encoder.spec import Encoder
from archetype.parts.pattern.spec import BigBird, Full
from archetype.roles.pattern import Pattern


def bigbird(
    *,
    pattern: Pattern = BigBird(dense_up_to_blocks=11),
    **design: Any,
) -> Encoder:
    """Build a BigBird (ITC) encoder, whose global tokens belong to the text. `design` takes the arguments of `bert`."""
    defaults: dict[str, Any] = {"vocab_size": 50_358, "context_length": 4096, "activation": "gelu_tanh"}
    return bert(patterns=(pattern,), **defaults | design)


def _read_pattern(config: Config, values: Values) -> Values:
    # Weights do not determine the random blocks. transformers draws them per head with numpy's generator; here they are
    # drawn once per layer, so outputs only agree for texts with full attention.
    kind = config.get("attention_type", "block_sparse")
    block, random = config.size("block_size", 64), config.size("num_random_blocks", 3)
    match kind:
        case "block_sparse":
            # up to about this length transformers uses full attention
            return {"pattern": BigBird(block=block, random_blocks=random, dense_up_to_blocks=5 + 2 * random)}
        case "original_full":
            return {"pattern": Full()}
        case _:
            raise config.error("attention_type", f"{kind!r} is not supported", "use block_sparse or original_full")


def _write_pattern(model: Encoder) -> dict[str, Any]:
    pattern = first_attention(model).pattern
    if not isinstance(pattern, BigBird):
        return {"attention_type": "original_full"}
    sizes = {"block_size": pattern.block, "num_random_blocks": pattern.random_blocks}
    return {"attention_type": "block_sparse"} | sizes


KEYS: tuple[Row, ...] = (
    *with_defaults(BODY_KEYS, vocab_size=50_358, hidden_act="gelu_new", max_position_embeddings=4096),
    HeadRow(activation="activation", spans=False),
    Converted(_read_pattern, _write_pattern),
    Key("use_bias", "qkv_bias", True),
    # multiplies embeddings by sqrt(d_model), as in the original Transformer
    Key("rescale_embeddings", "embedding_scale", False, check=Config.flag, path="embedding.scale",
        decode=lambda scaled, values: values["d_model"] ** 0.5 if scaled else 1.0, encode=lambda scale: scale != 1.0),
)


NAMES = Names(pooler="BASE.pooler", class_pooler="classifier.dense", classifier="classifier.out_proj")
TINY = BigBird(block=8, random_blocks=1, dense_up_to_blocks=7)
FAMILY = Family("big_bird", {
    **presets("Zaheer 2020, appendix E.1; google/bigbird-roberta-* config.json", bigbird, {
        "bigbird-base": dict(num_layers=12, d_model=768, num_heads=12),
        "bigbird-large": dict(num_layers=24, d_model=1024, num_heads=16),
    }),
    **tiny(bigbird, {"bigbird-tiny": dict(num_layers=2, num_heads=4, pattern=TINY, vocab_size=257)}),
}, encoder_format("big_bird", "BigBird", "bert", bigbird, KEYS, NAMES,
    ignored=(r"(bert\.)?embeddings\.token_type_ids",)))
