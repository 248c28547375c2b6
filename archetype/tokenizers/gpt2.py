"""GPT-2's tokenizer format: vocab.json and merges.txt."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archetype.errors import DataError
from archetype.io.files import DAMAGED, read_bytes, read_json
from archetype.tokenizers.files import library_errors
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer, byte_of_character
from archetype.tokenizers.special_tokens import KNOWN_EOS, content, read_config

VOCAB, MERGES = "vocab.json", "merges.txt"
# Classes that pre-tokenize like GPT-2; others use the same two files differently.
CLASSES = ("GPT2Tokenizer", "RobertaTokenizer", "BartTokenizer", "LongformerTokenizer")


class GPT2Tokenizer(HuggingFaceTokenizer):
    """Byte-level BPE in two files, which are converted to a tokenizer.json when opened."""

    kind = "gpt2"
    files = (VOCAB,)

    @classmethod
    def open(cls, file: Path) -> HuggingFaceTokenizer:
        config = read_config(file.parent)
        return HuggingFaceTokenizer(tokenizer_json(read_json(file), read_bytes(file.parent / MERGES), config), config)


def tokenizer_json(vocab: Mapping[str, Any], merges: bytes, config: Mapping[str, Any]) -> bytes:
    """Convert vocab.json, merges.txt and the special tokens of tokenizer_config.json to an equivalent tokenizer.json.

    Raises:
        DataError: the files are damaged, or not in GPT-2's format.
    """
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    _check_vocabulary(vocab, config)
    with library_errors(MERGES, f"does not fit {VOCAB}", DAMAGED):
        backend = Tokenizer(BPE(dict(vocab), read_merges(merges)))
    prefix = config.get("add_prefix_space", False) is True
    backend.pre_tokenizer = ByteLevel(add_prefix_space=prefix)
    backend.decoder = ByteLevelDecoder()
    named = {content(value) for key, value in config.items() if key.endswith("_token")}
    special = [name for name in vocab if name in named or name in KNOWN_EOS]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return str(backend.to_str()).encode()


def read_merges(data: bytes) -> list[tuple[str, str]]:
    """Return the merged pairs in merge order.

    Raises:
        DataError: a line does not contain a pair.
    """
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        raise DataError(MERGES, f"is not UTF-8 at byte {error.start}", DAMAGED) from None
    pairs: list[tuple[str, str]] = []
    for index, line in enumerate(lines, start=1):
        line = line.rstrip("\r")
        # "#" alone may begin a merge
        if line and not line.startswith("#version"):
            first, space, second = line.partition(" ")
            if not (first and space and second) or " " in second:
                raise DataError(f"{MERGES}: line {index}", "is not a pair of tokens", DAMAGED)
            pairs.append((first, second))
    return pairs


def _check_vocabulary(vocab: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    named = config.get("tokenizer_class")
    remedy = "save the tokenizer as tokenizer.json, for example with transformers"
    if isinstance(named, str) and named.removesuffix("Fast") not in CLASSES:
        raise DataError(VOCAB, f"is for {named}, which pre-tokenizes differently from GPT-2", remedy)
    if not all(type(id) is int and 0 <= id < 2**31 for id in vocab.values()):
        raise DataError(VOCAB, "does not map every token to an id", DAMAGED)
    if not byte_of_character().keys() <= vocab.keys() or any(token.endswith("</w>") for token in vocab):
        raise DataError(VOCAB, "is not a byte-level BPE vocabulary", remedy)


KINDS = (GPT2Tokenizer,)
