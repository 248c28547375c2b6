"""A tokenizer made from texts."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, get_args

from archetype.errors import DataError
from archetype.tokenizers.bytes import ByteTokenizer
from archetype.tokenizers.characters import CharacterTokenizer
from archetype.tokenizers.tokenizer import Tokenizer, check_utf8
from archetype.tokenizers.words import UNKNOWN, WordTokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

Kind = Literal["bytes", "characters", "words", "bpe", "byte_bpe"]
END_OF_TEXT = "<|endoftext|>"
# GPT-2's words: contractions, letters, digits, marks, each with the space before it; other spaces apart
WORDS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def train_tokenizer(
    kind: Kind, texts: Iterable[str] | str, vocab_size: int | None, lowercase: bool = False
) -> Tokenizer:
    """The tokenizer of a kind that suits texts; the same texts give the same tokenizer.

    Args:
        kind: bytes needs no text; characters and words take what occurs; bpe merges characters, byte_bpe bytes.
        texts: what to train on. BPE leaves out <|endoftext|>, which byte_bpe has as its one special token.
        vocab_size: the number of ids to reach at most: needed for BPE, a limit for words, and for the others at least
            as many as they need.
        lowercase: whether every text is turned to lower case first, then and later; byte_bpe and bpe only.

    Raises:
        DataError: there is no text, or the kind cannot have that many ids.
    """
    if kind not in get_args(Kind):
        raise DataError("kind", f"there is no kind {kind!r} of tokenizer", f"use one of {', '.join(get_args(Kind))}")
    if vocab_size is not None and vocab_size < 1:
        raise DataError("vocab_size", f"{vocab_size} is too small", "use at least 1")
    if lowercase and kind not in ("bpe", "byte_bpe"):
        raise DataError("lowercase", f"a tokenizer of kind {kind} keeps the case", "use byte_bpe or bpe")
    if kind == "bytes":
        return _fitting(ByteTokenizer(), vocab_size)
    texts = [check_utf8(text) for text in ([texts] if isinstance(texts, str) else texts) if text]
    if not texts:
        raise DataError("text", "is empty", "give some text to train on")
    if kind == "characters":
        return _fitting(CharacterTokenizer.of_text("".join(texts)), vocab_size)
    if kind == "words":
        return WordTokenizer.of_texts(texts, vocab_size)
    if vocab_size is None:
        raise DataError("vocab_size", f"is needed to train {kind}", "choose one, such as 4096")
    return (_byte_bpe if kind == "byte_bpe" else _bpe)(texts, vocab_size, lowercase)


def _fitting(tokenizer: Tokenizer, vocab_size: int | None) -> Tokenizer:
    if vocab_size is not None and vocab_size < tokenizer.vocab_size:
        raise _too_small(tokenizer.kind, vocab_size, tokenizer.vocab_size)
    return tokenizer


def _too_small(kind: str, vocab_size: int, needed: int) -> DataError:
    return DataError("vocab_size", f"{vocab_size} is too small for {kind}", f"use at least {needed}")


def _byte_bpe(texts: list[str], vocab_size: int, lowercase: bool) -> Tokenizer:
    """BPE on UTF-8 bytes, as in GPT-2 (Radford et al. 2019)."""
    from tokenizers import Tokenizer as Backend
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    from archetype.tokenizers.hugging_face import HuggingFaceTokenizer

    if vocab_size < 257:
        raise _too_small("byte_bpe", vocab_size, 257)
    backend = Backend(BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    backend.decoder = ByteLevelDecoder()
    _lower(backend, lowercase)
    _merge(backend, texts, vocab_size, END_OF_TEXT, sorted(ByteLevel.alphabet()))
    return HuggingFaceTokenizer(backend.to_str(pretty=True).encode())


def _bpe(texts: list[str], vocab_size: int, lowercase: bool) -> Tokenizer:
    """BPE on characters (Sennrich et al. 2016), spaces included; those that did not occur become <unk>."""
    from tokenizers import Regex
    from tokenizers import Tokenizer as Backend
    from tokenizers.decoders import Fuse
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import Split

    from archetype.tokenizers.hugging_face import HuggingFaceTokenizer

    needed = 1 + len(set().union(*texts))
    if vocab_size < needed:
        raise _too_small("bpe, given the text's characters", vocab_size, needed)
    backend = Backend(BPE(unk_token=UNKNOWN))
    backend.pre_tokenizer = Split(Regex(WORDS), "isolated")
    backend.decoder = Fuse()
    _lower(backend, lowercase)
    _merge(backend, texts, vocab_size, UNKNOWN, [])
    definition = json.loads(backend.to_str())
    definition["added_tokens"] = []  # so that decoding shows <unk> instead of dropping it
    return HuggingFaceTokenizer(json.dumps(definition, indent=2, ensure_ascii=False).encode())


def _lower(backend: "Backend", lowercase: bool) -> None:
    from tokenizers.normalizers import Lowercase

    if lowercase:
        backend.normalizer = Lowercase()


def _merge(backend: "Backend", texts: list[str], vocab_size: int, first: str, alphabet: list[str]) -> None:
    """Train in place; `first` becomes id 0."""
    from tokenizers.trainers import BpeTrainer

    from archetype.tokenizers.hugging_face import without
    from archetype.tokenizers.library_errors import complaints

    trainer = BpeTrainer(vocab_size=vocab_size, special_tokens=[first], initial_alphabet=alphabet, show_progress=False)
    parts = (part for text in texts for part in without([END_OF_TEXT], text))
    with complaints("text", "no tokenizer can be trained on it", "is it text?"):
        backend.train_from_iterator(parts, trainer)
