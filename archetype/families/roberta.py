"""RoBERTa (Liu 2019): BERT with other tokens, trained for longer."""

from typing import Any

from archetype.families.bert import bert
from archetype.families.family import Family, presets
from archetype.models.encoder.spec import Encoder
from archetype.parts.position.spec import Learned


def roberta(*, vocab_size: int = 50_265, eps: float = 1e-5, **design: Any) -> Encoder:
    """An encoder of RoBERTa's design; `design` is as in `bert`.

    Positions are counted from the number after padding's id, which is 1.
    """
    position = Learned(offset=2)
    return bert(vocab_size=vocab_size, eps=eps, num_token_types=1, position=position, head_activation="gelu", **design)


FAMILY = Family("roberta", presets("Liu 2019, section 2; FacebookAI/roberta-* config.json", roberta, {
    "roberta-base": dict(num_layers=12, d_model=768, num_heads=12),
    "roberta-large": dict(num_layers=24, d_model=1024, num_heads=16),
}))  # fmt: skip
