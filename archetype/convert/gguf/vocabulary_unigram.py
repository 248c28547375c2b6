"""A tokenizer.json of Unigram in GGUF, as T5's folders have one."""

import json
from base64 import b64decode
from typing import Any

from archetype.convert.gguf.vocabulary import (
    CONTROL,
    NORMAL,
    NOTHING,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
    no_form,
    padded,
)
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer


def unigram(tokenizer: HuggingFaceTokenizer, vocab_size: int) -> Vocabulary:
    """Where the file joins spaces and puts one before the first word, as SentencePiece does."""
    definition = tokenizer.definition
    model = definition["model"]
    if model.get("unk_id") is None or model.get("byte_fallback"):
        raise no_form("llama.cpp knows no Unigram without a token for what is unknown, or with bytes for it")
    charsmap, joins = _normalizer(definition.get("normalizer"))
    if not _cuts_words(definition.get("pre_tokenizer"), joins):
        cut = json.dumps(definition.get("pre_tokenizer"))[:120]
        raise no_form(f"llama.cpp does not know how its file cuts texts: {cut}")
    tokens = {id: piece for id, (piece, _) in enumerate(model["vocab"])}
    types = dict.fromkeys(tokens, NORMAL)
    scores = {id: float(score) for id, (_, score) in enumerate(model["vocab"])}
    for added in definition.get("added_tokens") or []:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added.get("special") else USER_DEFINED
    types[model["unk_id"]] = UNKNOWN
    return Vocabulary(
        "t5",
        "default",
        *padded(tokens, types, vocab_size),
        scores=[scores.get(id, NOTHING) for id in range(vocab_size)],
        special={"unknown": model["unk_id"]},
        flags={"add_space_prefix": True, "remove_extra_whitespaces": True},
        charsmap=charsmap,
    )


def _normalizer(normalizer: Any) -> tuple[bytes, bool]:
    """SentencePiece's own rules, and whether spaces are joined behind them."""
    match normalizer:
        case {"type": "Precompiled", "precompiled_charsmap": str(charsmap)}:
            return b64decode(charsmap), False
        case {
            "type": "Sequence",
            "normalizers": [
                {"type": "Precompiled", "precompiled_charsmap": str(charsmap)},
                {"type": "Strip", "strip_right": True},
                {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " " | "▁"},
            ],
        }:
            return b64decode(charsmap), True
        case _:
            raise no_form("llama.cpp does not know how its file changes texts before they are cut")


def _cuts_words(pre_tokenizer: Any, joined: bool) -> bool:
    """Whether every word begins with one space, the first too."""
    match pre_tokenizer:
        case {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, one]}:
            return _begins_words(one)
        case one:
            return joined and _begins_words(one)


def _begins_words(step: Any) -> bool:
    match step:
        case {"type": "Metaspace", "replacement": "▁", "prepend_scheme": str(scheme)}:
            return scheme == "always"
        case {"type": "Metaspace", "replacement": "▁"}:
            return step.get("add_prefix_space", True) is True
        case _:
            return False
