"""DeBERTa (He 2020): queries, keys and values share one matrix, and keys have no bias.

Format: transformers' `deberta`.
"""

from functools import partial
from typing import Any

from archetype.families.config import Config
from archetype.families.deberta_v2 import BODY_KEYS, DIRECTIONS, PARTS, attention_of, deberta, read_directions
from archetype.families.encoder_format import BODY, Names, encoder_format
from archetype.families.family import Family
from archetype.families.keys import Converted, Expected, Row, Values, with_defaults
from archetype.models.encoder.spec import Encoder

OF_V1 = {"own_projections": True, "key_bias": False}


def _read_distances(config: Config, values: Values) -> Values:
    # one vector per distance, with separate projections for keys and queries
    fields, longest = read_directions(config, values)
    return {"num_buckets": longest, "max_distance": None, "attention": fields | OF_V1}


def _write_distances(model: Encoder) -> dict[str, Any]:
    attention = attention_of(model)
    return {
        "relative_attention": True,
        "pos_att_type": [name for name, field in DIRECTIONS.items() if getattr(attention, field)],
        "max_relative_positions": attention.vectors.num_buckets,
    }


KEYS: tuple[Row, ...] = (
    *with_defaults(BODY_KEYS, vocab_size=50_265, hidden_size=768, num_hidden_layers=12, num_attention_heads=12,
        intermediate_size=3072),
    Converted(_read_distances, _write_distances),
    Expected("talking_head", False, "heads that are mixed"),
)
NAMES = Names(
    # without BERT's separate matrices: in_proj fuses queries, keys and values by head
    "\n".join(line for line in BODY.splitlines() if "self.{query" not in line) + """
    BASE.encoder.layer.{i}.attention.self.{q,v}_bias    = blocks.{i}.mixer.{q,v}.bias
    BASE.encoder.layer.{i}.attention.self.{pos,pos_q}_proj   blocks.{i}.mixer.{position_k,position_q}
    BASE.encoder.rel_embeddings                              position_bias
    """,
    interleaved="BASE.encoder.layer.{i}.attention.self.in_proj.weight = blocks.{i}.mixer.{q,k,v}.weight",
    class_pooler="pooler.dense",
)
FAMILY = Family("deberta", {}, encoder_format("deberta", "Deberta", "deberta", partial(deberta, vector_norm=False),
    KEYS, NAMES, PARTS, (r"(deberta\.)?embeddings\.position_embeddings\..*", r"lm_predictions\..*")))
