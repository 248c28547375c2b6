"""Export of tokenizers as tokenizer.json, which transformers loads for any model. It is added to the original file.

The file gives the same ids. If a tokenizer cannot be expressed exactly, no file is written.
"""

import re
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archetype.io.atomic import write_json
from archetype.io.files import read_json
from archetype.tokenizers.added import AddedToken
from archetype.tokenizers.bytes import ByteTokenizer
from archetype.tokenizers.characters import CharacterTokenizer
from archetype.tokenizers.charsmap import Charsmap
from archetype.tokenizers.composed import bpe, byte_level, composed, frame, replaced
from archetype.tokenizers.definition import FILE
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer, byte_of_character
from archetype.tokenizers.rebuilt import name_rebuilt
from archetype.tokenizers.same_ids import check_saved
from archetype.tokenizers.sentencepiece import (
    BPE,
    NORMAL,
    UNIGRAM,
    USER_DEFINED,
    ModelSettings,
    Piece,
    SentencePieceTokenizer,
)
from archetype.tokenizers.special_tokens import CONFIG
from archetype.tokenizers.tokenizer import SPACE, Tokenizer
from archetype.tokenizers.words import PATTERN, UNKNOWN, WordTokenizer

PAD = "<|pad|>"  # padding token of byte tokenizers
FAST = "PreTrainedTokenizerFast"  # class of transformers that uses a tokenizer.json unchanged


def write_fast(
    tokenizer: Tokenizer, folder: Path, has_class: bool = False, allow_different_tokens: bool = False
) -> None:
    """Write the tokenizer.json for a tokenizer of another kind, and set the class that reads it.

    Args:
        tokenizer: tokenizer whose files are already saved in the folder.
        has_class: whether the family's class reads a folder that names no class, as it reads the source folder.
        allow_different_tokens: whether to write the file, with a warning, even if some texts get different ids.

    Raises:
        DataError: the file gives a text or a prompt different ids, or has a different bos or eos.

    Warns:
        ReadOtherwise: transformers reads folders of this model type with a class that changes the file's tokenizer.
    """
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    if not (folder / FILE).exists():
        if (definition := fast_definition(tokenizer)) is None:
            return
        write_json(folder / FILE, definition)
        config = _named_ends(tokenizer, definition) | config
        if any(token["content"] == PAD for token in definition["added_tokens"]):
            config["pad_token"] = PAD
        config["tokenizer_class"] = FAST  # replaces the class of the original file
    if config := (config if has_class else {"tokenizer_class": FAST} | config):
        write_json(folder / CONFIG, config)
    if isinstance(read := check_saved(tokenizer, folder, allow_different_tokens), HuggingFaceTokenizer):
        name_rebuilt(read, folder)


