"""BigBird (Zaheer 2020): RoBERTa with blocks that are near, global, and at random; as transformers' `big_bird`."""

from typing import Any

from archetype import spec
from archetype.families.bert import COPIES, architecture, bert, body_rules, masked_rules, read_design, write_design
from archetype.families.config import Config
from archetype.families.family import Family, presets, tiny
from archetype.families.format import Format, expect_kind
from archetype.families.rules import Rule, linear_rules


def bigbird(
    *,
    pattern: spec.Pattern = spec.BigBird(dense_up_to_blocks=11),
    vocab_size: int = 50_358,
    context_length: int = 4096,
    activation: spec.Activation = "gelu_tanh",
    **design: Any,
) -> spec.Encoder:
    """An encoder of BigBird's design (ITC: the global tokens are among the text's own); `design` is as in `bert`."""
    return bert(
        vocab_size=vocab_size, context_length=context_length, activation=activation, patterns=(pattern,), **design
    )


def read(config: Config) -> spec.Encoder:
    """config.json to specification.

    Which blocks are drawn at random is not in the weights. transformers draws them for each head, from numpy's
    generator; here they are drawn for each layer, so that texts that are not seen whole give other numbers there.
    """
    design = read_design(config, vocab_size=50_358, hidden_act="gelu_new", max_position_embeddings=4096)
    if isinstance(design.get("head"), spec.ClassificationHead) and design["activation"] != "tanh":
        raise config.error("architectures", "a pooler with another activation than tanh is not known here")
    kind = config.get("attention_type", "block_sparse")
    block, chosen = config.size("block_size", 64), config.size("num_random_blocks", 3)
    match kind:
        case "block_sparse":
            # transformers sees a text whole as long as that is hardly more
            pattern: spec.Pattern = spec.BigBird(block=block, random_blocks=chosen, dense_up_to_blocks=5 + 2 * chosen)
        case "original_full":
            pattern = spec.Full()
        case _:
            raise config.error("attention_type", f"{kind!r} is not known", "use block_sparse or original_full")
    scaled = config.flag("rescale_embeddings", False)
    return bigbird(
        **design,
        pattern=pattern,
        qkv_bias=config.flag("use_bias", True),
        embedding_scale=design["d_model"] ** 0.5 if scaled else 1.0,
    )


def write(model: spec.ModelSpec) -> dict[str, Any]:
    """Specification to config.json."""
    written = write_design(model)
    encoder = expect_kind(spec.Encoder, model, "kind")
    mixer = expect_kind(spec.Attention, encoder.layers[0].mixer, "layers[0].mixer")
    sparse: dict[str, Any] = {"attention_type": "original_full"}
    if isinstance(pattern := mixer.pattern, spec.BigBird):
        sparse = {
            "attention_type": "block_sparse",
            "block_size": pattern.block,
            "num_random_blocks": pattern.random_blocks,
        }
    return written | sparse | {"use_bias": mixer.bias.q, "rescale_embeddings": encoder.embedding.scale != 1.0}


def rules(model: spec.ModelSpec) -> tuple[Rule, ...]:
    """As BERT's, but for the pooler; a head for classes has it within."""
    head = expect_kind(spec.Encoder, model, "kind").head
    classes = isinstance(head, spec.ClassificationHead)
    tied = not isinstance(head, spec.MaskedLanguageModelHead) or head.tied
    return (
        *body_rules("bert."),
        *linear_rules("", "", [("classifier.dense" if classes else "bert.pooler", "pooler")]),
        *linear_rules("", "", [("classifier.out_proj", "classifier")]),
        *masked_rules("cls.predictions.", tied),
    )


TINY = spec.BigBird(block=8, random_blocks=1, dense_up_to_blocks=7)
FAMILY = Family(
    "big_bird",
    {
        **presets(
            "Zaheer 2020, appendix E.1; google/bigbird-roberta-* config.json",
            bigbird,
            {
                "bigbird-base": dict(num_layers=12, d_model=768, num_heads=12),
                "bigbird-large": dict(num_layers=24, d_model=1024, num_heads=16),
            },
        ),
        **tiny(
            bigbird,
            {"bigbird-tiny": dict(num_layers=2, num_heads=4, pattern=TINY, vocab_size=257)},
        ),
    },
    Format(
        "big_bird",
        lambda model: architecture("BigBird", model),
        read,
        write,
        rules,
        "bert.",
        (
            r"(bert\.)?embeddings\.(position_ids|token_type_ids)",
            r"cls\.seq_relationship\..*",
            r"(bert\.)?pooler\..*",
            r"cls\.predictions\.bias",
        ),
        COPIES,
    ),
)
