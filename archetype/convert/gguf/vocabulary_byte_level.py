"""Byte-level BPE, and bytes alone, in GGUF."""

import json
from typing import Any

from archetype.convert.gguf.vocabulary import CONTROL, NORMAL, USER_DEFINED, Vocabulary, no_form, padded
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer, byte_of_character

# How text is cut before pairs are merged, by the published pattern, and what llama.cpp calls it.
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CUTS = {rf"{WORDS}|\p{{N}}{{1,3}}|{REST}": "llama-bpe", rf"{WORDS}|\p{{N}}|{REST}": "qwen2"}


def single_bytes(vocab_size: int) -> Vocabulary:
    """The 256 bytes."""
    tokens = {byte: character for character, byte in byte_of_character().items()}
    # llama.cpp wants a pair to merge; of this one it finds no token, and goes back to the bytes
    return Vocabulary("gpt2", "gpt-2", *padded(tokens, dict.fromkeys(tokens, NORMAL), vocab_size), merges=["Ā Ā"])


def byte_level(tokenizer: HuggingFaceTokenizer, vocab_size: int) -> Vocabulary:
    """A tokenizer.json of byte-level BPE."""
    definition = tokenizer.definition
    if definition.get("normalizer") is not None:
        raise no_form("its file changes texts before they are cut, which GGUF cannot say")
    tokens = {id: piece for piece, id in definition["model"]["vocab"].items()}
    types = dict.fromkeys(tokens, NORMAL)
    for added in definition.get("added_tokens") or []:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added.get("special") else USER_DEFINED
    merges = [f"{first} {second}" for first, second in tokenizer.merges] or ["Ā Ā"]
    return Vocabulary("gpt2", _cut(definition), *padded(tokens, types, vocab_size), merges=merges)


def _cut(definition: Any) -> str:
    """What llama.cpp calls the way in which a tokenizer.json cuts texts."""
    match definition.get("pre_tokenizer"):
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}:
            return "gpt-2"
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}},
                {"type": "ByteLevel", "use_regex": False},
            ],
        } if pattern in CUTS:
            return CUTS[pattern]  # fmt: skip
        case other:
            raise no_form(f"llama.cpp does not know how its file cuts texts: {json.dumps(other)[:120]}")
