"""Tokenizer and chat template of a GGUF file, built as in llama.cpp."""

import json
from collections.abc import Mapping
from typing import Any

from archetype.convert.gguf import pretokenizers
from archetype.convert.gguf.vocabulary import SPACE, Vocabulary, bytes_of, is_padding
from archetype.convert.gguf.vocabulary_keys import read_vocabulary
from archetype.errors import ArchetypeError, DataError
from archetype.tokenizers import sentencepiece
from archetype.tokenizers.added import AddedToken
from archetype.tokenizers.bytes import ByteTokenizer
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.tokenizers.composed import CONTINUES, bpe, byte_level, composed, frame, replaced, wordpiece
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer, byte_of_character
from archetype.tokenizers.known_templates import TEMPLATES
from archetype.tokenizers.rwkv import END, RWKVTokenizer
from archetype.tokenizers.tokenizer import Tokenizer

TEMPLATE = "tokenizer.chat_template"
# Control tokens at which llama.cpp stops even if no key names them.
ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>")
STARTS = {"llama": True, "bert": True}  # tokenizers that add bos unless a key says otherwise


def read_tokenizer(metadata: Mapping[str, Any], place: str) -> Tokenizer | None:
    """Return a file's tokenizer; None if the file has no vocabulary.

    Raises:
        DataError: a key is wrong or unknown.
    """
    if (vocabulary := read_vocabulary(metadata, place)) is None:
        return None
    try:
        tokenizer = _tokenizer(vocabulary)
    except ArchetypeError as error:
        raise (
            error
            if error.place.startswith(place)
            else DataError(f"{place}: tokenizer: {error.place}", error.cause, error.remedy)
        ) from None
    special = vocabulary.special
    tokenizer.bos = special.get("bos", special.get("cls"))  # BERT's first token
    kinds = zip(vocabulary.tokens, vocabulary.types, strict=True)
    ends = (id for id, (token, kind) in enumerate(kinds) if kind == sentencepiece.CONTROL and token in ENDS)
    named = (special[role] for role in ("eos", "eot") if role in special)
    tokenizer.eos = tuple(dict.fromkeys((*named, *ends)))
    # a key in the file has precedence over what llama.cpp assumes for the model
    starts = STARTS.get(vocabulary.model, vocabulary.pre in pretokenizers.ADD_BOS)
    always = vocabulary.model in pretokenizers.ALWAYS_BOS or vocabulary.pre in pretokenizers.ALWAYS_BOS
    tokenizer.adds_bos = tokenizer.bos is not None and (always or vocabulary.flags.get("add_bos_token", starts))
    return tokenizer


def read_chat_template(metadata: Mapping[str, Any], tokenizer: Tokenizer | None) -> ChatTemplate | None:
    """Return a file's chat template and the special tokens that the template uses; None if the file has no template."""
    sources = {key.removeprefix(TEMPLATE).lstrip("."): metadata[key] for key in metadata if key.startswith(TEMPLATE)}
    # a file may name one of llama.cpp's own templates; a text without Jinja is no template
    sources = {name: TEMPLATES.get(source, source) for name, source in sources.items() if isinstance(source, str)}
    sources = {name: source for name, source in sources.items() if "{" in source}
    if not sources:
        return None
    named = {id: name for name, id in tokenizer.special_tokens.items()} if tokenizer else {}
    ids = {"bos_token": tokenizer.bos, "eos_token": next(iter(tokenizer.eos), None)} if tokenizer else {}
    tokens = {role: named[id] for role, id in ids.items() if id is not None and id in named}
    # "" is the default; the others are named, such as tool_use
    return ChatTemplate(sources.pop("", ""), tokens, sources)


def special_ids(metadata: Mapping[str, Any], architecture: str) -> dict[str, int]:
    """Return the ids of the special tokens that the file names, keyed by their names in config.json."""
    keys = {
        "bos_token_id": "tokenizer.ggml.bos_token_id",
        "pad_token_id": "tokenizer.ggml.padding_token_id",
        "decoder_start_token_id": f"{architecture}.decoder_start_token_id",
    }
    return {name: metadata[key] for name, key in keys.items() if isinstance(metadata.get(key), int)}


