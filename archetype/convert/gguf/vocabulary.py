"""Conversion of vocabularies to GGUF: byte-level BPE, SentencePiece, Unigram, WordPiece and RWKV's."""

import json
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from archetype.convert.gguf.pretokenizers import GPT2, MASK, MASK_TAKES_SPACES, name_of
from archetype.errors import DataError
from archetype.tokenizers.bytes import ByteTokenizer
from archetype.tokenizers.composed import CONTINUES
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer, byte_of_character
from archetype.tokenizers.rwkv import END, RWKVTokenizer
from archetype.tokenizers.sentencepiece import (
    BPE,
    BYTE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Piece,
    SentencePieceTokenizer,
)
from archetype.tokenizers.tokenizer import Tokenizer

PREFIX = "tokenizer.ggml"
NEVER = -10_000.0  # score of a piece that must not be chosen


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary of a GGUF file.

    Attributes:
        model: gpt2 (byte-level BPE), gemma4 (BPE of whole texts), llama (SentencePiece BPE), t5 (SentencePiece
            Unigram), bert (WordPiece) or rwkv (the longest token that matches).
        pre: name of the pre-tokenizer in llama.cpp.
        tokens: tokens by id, in the file's spelling.
        types: token types by id, such as NORMAL or CONTROL.
        scores: SentencePiece scores by id.
        merges: BPE merges, each with two tokens separated by a space.
        special: ids of other special tokens by role, such as unknown.
        flags: boolean keys, without the prefix.
        charsmap: SentencePiece's normalization rules.
    """

    model: str
    pre: str | None
    tokens: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    special: dict[str, int] = field(default_factory=dict)
    flags: dict[str, bool] = field(default_factory=dict)
    charsmap: bytes = b""


def no_form(cause: str) -> DataError:
    """Return the error for a tokenizer that GGUF cannot store."""
    return DataError("tokenizer", cause, "use byte_bpe, bytes, WordPiece or SentencePiece, or --format hf")


def padded(tokens: Mapping[int, str], types: Mapping[int, int], vocab_size: int) -> tuple[list[str], list[int]]:
    """Return the tokens and types of all ids. Ids without a token become unused padding tokens."""
    ids = range(vocab_size)
    return [tokens.get(id, f"[PAD{id}]") for id in ids], [types.get(id, UNUSED) for id in ids]


def is_padding(id: int, token: str, type: int) -> bool:
    """Return whether an id only pads the vocabulary to its size."""
    return type == UNUSED and token == f"[PAD{id}]"


def _add_tokens(definition: Any, tokens: dict[int, str], types: dict[int, int]) -> None:
    for added in definition.get("added_tokens") or []:
        tokens[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added.get("special") else USER_DEFINED


def _unknown_cut(definition: Any) -> DataError:
    cut = json.dumps(definition.get("pre_tokenizer"))[:120]
    return no_form(f"llama.cpp has no such pre-tokenizer: {cut}")


def vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """Return the vocabulary of a tokenizer, padded to `vocab_size` ids.

    Raises:
        DataError: llama.cpp would tokenize a text differently.
    """
    match tokenizer:
        case ByteTokenizer():
            return single_bytes(vocab_size)
        case SentencePieceTokenizer():
            return sentencepiece(tokenizer, vocab_size)
        case RWKVTokenizer():
            return longest_match(tokenizer, vocab_size)
        case HuggingFaceTokenizer(kind="byte_bpe"):
            return byte_level(tokenizer, vocab_size)
        case HuggingFaceTokenizer(kind="bpe"):
            return spaced_bpe(tokenizer, vocab_size)
        case HuggingFaceTokenizer(kind="unigram"):
            return unigram(tokenizer, vocab_size)
        case HuggingFaceTokenizer(kind="wordpiece"):
            return wordpiece(tokenizer, vocab_size)
        case _:
            raise no_form(f"GGUF does not support a tokenizer of kind {tokenizer.kind}")


def single_bytes(vocab_size: int) -> Vocabulary:
    """Return a vocabulary of the 256 bytes."""
    tokens = {byte: character for character, byte in byte_of_character().items()}
    # llama.cpp requires a merge; the result of this one is no token, so that text falls back to bytes
    return Vocabulary("gpt2", GPT2, *padded(tokens, dict.fromkeys(tokens, NORMAL), vocab_size), merges=["Ā Ā"])


def longest_match(tokenizer: RWKVTokenizer, vocab_size: int) -> Vocabulary:
    """Return the vocabulary of RWKV, whose tokens are written as Python writes bytes."""
    tokens = {END: tokenizer.name} | {id: repr(token)[2:-1] for id, token in tokenizer.tokens.items()}
    types = dict.fromkeys(tokens, NORMAL) | {END: CONTROL}
    return Vocabulary("rwkv", None, *padded(tokens, types, vocab_size))


def bytes_of(token: str) -> bytes:
    r"""Return the bytes of a token in RWKV's vocabulary: \t, \n, \r, \xHH, and any other escaped character itself."""
    return _ESCAPED.sub(lambda escape: _byte(escape[1]), token.encode())


