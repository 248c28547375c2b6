"""A tokenizer.json of WordPiece in GGUF, as BERT's folders have one."""

import json
from typing import Any

from archetype.convert.gguf.vocabulary import CONTROL, NORMAL, USER_DEFINED, Vocabulary, no_form, padded
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer

SPACE = "▁"
CONTINUES = "##"
ROLES = {"[PAD]": "padding", "[MASK]": "mask"}


def wordpiece(tokenizer: HuggingFaceTokenizer, vocab_size: int) -> Vocabulary:
    """Here what begins a word is marked, not what continues one.

    llama.cpp cuts words of more than 100 characters too, which the file calls unknown.
    """
    definition = tokenizer.definition
    model = definition["model"]
    frame = tokenizer.add_special_tokens([])
    if model.get("continuing_subword_prefix") != CONTINUES or len(frame) != 2:
        raise no_form(f"llama.cpp knows only WordPiece with {CONTINUES}, and one token on each side of a text")
    if (definition.get("pre_tokenizer") or {}).get("type") != "BertPreTokenizer":
        cut = json.dumps(definition.get("pre_tokenizer"))[:120]
        raise no_form(f"llama.cpp does not know how its file cuts texts: {cut}")
    flags = _normalizer(definition.get("normalizer"))
    added = definition.get("added_tokens") or []
    tokens = {id: _marked(piece) for piece, id in model["vocab"].items()}
    types = dict.fromkeys(tokens, NORMAL)
    for one in added:
        tokens[one["id"]] = one["content"]
        types[one["id"]] = CONTROL if one.get("special") else USER_DEFINED
    special = {role: tokenizer.special_tokens[name] for name, role in ROLES.items() if name in tokenizer.special_tokens}
    special |= {"unknown": model["vocab"][model["unk_token"]], "bos": frame[0], "seperator": frame[1]}
    return Vocabulary("bert", "default", *padded(tokens, types, vocab_size), special=special, flags=flags)


def _marked(piece: str) -> str:
    return piece.removeprefix(CONTINUES) if piece.startswith(CONTINUES) else SPACE + piece


def _normalizer(normalizer: Any) -> dict[str, bool]:
    match normalizer:
        case {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": bool(lower)}:
            accents = normalizer.get("strip_accents")
            return {"normalizer.lowercase": lower, "normalizer.strip_accents": lower if accents is None else accents}
        case _:
            raise no_form("llama.cpp does not know how its file changes texts before they are cut")