def _tokenizer(vocabulary: Vocabulary) -> Tokenizer:
    match vocabulary.model:
        case "gemma4":
            return _spaced_bpe(vocabulary)
        case "gpt2" if vocabulary.pre in pretokenizers.SPACED:
            return _spaced_bpe(vocabulary)
        case "gpt2":
            return _byte_level(vocabulary)
        case "llama":
            return _sentencepiece(vocabulary, sentencepiece.BPE, joins_spaces=False)
        case "t5":
            return _sentencepiece(
                vocabulary, sentencepiece.UNIGRAM, vocabulary.flags.get("remove_extra_whitespaces", False)
            )
        case "bert":
            return _wordpiece(vocabulary)
        case "rwkv":
            used = _used(vocabulary)
            words = {id: bytes_of(token) for id, (token, type) in used.items() if type != sentencepiece.CONTROL}
            return RWKVTokenizer(words, {"eos_token": used.get(END, (None,))[0]})
        case kind:
            known = "use gpt2, gemma4, llama, t5, bert or rwkv"
            raise DataError("tokenizer.ggml.model", f"unknown model {kind!r:.40}", known)


def _used(vocabulary: Vocabulary) -> dict[int, tuple[str, int]]:
    # id -> (token, type), without the padding of the vocabulary
    kinds = enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
    used = {id: (token, type) for id, (token, type) in kinds if not is_padding(id, token, type)}
    if len({token for token, _ in used.values()}) < len(used):
        raise DataError("tokenizer.ggml.tokens", "lists a token twice", "convert the model again")
    return used


def _added(vocabulary: Vocabulary) -> list[AddedToken]:
    takes_spaces = vocabulary.pre in pretokenizers.MASK_TAKES_SPACES
    return [
        AddedToken(id, token, type == sentencepiece.CONTROL, lstrip=token == pretokenizers.MASK and takes_spaces)
        for id, (token, type) in _used(vocabulary).items()
        if type in (sentencepiece.CONTROL, sentencepiece.USER_DEFINED)
    ]


def _opened(definition: dict[str, Any]) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(json.dumps(definition, ensure_ascii=False).encode("utf-8", "replace"))


def _bpe(vocabulary: Vocabulary, **settings: Any) -> dict[str, Any]:
    tokens = {token: id for id, (token, _) in _used(vocabulary).items()}
    pairs = (merge.partition(" ") for merge in vocabulary.merges or ())
    # a tokenizer.json must not name unknown tokens; such merges could never apply
    merges = ([left, right] for left, _, right in pairs if {left, right, left + right} <= tokens.keys())
    return bpe(tokens, merges, **settings)


def _byte_level(vocabulary: Vocabulary) -> Tokenizer:
    model = _bpe(vocabulary, ignore_merges=vocabulary.pre in pretokenizers.IGNORE_MERGES)
    # written by `single_bytes`
    if model["vocab"] == byte_of_character() and vocabulary.pre == pretokenizers.GPT2:
        return ByteTokenizer()
    pre = pretokenizers.canonical(vocabulary.pre)
    # GPT-2's cuts are those of ByteLevel itself; any other expressions cut first, and ByteLevel only writes bytes
    cut = level = byte_level(use_regex=pre == pretokenizers.GPT2)
    if pre != pretokenizers.GPT2:
        if pre not in pretokenizers.CUTS:
            known = ", ".join((*pretokenizers.CUTS, *pretokenizers.SAME_CUTS))
            raise DataError("tokenizer.ggml.pre", f"{vocabulary.pre!r:.40} is not supported", f"use one of {known}")
        split = {"type": "Split", "behavior": "Isolated", "invert": False}
        splits = [split | {"pattern": {"Regex": expression}} for expression in pretokenizers.CUTS[pre]]
        cut = {"type": "Sequence", "pretokenizers": [*splits, level]}
    steps = {"pre_tokenizer": cut, "post_processor": _frame(vocabulary), "decoder": byte_level(use_regex=True)}
    return _opened(composed(model, _added(vocabulary), **steps))


