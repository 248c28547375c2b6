"""vocab.txt, a token a line, in which BERT and its contemporaries were published."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archetype.errors import DataError
from archetype.io.files import DAMAGED, read_bytes
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.special_tokens import content, read_config

FILE = "vocab.txt"
CONTINUES = "##"  # what a piece begins with that goes on with a word
NAMES = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
# The classes whose texts are split as BERT splits them; others use such a file in their own way.
CLASSES = (
    "BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "MPNetTokenizer",
    "ConvBertTokenizer", "FunnelTokenizer", "LayoutLMTokenizer", "LxmertTokenizer", "SqueezeBertTokenizer",
    "RetriBertTokenizer",
)  # fmt: skip
OTHERS = "save the tokenizer as tokenizer.json, with transformers for example"


class WordPieceTokenizer(HuggingFaceTokenizer):
    """BERT's words and pieces of words, opened as the one file that says the same.

    Where no tokenizer_config.json says do_lower_case, texts are turned to lower case if no piece has a capital letter.
    """

    kind = "wordpiece"
    files = (FILE,)
    other_names = ("*.txt",)

    @classmethod
    def open(cls, file: Path) -> HuggingFaceTokenizer:
        config = read_config(file.parent)
        return HuggingFaceTokenizer(tokenizer_json(read_bytes(file), config), config)


def tokenizer_json(data: bytes, config: Mapping[str, Any]) -> bytes:
    """The same tokenizer as a tokenizer.json.

    Args:
        data: the contents of vocab.txt.
        config: the contents of tokenizer_config.json.

    Raises:
        DataError: the file is not WordPiece's, is damaged, or is another class's.
    """
    named = config.get("tokenizer_class")
    if isinstance(named, str) and named.removesuffix("Fast") not in CLASSES:
        raise DataError("", f"is for {named}, which reads it in another way than BERT", OTHERS)
    tokens = _tokens(data)
    vocab = {token: id for id, token in enumerate(tokens)}
    names = {key: content(config.get(key)) or name for key, name in NAMES.items()}
    unknown, first, last = (names[key] for key in ("unk_token", "cls_token", "sep_token"))
    if not any(token.startswith(CONTINUES) for token in tokens):
        raise DataError("", f"no line begins with {CONTINUES}, so that it is no vocabulary of WordPiece", OTHERS)
    for name in (unknown, first, last):
        if name not in vocab:
            raise DataError("", f"lacks the token {name}", "is it the vocabulary of a BERT?")
    lower = config.get("do_lower_case", not any(map(_has_capitals, tokens)))
    accents, chinese = config.get("strip_accents"), config.get("tokenize_chinese_chars", True)
    special = sorted((vocab[name], name) for name in names.values() if name in vocab)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": id, "content": name, **flags} for id, name in special],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": chinese,
                       "strip_accents": accents, "lowercase": lower},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": [last, vocab[last]], "cls": [first, vocab[first]]},
        "decoder": {"type": "WordPiece", "prefix": CONTINUES, "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": CONTINUES,
                  "max_input_chars_per_word": 100, "vocab": vocab},
    }).encode()  # fmt: skip


def _tokens(data: bytes) -> list[str]:
    """The lines of the file.

    Raises:
        DataError: it is not UTF-8, or a line is there twice.
    """
    try:
        tokens = data.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError("", f"is not UTF-8 at byte {error.start}", DAMAGED) from None
    tokens = [token.removesuffix("\r") for token in tokens]
    seen: set[str] = set()
    for number, token in enumerate(tokens, start=1):
        if token in seen:
            raise DataError(f"line {number}", f"{token!r:.80} is there twice", DAMAGED)
        seen.add(token)
    return tokens


def _has_capitals(token: str) -> bool:
    """Whether a piece has a letter that lower case would change; names such as [CLS] and <S> have no case."""
    return token != token.lower() and not (token[0] in "[<" and token[-1] in "]>")


KINDS = (WordPieceTokenizer,)
