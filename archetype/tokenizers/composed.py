"""Parts of a tokenizer.json, for vocabularies of other formats that are converted to one."""

from collections.abc import Iterable, Mapping
from typing import Any

from archetype.tokenizers.added import AddedToken

CONTINUES = "##"  # prefix of WordPiece's pieces that continue a word


def composed(model: dict[str, Any], added: Iterable[AddedToken] = (), **steps: Any) -> dict[str, Any]:
    """Return a tokenizer.json. Steps that are not given are null, which does nothing; a file has all of these keys."""
    names = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    tokens = {"added_tokens": [token._asdict() for token in added]}
    return {"version": "1.0"} | tokens | dict.fromkeys(names) | steps | {"model": model}


def bpe(vocab: Mapping[str, int], merges: Iterable[list[str]], **settings: Any) -> dict[str, Any]:
    """Return a BPE model. By default, it has no unknown token and merges every word."""
    affixes = {"continuing_subword_prefix": None, "end_of_word_suffix": None}
    others = {"dropout": None, "unk_token": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {"type": "BPE", "vocab": vocab, "merges": [*merges], **affixes, **others, **settings}


def wordpiece(
    vocab: Mapping[str, int],
    unknown: str,
    cls: tuple[str, int],
    sep: tuple[str, int],
    added: Iterable[AddedToken],
    normalizer: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the tokenizer.json of a BERT vocabulary.

    Args:
        cls: token before a text, with its id.
        sep: token after a text, with its id.
        normalizer: settings of the normalizer.
    """
    model = {
        "type": "WordPiece",
        "unk_token": unknown,
        "continuing_subword_prefix": CONTINUES,
        "max_input_chars_per_word": 100,
        "vocab": vocab,
    }
    return composed(
        model,
        added,
        normalizer={"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, **normalizer},
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor={"type": "BertProcessing", "sep": sep, "cls": cls},
        decoder={"type": "WordPiece", "prefix": CONTINUES, "cleanup": True},
    )


def byte_level(use_regex: bool) -> dict[str, Any]:
    """Return the step that writes bytes as characters; `use_regex` also cuts words as GPT-2 does."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": use_regex}


def replaced(text: str, content: str) -> dict[str, Any]:
    """Return the step that replaces a text."""
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def frame(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, Any]:
    """Return the post-processor that adds special tokens (ids by name) before and after one text or a pair of texts."""
    first, last = ([{"SpecialToken": {"id": name, "type_id": 0}} for name in names] for names in (before, after))
    text_a, text_b = ({"Sequence": {"id": name, "type_id": type}} for type, name in enumerate("AB"))
    tokens = {name: {"id": name, "ids": [id], "tokens": [name]} for name, id in {**before, **after}.items()}
    sequences = {"single": [*first, text_a, *last], "pair": [*first, text_a, text_b, *last]}
    return {"type": "TemplateProcessing", **sequences, "special_tokens": tokens}