def fast_definition(tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Return a tokenizer.json that gives the same ids; None if the kind of tokenizer cannot be expressed."""
    definition = _plain_definition(tokenizer)
    if definition is not None and definition["post_processor"] is None:
        names = _names(definition)
        if before := {names[id]: id for id in tokenizer.add_special_tokens([]) if id in names}:
            definition["post_processor"] = frame(before, {})
    return definition


def _plain_definition(tokenizer: Tokenizer) -> dict[str, Any] | None:
    # without bos for kinds whose file names it only by id
    match tokenizer:
        case ByteTokenizer():
            level = byte_level(use_regex=False)
            # UTF-8 never contains byte 255, so its id can serve as padding, which transformers' collators need
            ids = {PAD if byte == 255 else character: byte for character, byte in byte_of_character().items()}
            return composed(bpe(ids, []), [AddedToken(255, PAD)], pre_tokenizer=level, decoder=level)
        case CharacterTokenizer():
            ids = {character: id for id, character in enumerate(tokenizer.characters)}
            return composed(bpe(ids, []), decoder={"type": "Fuse"})
        case WordTokenizer():
            ids = {word: id for id, word in enumerate(tokenizer.words)}
            split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Removed", "invert": True}
            return composed({"type": "WordLevel", "vocab": ids, "unk_token": UNKNOWN}, pre_tokenizer=split)
        case SentencePieceTokenizer():
            return _sentencepiece(tokenizer)
        case _:
            return None


def _names(definition: Mapping[str, Any]) -> dict[int, str]:
    vocab = definition["model"]["vocab"]
    pairs = (
        ((id, name) for name, id in vocab.items()) if isinstance(vocab, dict) else enumerate(name for name, _ in vocab)
    )
    return dict(pairs) | {token["id"]: token["content"] for token in definition["added_tokens"]}


def _named_ends(tokenizer: Tokenizer, definition: Mapping[str, Any]) -> dict[str, str]:
    names, ends = _names(definition), {"bos_token": tokenizer.bos, "eos_token": next(iter(tokenizer.eos), None)}
    return {key: names[id] for key, id in ends.items() if id in names}  # without tokens that the vocabulary lacks


def _sentencepiece(tokenizer: SentencePieceTokenizer) -> dict[str, Any] | None:
    # BPE or Unigram over the whole text; spaces are part of pieces
    model, pieces = tokenizer.settings, tokenizer.pieces
    if model.kind not in (BPE, UNIGRAM) or model.space_behind:
        return None
    ids = {piece.text: id for id, piece in enumerate(pieces)}
    if len(ids) != len(pieces) or (tokenizer.own_symbols and model.kind == BPE and model.adds_prefix):
        return None  # the prefix space would be inserted before a symbol at the start of a text
    unknown = int(tokenizer.processor.unk_id())
    added = [AddedToken(id, name) for name, id in tokenizer.special_tokens.items() if name not in tokenizer.added]
    named = {token.id for token in tokenizer.added.values()}
    # the library assigns consecutive ids; fill gaps as transformers does
    gaps = set(range(len(pieces), tokenizer.vocab_size)) - named
    added += [AddedToken(id, f"<|reserved_token_{id}|>") for id in gaps]
    added += [token._replace(normalized=False) for token in tokenizer.added.values()]
    words, has_bytes = None, "<0x00>" in ids
    if model.kind == BPE:
        scores = {piece.text: piece.score for piece in pieces if piece.type == NORMAL}
        unknowns = {"unk_token": pieces[unknown].text, "fuse_unk": True, "byte_fallback": has_bytes}
        merged = bpe(ids, _merges(scores, ids), **unknowns)
        symbols = ((id, piece) for id, piece in enumerate(pieces) if piece.type == USER_DEFINED)
        added += [AddedToken(id, piece.text, special=False, normalized=True) for id, piece in symbols]
    else:
        words = _unigram_words(pieces[unknown].text, ids)
        vocab = [[piece.text, _unigram_score(piece)] for piece in pieces]
        merged = {"type": "Unigram", "unk_id": unknown, "vocab": vocab, "byte_fallback": has_bytes}
    decoder = _decoder(model, pieces[unknown].text, str(tokenizer.processor.decode([unknown])))
    added.sort()  # the library assigns ids in this order
    definition = composed(merged, added, normalizer=_normalizer(tokenizer), pre_tokenizer=words, decoder=decoder)
    before, after = tokenizer.special_ids_around
    if before or after:
        names = ({tokenizer.piece(id): id for id in ids} for ids in (before, after))
        definition["post_processor"] = frame(*names)
    return definition


def _unigram_score(piece: Piece) -> float:
    # SentencePiece scores a user-defined symbol by its length
    return 0.1 * (len(piece.text.encode()) - 1) if piece.type == USER_DEFINED else piece.score


def _unigram_words(unknown: str, ids: Mapping[str, int]) -> dict[str, Any] | None:
    """Return a pre-tokenizer that splits the names of bytes and of the unknown token, which must not match in text."""
    names = ["<(?=0x[0-9A-F]{2}>)"] if "<0x00>" in ids else []
    # unknown characters on both sides of a split would give two tokens instead of one
    cuts = (cut for cut in range(1, len(unknown)) if unknown[cut - 1] in ids or unknown[cut] in ids)
    names += [f"{re.escape(unknown[:cut])}(?={re.escape(unknown[cut:])})" for cut in [*cuts][:1]]
    split = {"type": "Split", "behavior": "MergedWithPrevious", "invert": False}
    return split | {"pattern": {"Regex": "|".join(names)}} if names else None


def _merges(scores: dict[str, float], ids: dict[str, int]) -> list[list[str]]:
    merges = []
    for piece, score in scores.items():
        halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        pairs = sorted((ids[a], ids[b], a, b) for a, b in halves if a in scores and b in scores)
        # SentencePiece merges the pair whose union has the best score, however it is split
        merges += [(score, [a, b]) for _, _, a, b in pairs]
    return [pair for _, pair in sorted(merges, key=lambda merge: -merge[0])]


def _normalizer(tokenizer: SentencePieceTokenizer) -> dict[str, Any]:
    # character rules, joined spaces, a prefix space, and spaces written as ▁
    model, steps = tokenizer.settings, []
    if model.charsmap:
        if (end := Charsmap(model.charsmap).replaced("\r\n")) != "\r\n":  # the library treats \r\n as one character
            steps.append(replaced("\r\n", end))
        steps.append({"type": "Precompiled", "precompiled_charsmap": b64encode(model.charsmap).decode()})
    if model.joins_spaces:
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
        # a leading space is dropped before the prefix space is added
        steps.append({"type": "Replace", "pattern": {"Regex": r"\A "}, "content": ""})
    if model.adds_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE})
    steps.append(replaced(" ", SPACE))
    if model.joins_spaces:  # strip trailing spaces, including literal ▁
        steps.append({"type": "Replace", "pattern": {"Regex": rf"{SPACE}+\z"}, "content": ""})
    return {"type": "Sequence", "normalizers": steps}


def _decoder(model: ModelSettings, unknown: str, shown: str) -> dict[str, Any]:
    steps = [
        replaced(unknown, shown),
        replaced(SPACE, " "),
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if model.adds_prefix else []),
    ]
    return {"type": "Sequence", "decoders": steps}
