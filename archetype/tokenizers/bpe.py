"""Training of BPE on characters or bytes with the `tokenizers` library."""

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from archetype.errors import DataError
from archetype.tokenizers.files import library_errors
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer, without
from archetype.tokenizers.words import UNKNOWN

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

END_OF_TEXT = "<|endoftext|>"
LONGEST_WORD = 1000  # characters; training time grows with the square of a word's length
# GPT-2's pre-tokenization: contractions, letters, digits and punctuation, each with a preceding space
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


class ByteBPE(HuggingFaceTokenizer):
    """BPE on UTF-8 bytes, as in GPT-2 (Radford et al. 2019)."""

    kind = "byte_bpe"
    can_lowercase = True

    @classmethod
    def train(cls, texts: list[str], vocab_size: int | None, lowercase: bool) -> HuggingFaceTokenizer:
        from tokenizers import Tokenizer as Backend
        from tokenizers.decoders import ByteLevel as ByteLevelDecoder
        from tokenizers.models import BPE
        from tokenizers.pre_tokenizers import ByteLevel

        backend = Backend(BPE())
        backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
        backend.decoder = ByteLevelDecoder()
        _train(cls.kind, backend, texts, vocab_size, lowercase, END_OF_TEXT, sorted(ByteLevel.alphabet()))
        return HuggingFaceTokenizer(backend.to_str(pretty=True).encode())


class CharacterBPE(HuggingFaceTokenizer):
    """BPE on characters including spaces (Sennrich et al. 2016). Unseen characters become <unk>."""

    kind = "bpe"
    can_lowercase = True

    @classmethod
    def train(cls, texts: list[str], vocab_size: int | None, lowercase: bool) -> HuggingFaceTokenizer:
        from tokenizers import Regex
        from tokenizers import Tokenizer as Backend
        from tokenizers.decoders import Fuse
        from tokenizers.models import BPE
        from tokenizers.pre_tokenizers import Split

        backend = Backend(BPE(unk_token=UNKNOWN))
        backend.pre_tokenizer = Split(Regex(WORDS), "isolated")
        backend.decoder = Fuse()
        _train(cls.kind, backend, texts, vocab_size, lowercase, UNKNOWN, [])
        definition = json.loads(backend.to_str())
        definition["added_tokens"] = []  # decoding shows <unk> instead of skipping it
        return HuggingFaceTokenizer(json.dumps(definition, indent=2, ensure_ascii=False).encode())


def split_long_words(text: str) -> Iterator[str]:
    # training time grows with the square of a word's length, and a text may lack spaces
    start = 0
    for match in re.finditer(rf"\S{{{LONGEST_WORD}}}|\s{{{LONGEST_WORD}}}", text):
        yield text[start : match.end()]
        start = match.end()
    yield text[start:]


def _train(
    kind: str,
    backend: "Backend",
    texts: list[str],
    vocab_size: int | None,
    lowercase: bool,
    first_token: str,
    alphabet: list[str],
) -> None:
    from tokenizers.normalizers import Lowercase
    from tokenizers.trainers import BpeTrainer

    if vocab_size is None:
        raise DataError("vocab_size", f"is required to train {kind}", "choose a size, such as 4096")
    if lowercase:
        backend.normalizer = Lowercase()
    trainer = BpeTrainer(
        vocab_size=vocab_size, special_tokens=[first_token], initial_alphabet=alphabet, show_progress=False
    )  # `first_token` gets id 0
    parts = (part for text in texts for whole in without([END_OF_TEXT], text) for part in split_long_words(whole))
    with library_errors("text", "no tokenizer can be trained on it", "is it text?"):
        backend.train_from_iterator(parts, trainer)


KINDS = (ByteBPE, CharacterBPE)
