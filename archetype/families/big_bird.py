"""BigBird (Zaheer 2020): RoBERTa with blocks that are near, global, and at random; as transformers' `big_bird`."""

from typing import Any

from archetype.families.bert import BODY, COPIES, DESIGN, LEFT_OUT, PARTS, architecture, bert, masked_rules
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format
from archetype.families.keys import ConfigTable, Converted, Key, Values, expect_kind, with_defaults
from archetype.families.rules import Rule, weight_rules
from archetype.models.encoder.spec import Encoder
from archetype.models.spec import ModelSpec
from archetype.parts.activation.spec import Tanh
from archetype.parts.attention.spec import Attention
from archetype.parts.head.spec import ClassificationHead
from archetype.parts.pattern.spec import BigBird, Full
from archetype.roles.activation import Activation
from archetype.roles.pattern import Pattern


def bigbird(
    *,
    pattern: Pattern = BigBird(dense_up_to_blocks=11),
    vocab_size: int = 50_358,
    context_length: int = 4096,
    activation: Activation | str = "gelu_tanh",
    **design: Any,
) -> Encoder:
    """An encoder of BigBird's design (ITC: the global tokens are among the text's own); `design` is as in `bert`."""
    return bert(
        vocab_size=vocab_size, context_length=context_length, activation=activation, patterns=(pattern,), **design
    )


def _read_pattern(config: Config, values: Values) -> Values:
    """The blocks that each layer sees.

    Which blocks are drawn at random is not in the weights. transformers draws them for each head, from numpy's
    generator; here they are drawn for each layer, so that texts that are not seen whole give other numbers there.
    """
    if isinstance(values.get("head"), ClassificationHead) and values["activation"] != Tanh():
        raise config.error("architectures", "a pooler with another activation than tanh is not known here")
    kind = config.get("attention_type", "block_sparse")
    block, random = config.size("block_size", 64), config.size("num_random_blocks", 3)
    match kind:
        case "block_sparse":
            # transformers sees a text whole as long as that is hardly more
            return {"pattern": BigBird(block=block, random_blocks=random, dense_up_to_blocks=5 + 2 * random)}
        case "original_full":
            return {"pattern": Full()}
        case _:
            raise config.error("attention_type", f"{kind!r} is not known", "use block_sparse or original_full")


def _write_pattern(model: Encoder) -> dict[str, Any]:
    pattern = expect_kind(Attention, model.layers[0].mixer, "layers[0].mixer").pattern
    if not isinstance(pattern, BigBird):
        return {"attention_type": "original_full"}
    sizes = {"block_size": pattern.block, "num_random_blocks": pattern.random_blocks}
    return {"attention_type": "block_sparse"} | sizes


KEYS = ConfigTable(bigbird, (
    *with_defaults(DESIGN, vocab_size=50_358, hidden_act="gelu_new", max_position_embeddings=4096),
    Converted(_read_pattern, _write_pattern),
    Key("use_bias", "qkv_bias", True),
    Key("rescale_embeddings", "embedding_scale", False, check=Config.flag, path="embedding.scale",
        decode=lambda scaled, values: values["d_model"] ** 0.5 if scaled else 1.0, encode=lambda scale: scale != 1.0),
), Encoder, PARTS)  # fmt: skip


def rules(model: ModelSpec) -> tuple[Rule, ...]:
    """As BERT's, but for the pooler; a head for classes has it within."""
    classes = isinstance(expect_kind(Encoder, model, "kind").head, ClassificationHead)
    return weight_rules(f"""{BODY}
        {"classifier.dense" if classes else "bert.pooler"}   pooler
        classifier.out_proj                                  classifier
        cls.predictions.transform.{{dense,LayerNorm}}        lm_head.{{dense,norm}}
    """) + masked_rules(model)


TINY = BigBird(block=8, random_blocks=1, dense_up_to_blocks=7)
FAMILY = Family("big_bird", {
    **presets("Zaheer 2020, appendix E.1; google/bigbird-roberta-* config.json", bigbird, {
        "bigbird-base": dict(num_layers=12, d_model=768, num_heads=12),
        "bigbird-large": dict(num_layers=24, d_model=1024, num_heads=16),
    }),
    **tiny(bigbird, {"bigbird-tiny": dict(num_layers=2, num_heads=4, pattern=TINY, vocab_size=257)}),
}, Format("big_bird", lambda model: architecture("BigBird", model), KEYS, rules, "bert.",
    (*LEFT_OUT, r"(bert\.)?embeddings\.token_type_ids"), COPIES))  # fmt: skip