def _spaced_bpe(vocabulary: Vocabulary) -> Tokenizer:
    # BPE of whole texts of characters, whose spaces are ▁, with bytes for the characters that are no tokens
    unknown = vocabulary.special.get("unknown")
    unknown_token = None if unknown is None else vocabulary.tokens[unknown]
    model = _bpe(vocabulary, unk_token=unknown_token, fuse_unk=True, byte_fallback=True)
    decoder = [replaced(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    steps = {"normalizer": replaced(" ", SPACE), "decoder": {"type": "Sequence", "decoders": decoder}}
    return _opened(composed(model, _added(vocabulary), post_processor=_frame(vocabulary), **steps))


def _frame(vocabulary: Vocabulary) -> dict[str, Any] | None:
    # post-processor that adds bos and eos; without eos there is none, since `adds_bos` covers bos
    special, flags = vocabulary.special, vocabulary.flags
    if not flags.get("add_eos_token") or "eos" not in special:
        return None
    starts = flags.get("add_bos_token") and "bos" in special
    before, after = ([special["bos"]] if starts else [], [special["eos"]])
    return frame(*({vocabulary.tokens[id]: id for id in ids} for ids in (before, after)))


def _sentencepiece(vocabulary: Vocabulary, kind: int, joins_spaces: bool) -> Tokenizer:
    scores, used = vocabulary.scores, _used(vocabulary)
    if scores is None:
        raise DataError("tokenizer.ggml.scores", "is missing", "convert the model again")
    # SentencePiece numbers its pieces in order, so padding may only be at the end
    if [*used] != [*range(len(used))]:
        raise DataError("tokenizer.ggml.tokens", "has gaps between ids", "convert the model again")
    settings = sentencepiece.ModelSettings(
        kind=kind,
        charsmap=vocabulary.charsmap,
        adds_prefix=vocabulary.flags.get("add_space_prefix", kind == sentencepiece.BPE),
        joins_spaces=joins_spaces,
        space_behind=False,
    )
    known = (id for id, (_, type) in used.items() if type == sentencepiece.UNKNOWN)
    unknown = next(known, vocabulary.special.get("unknown"))
    if unknown is None or unknown not in used:
        raise DataError("tokenizer.ggml.token_type", "does not define an unknown token", "convert the model again")
    pieces = []
    for id, (token, type) in used.items():
        # matched in raw text, before spaces become ▁
        text = token.replace(" ", SPACE) if type == sentencepiece.USER_DEFINED else token
        pieces.append(sentencepiece.Piece(text, float(scores[id]), sentencepiece.UNKNOWN if id == unknown else type))
    special = {"unk": used[unknown][0]}
    for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        token, type = used.get(vocabulary.special.get(key, -1), ("", sentencepiece.NORMAL))
        if type == sentencepiece.CONTROL:
            special[role] = token
    return sentencepiece.SentencePieceTokenizer(sentencepiece.write_model(pieces, settings, special))


def _wordpiece(vocabulary: Vocabulary) -> Tokenizer:
    def piece(token: str, type: int) -> str:
        if token.startswith(SPACE):
            return token.removeprefix(SPACE)
        # GGUF marks the pieces that begin a word, a tokenizer.json those that continue one
        bracketed = token.startswith("[") and token.endswith("]")
        return token if type != sentencepiece.NORMAL or bracketed else CONTINUES + token

    used = _used(vocabulary)
    vocab = {piece(token, type): id for id, (token, type) in used.items()}
    special = vocabulary.special
    # "seperator" is spelled so in GGUF
    ids = (special.get("unknown"), special.get("bos", special.get("cls")), special.get("seperator"))
    if any(id is None or id not in used for id in ids):
        raise DataError(
            "tokenizer.ggml", "has no unk, bos (or cls) or separator token", "convert the model to GGUF again"
        )
    unknown, cls, sep = ((used[id][0], id) for id in ids if id is not None)
    lower = vocabulary.flags.get("normalizer.lowercase", True)
    normalizer = {"lowercase": lower, "strip_accents": vocabulary.flags.get("normalizer.strip_accents", lower)}
    return _opened(wordpiece(vocab, unknown[0], cls, sep, _added(vocabulary), normalizer))
