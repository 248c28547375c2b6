"""GTE as published by Alibaba (model type `new`, remote code): GTE with NTK-scaled positions.

Tensor names are the same as in transformers' `gte`. Theta is multiplied by `factor`, and frequencies are divided by
factor^(2/P), where P is the width of a head (Su 2023, https://kexue.fm/archives/9706).
"""

from typing import Any

from archetype.families.bert import BODY_KEYS, HeadRow
from archetype.families.config import Config
from archetype.families.encoder_format import encoder_format
from archetype.families.encoders import GATED_PARTS, GTE_NAMES, gte, without
from archetype.families.family import Family
from archetype.families.keys import Converted, Expected, Key, Row, Values, expect_kind, ignored, with_defaults
from archetype.families.standard_block import first_attention
from archetype.models.encoder.spec import Encoder
from archetype.parts.position.spec import LinearScaling, Rotary

DIGITS = 6  # decimals of a factor that is recovered from its power


def _read_positions(config: Config, values: Values) -> Values:
    config.expect("position_embedding_type", "rope", "added positions")
    head_dim, theta = values["d_model"] // values["num_heads"], config.positive("rope_theta", 10_000.0)
    if (section := config.section("rope_scaling")) is None:
        return {"rotary": Rotary(theta=theta), "head_dim": head_dim}
    section.expect("type", "ntk", "another scaling")
    section.expect("mixed_b", None, "a factor per frequency")
    factor = section.positive("factor")
    section.finish(frozenset())
    scaling = LinearScaling(factor=factor ** (2 / head_dim))
    return {"rotary": Rotary(theta=theta * factor, scaling=scaling), "head_dim": head_dim}


def _write_positions(model: Encoder) -> dict[str, Any]:
    attention = first_attention(model)
    rotary = expect_kind(Rotary, attention.position, "layers[0].mixer.position")
    written: dict[str, Any] = {"position_embedding_type": "rope", "rope_theta": rotary.theta, "rope_scaling": None}
    if isinstance(rotary.scaling, LinearScaling):
        # inverse of `_read_positions`; rounded, since a power and its root differ in the last bits
        factor = round(rotary.scaling.factor ** (attention.sizes(model.d_model).head_dim / 2), DIGITS)
        written |= {"rope_theta": rotary.theta / factor, "rope_scaling": {"type": "ntk", "factor": factor}}
    return written


KEYS: tuple[Row, ...] = (
    *with_defaults(without(BODY_KEYS, "type_vocab_size", "position_embedding_type"), vocab_size=30_528,
        attention_probs_dropout_prob=0.0, max_position_embeddings=2048),
    ignored("unpad_inputs", "use_memory_efficient_attention"),  # settings of computation
    Expected("pack_qkv", True, "separate matrices", path=lambda model: True),
    Expected("layer_norm_type", "layer_norm", "other norms"),
    Expected("logn_attention_scale", False, "scores scaled by the length"),
    Expected("logn_attention_clip1", False, "scores scaled by the length"),
    Key("type_vocab_size", "num_token_types", 1, check=Config.count),
    Converted(_read_positions, _write_positions),
    HeadRow(pooled=False, spans=False),
)
FAMILIES = {"new": Family("new", {}, encoder_format("new", "New", "new", gte, KEYS, GTE_NAMES, GATED_PARTS))}