_ESCAPED = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def _byte(escaped: bytes) -> bytes:
    return bytes((int(escaped[1:], 16),)) if len(escaped) == 3 else _NAMED.get(escaped, escaped)


def byte_level(tokenizer: HuggingFaceTokenizer, vocab_size: int) -> Vocabulary:
    """Return the vocabulary of a byte-level BPE tokenizer.json."""
    definition = tokenizer.definition
    if definition.get("normalizer") is not None:
        raise no_form("GGUF has no equivalent of its normalizer")
    tokens = {id: piece for piece, id in definition["model"]["vocab"].items()}
    types = dict.fromkeys(tokens, NORMAL)
    _add_tokens(definition, tokens, types)
    merges = [f"{first} {second}" for first, second in tokenizer.merges] or ["Ā Ā"]
    pre, added = name_of(definition.get("pre_tokenizer")), definition.get("added_tokens") or []
    if pre is None:
        raise _unknown_cut(definition)
    if pre == GPT2 and any(token["content"] == MASK and token.get("lstrip") for token in added):
        pre = MASK_TAKES_SPACES[0]  # from this name newer versions of llama.cpp also know RoBERTa's separators
    return Vocabulary("gpt2", pre, *padded(tokens, types, vocab_size), merges=merges)


def spaced_bpe(tokenizer: HuggingFaceTokenizer, vocab_size: int) -> Vocabulary:
    """Return the vocabulary of a BPE tokenizer.json that merges whole texts, in which spaces are ▁ (Gemma)."""
    definition = tokenizer.definition
    model = definition["model"]
    match definition.get("normalizer"), definition.get("pre_tokenizer"):
        case (
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            # a split cuts nothing, since no space is left
            None | {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        ):
            pass
        case _:
            raise no_form("llama.cpp only has BPE of characters whose spaces are ▁ and which are not cut into words")
    bytes = {f"<0x{byte:02X}>" for byte in range(256)}
    if not model.get("byte_fallback") or not bytes <= model["vocab"].keys() or model.get("ignore_merges"):
        raise no_form("llama.cpp's BPE of characters needs a piece for every byte")
    if tokenizer.bos is None or not (tokenizer.adds_bos or tokenizer.add_special_tokens([])[:1] == [tokenizer.bos]):
        raise no_form("llama.cpp always adds a bos token before texts of this kind")
    tokens = {id: piece for piece, id in model["vocab"].items()}
    types = {id: BYTE if piece in bytes else NORMAL for id, piece in tokens.items()}
    _add_tokens(definition, tokens, types)
    unknown = model["vocab"].get(model.get("unk_token"))
    return Vocabulary(
        "gemma4",
        None,
        *padded(tokens, types, vocab_size),
        merges=[f"{first} {second}" for first, second in tokenizer.merges],
        special={"bos": tokenizer.bos} | ({} if unknown is None else {"unknown": unknown}),
        flags={"add_space_prefix": False},
    )


def sentencepiece(tokenizer: SentencePieceTokenizer, vocab_size: int) -> Vocabulary:
    """Return the vocabulary of a SentencePiece BPE or Unigram model."""
    settings = tokenizer.settings
    if settings.kind not in (UNIGRAM, BPE) or settings.space_behind:
        raise no_form("GGUF only supports SentencePiece's BPE and Unigram, with spaces before words")
    pieces = tokenizer.pieces
    apart = {id for id, piece in enumerate(pieces) if _is_found_apart(piece, settings.kind)}
    tokens = {id: piece.text.replace(SPACE, " ") if id in apart else piece.text for id, piece in enumerate(pieces)}
    symbols = {id for id, piece in enumerate(pieces) if piece.type == USER_DEFINED} - apart
    types = {id: NORMAL if id in symbols else piece.type for id, piece in enumerate(pieces)}
    for token in tokenizer.added.values():
        tokens[token.id], types[token.id] = token.content, CONTROL if token.special else USER_DEFINED
    best = max(piece.score for piece in pieces)
    first = symbols if settings.kind == BPE else set()
    scores = [best if id in first else piece.score for id, piece in enumerate(pieces)]
    scores += [NEVER if settings.kind == UNIGRAM else 0.0] * (vocab_size - len(scores))
    flags, special = {"add_space_prefix": settings.adds_prefix}, {"unknown": tokenizer.processor.unk_id()}
    if settings.kind == UNIGRAM:
        flags |= {"remove_extra_whitespaces": settings.joins_spaces}
    elif settings.joins_spaces or settings.charsmap:
        raise no_form("the tokenizer file normalizes text, which llama.cpp only does for Unigram")
    return Vocabulary(
        "t5" if settings.kind == UNIGRAM else "llama",
        "default",
        *padded(tokens, types, vocab_size),
        scores=scores,
        special=special,
        flags=flags,
        charsmap=settings.charsmap,
    )


def _is_found_apart(piece: Piece, kind: int) -> bool:
    # Whether llama.cpp must find a user-defined symbol in the raw text, before spaces are replaced. After such a symbol
    # it starts a new text. Unigram finds these symbols among its other pieces. BPE merges runs of spaces first, because
    # they have the best score here (Gemma's file scores them differently).
    return piece.type == USER_DEFINED and kind == BPE and piece.text.strip(SPACE) != ""


def unigram(tokenizer: HuggingFaceTokenizer, vocab_size: int) -> Vocabulary:
    """Return the vocabulary of a Unigram tokenizer.json that joins spaces and adds a space before the first word."""
    definition = tokenizer.definition
    model = definition["model"]
    if model.get("unk_id") is None or model.get("byte_fallback"):
        raise no_form("llama.cpp only supports Unigram with an unknown token and without byte fallback")
    charsmap, joins = _unigram_normalizer(definition.get("normalizer"))
    if not _cuts_words(definition.get("pre_tokenizer"), joins):
        raise _unknown_cut(definition)
    tokens = {id: piece for id, (piece, _) in enumerate(model["vocab"])}
    types = dict.fromkeys(tokens, NORMAL)
    scores = {id: float(score) for id, (_, score) in enumerate(model["vocab"])}
    _add_tokens(definition, tokens, types)
    types[model["unk_id"]] = UNKNOWN
    return Vocabulary(
        "t5",
        "default",
        *padded(tokens, types, vocab_size),
        scores=[scores.get(id, NEVER) for id in range(vocab_size)],
        special={"unknown": model["unk_id"]},
        flags={"add_space_prefix": True, "remove_extra_whitespaces": True},
        charsmap=charsmap,
    )


def _unigram_normalizer(normalizer: Any) -> tuple[bytes, bool]:
    # SentencePiece's normalization rules, and whether the normalizer also joins spaces
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
            raise no_form("llama.cpp has no equivalent of its normalizer")


def _cuts_words(pre_tokenizer: Any, joined: bool) -> bool:
    # whether every word, including the first, begins with one space
    match pre_tokenizer:
        case {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, step]}:
            return _begins_words(step)
        case step:
            return joined and _begins_words(step)


