"""Small SentencePiece models, one for each set of spm_train's options."""

import io
from functools import cache
from itertools import product
from typing import Any

import sentencepiece

TEXT = """The small cat sleeps on the warm stone in front of the house, where it sleeps every day.
Who has taken the bread that was lying on the table this morning? It was the neighbour's dog!
Élodie walked along the café's river until it was dark; then she went home (slowly) at 9.30.
"""
RULES = ("identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf")
OPTIONS = tuple(
    {"model_type": kind, "normalization_rule_name": rule, "add_dummy_prefix": prefix,
     "remove_extra_whitespaces": joined, "byte_fallback": bytes}
    for kind, rule, prefix, joined, bytes in product(("bpe", "unigram"), RULES, *((True, False),) * 3)
) + tuple(
    {"model_type": kind} | options
    for kind in ("bpe", "unigram")
    for options in (
        {"split_by_whitespace": False},
        {"split_digits": True, "allow_whitespace_only_pieces": True, "split_by_unicode_script": False},
        {"control_symbols": ["<ctl>"], "pad_id": 3, "unk_surface": "?", "unk_piece": "[UNK]"},
        {"user_defined_symbols": ["<sep>", "the"], "add_dummy_prefix": False},
        {"user_defined_symbols": ["<sep>", "the"]},
        {"user_defined_symbols": ["▁▁", "▁▁▁", "\n\n"], "add_dummy_prefix": False,  # as Gemma's
         "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    )
)  # fmt: skip


def trained(options: dict[str, Any]) -> bytes:
    """The model's file."""
    return _trained(
        tuple((name, tuple(value) if isinstance(value, list) else value) for name, value in options.items())
    )


@cache
def _trained(options: tuple[tuple[str, Any], ...]) -> bytes:
    settings = {name: list(value) if isinstance(value, tuple) else value for name, value in options}
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines() * 3), model_writer=file, hard_vocab_limit=False, minloglevel=2,
        vocab_size=400 if settings.get("byte_fallback") else 140, **settings,
    )  # fmt: skip
    return file.getvalue()
