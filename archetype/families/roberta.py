"""RoBERTa (Liu 2019): BERT with positions that start after the padding id. Format: transformers' `roberta`."""

from typing import Any

from archetype.families.bert import DESIGN, bert
from archetype.families.config import Config
from archetype.families.encoder_format import ROBERTA_NAMES, encoder_format
from archetype.families.family import Family, presets, tiny
from archetype.families.keys import Converted, Row, Values, expect_kind, with_defaults
from archetype.models.encoder.spec import Encoder
from archetype.parts.embedding.spec import Embedding
from archetype.parts.position.spec import Learned

PADDING = 1  # id of padding; positions start at the next number


def roberta(*, offset: int = PADDING + 1, **design: Any) -> Encoder:
    """Build a RoBERTa encoder. `design` takes the arguments of `bert`."""
    return bert(position=Learned(offset=offset), head_activation="gelu", **design)


def _read_positions(config: Config, values: Values) -> Values:
    # positions start after the padding id; the table also has rows for the positions before
    offset = config.count("pad_token_id", PADDING) + 1
    if (context_length := values["context_length"] - offset) < 1:
        raise config.error("max_position_embeddings", "leaves no position after that of padding", "fix the file")
    return {"context_length": context_length, "offset": offset}


def _write_positions(model: Encoder) -> dict[str, Any]:
    embedding = expect_kind(Embedding, model.embedding, "embedding")
    offset = expect_kind(Learned, embedding.position, "embedding.position").offset
    return {"max_position_embeddings": model.context_length + offset, "pad_token_id": max(offset - 1, 0)}


POSITIONS = Converted(_read_positions, _write_positions)
KEYS: tuple[Row, ...] = (*with_defaults(DESIGN, vocab_size=50_265), POSITIONS)
SIZES: dict[str, Any] = dict(vocab_size=50_265, context_length=512, num_token_types=1, eps=1e-5)
FAMILY = Family("roberta", {
    **presets("Liu 2019, table 9; FacebookAI/roberta-* config.json", roberta, {
        "roberta-base": dict(num_layers=12, d_model=768, num_heads=12, **SIZES),
        "roberta-large": dict(num_layers=24, d_model=1024, num_heads=16, **SIZES),
    }),
    **tiny(roberta, {"roberta-tiny": dict(num_layers=2, num_heads=4, vocab_size=257, num_token_types=1)}),
}, encoder_format("roberta", "Roberta", "roberta", roberta, KEYS, ROBERTA_NAMES))
