"""BERT's tokenizer format: vocab.txt with one token per line."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archetype.errors import DataError
from archetype.io.files import DAMAGED, read_bytes
from archetype.tokenizers.added import AddedToken
from archetype.tokenizers.composed import CONTINUES, wordpiece
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.special_tokens import content, read_config

FILE = "vocab.txt"
NAMES = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
# Classes that pre-tokenize like BERT; others use such a file differently.
CLASSES = (
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "MobileBertTokenizer",
    "MPNetTokenizer",
    "ConvBertTokenizer",
    "FunnelTokenizer",
    "LayoutLMTokenizer",
    "LxmertTokenizer",
    "SqueezeBertTokenizer",
    "RetriBertTokenizer",
)
OTHERS = "save the tokenizer as tokenizer.json, for example with transformers"


class WordPieceTokenizer(HuggingFaceTokenizer):
    """WordPiece tokenizer as in BERT, converted to a tokenizer.json when opened.

    If tokenizer_config.json lacks do_lower_case, text is lowercased unless a piece has a capital letter.
    """

    kind = "wordpiece"
    files = (FILE,)
    other_names = ("*.txt",)

    @classmethod
    def open(cls, file: Path) -> HuggingFaceTokenizer:
        config = read_config(file.parent)
        return HuggingFaceTokenizer(tokenizer_json(read_bytes(file), config), config)


def tokenizer_json(data: bytes, config: Mapping[str, Any]) -> bytes:
    """Convert vocab.txt and the settings of tokenizer_config.json to an equivalent tokenizer.json.

    Raises:
        DataError: the file is damaged, is not WordPiece, or belongs to another class.
    """
    named = config.get("tokenizer_class")
    if isinstance(named, str) and named.removesuffix("Fast") not in CLASSES:
        raise DataError("", f"is for {named}, which pre-tokenizes differently from BERT", OTHERS)
    tokens = _tokens(data)
    vocab = {token: id for id, token in enumerate(tokens)}
    names = {key: content(config.get(key)) or name for key, name in NAMES.items()}
    unknown, first, last = (names[key] for key in ("unk_token", "cls_token", "sep_token"))
    if not any(token.startswith(CONTINUES) for token in tokens):
        raise DataError("", f"has no line that begins with {CONTINUES}, as a WordPiece vocabulary has", OTHERS)
    for name in (unknown, first, last):
        if name not in vocab:
            raise DataError("", f"lacks the token {name}", "is it a BERT vocabulary?")
    lower = config.get("do_lower_case", not any(map(_has_capitals, tokens)))
    normalizer = {"lowercase": lower, "strip_accents": config.get("strip_accents")}
    normalizer["handle_chinese_chars"] = config.get("tokenize_chinese_chars", True)
    special = sorted(AddedToken(vocab[name], name) for name in names.values() if name in vocab)
    cls, sep = ((name, vocab[name]) for name in (first, last))
    return json.dumps(wordpiece(vocab, unknown, cls, sep, special, normalizer)).encode()


def _tokens(data: bytes) -> list[str]:
    try:
        tokens = data.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError("", f"is not UTF-8 at byte {error.start}", DAMAGED) from None
    tokens = [token.removesuffix("\r") for token in tokens]
    seen: set[str] = set()
    for index, token in enumerate(tokens, start=1):
        if token in seen:
            raise DataError(f"line {index}", f"repeats {token!r:.80}", DAMAGED)
        seen.add(token)
    return tokens


def _has_capitals(token: str) -> bool:
    # names such as [CLS] and <S> do not count
    return token != token.lower() and not (token[0] in "[<" and token[-1] in "]>")


KINDS = (WordPieceTokenizer,)