def _begins_words(step: Any) -> bool:
    match step:
        case {"type": "Metaspace", "replacement": "▁", "prepend_scheme": str(scheme)}:
            return scheme == "always"
        case {"type": "Metaspace", "replacement": "▁"}:
            return step.get("add_prefix_space", True) is True
        case _:
            return False


SPACE = "▁"
ROLES = {"[PAD]": "padding", "[MASK]": "mask"}


def wordpiece(tokenizer: HuggingFaceTokenizer, vocab_size: int) -> Vocabulary:
    """Return the vocabulary of a WordPiece tokenizer.json. GGUF marks the pieces that begin a word.

    llama.cpp also splits words of more than 100 characters, which become the unknown token in a tokenizer.json.
    """
    definition = tokenizer.definition
    model = definition["model"]
    ends = tokenizer.add_special_tokens([])
    if model.get("continuing_subword_prefix") != CONTINUES or len(ends) != 2:
        raise no_form(f"llama.cpp only supports WordPiece with {CONTINUES} and one special token on each side")
    if (definition.get("pre_tokenizer") or {}).get("type") != "BertPreTokenizer":
        raise _unknown_cut(definition)
    flags = _wordpiece_normalizer(definition.get("normalizer"))
    tokens = {id: _marked(piece) for piece, id in model["vocab"].items()}
    types = dict.fromkeys(tokens, NORMAL)
    _add_tokens(definition, tokens, types)
    special = {role: tokenizer.special_tokens[name] for name, role in ROLES.items() if name in tokenizer.special_tokens}
    # "seperator" is how GGUF's key is spelled
    special |= {"unknown": model["vocab"][model["unk_token"]], "bos": ends[0], "seperator": ends[1]}
    return Vocabulary("bert", "default", *padded(tokens, types, vocab_size), special=special, flags=flags)


def _marked(piece: str) -> str:
    return piece.removeprefix(CONTINUES) if piece.startswith(CONTINUES) else SPACE + piece


def _wordpiece_normalizer(normalizer: Any) -> dict[str, bool]:
    match normalizer:
        case {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "lowercase": bool(lower)}:
            accents = normalizer.get("strip_accents")
            return {"normalizer.lowercase": lower, "normalizer.strip_accents": lower if accents is None else accents}
        case _:
            raise no_form("llama.cpp has no equivalent of its normalizer")
