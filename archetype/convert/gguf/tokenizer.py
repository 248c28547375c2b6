"""A tokenizer's vocabulary as GGUF keeps it, for llama.cpp."""

from archetype.convert.gguf.vocabulary import Vocabulary, no_form
from archetype.convert.gguf.vocabulary_byte_level import byte_level, single_bytes
from archetype.convert.gguf.vocabulary_sentencepiece import sentencepiece
from archetype.convert.gguf.vocabulary_unigram import unigram
from archetype.convert.gguf.vocabulary_wordpiece import wordpiece
from archetype.tokenizers.bytes import ByteTokenizer
from archetype.tokenizers.hugging_face import HuggingFaceTokenizer
from archetype.tokenizers.sentencepiece import SentencePieceTokenizer
from archetype.tokenizers.tokenizer import Tokenizer

__all__ = ["Vocabulary", "vocabulary"]


def vocabulary(tokenizer: Tokenizer, vocab_size: int) -> Vocabulary:
    """The vocabulary of a model with `vocab_size` ids; those beyond the tokenizer's stand for nothing.

    Raises:
        DataError: llama.cpp would cut texts otherwise than this tokenizer.
    """
    match tokenizer:
        case ByteTokenizer():
            return single_bytes(vocab_size)
        case SentencePieceTokenizer():
            return sentencepiece(tokenizer, vocab_size)
        case HuggingFaceTokenizer(kind="byte_bpe"):
            return byte_level(tokenizer, vocab_size)
        case HuggingFaceTokenizer(kind="unigram"):
            return unigram(tokenizer, vocab_size)
        case HuggingFaceTokenizer(kind="wordpiece"):
            return wordpiece(tokenizer, vocab_size)
        case _:
            raise no_form(f"a tokenizer of kind {tokenizer.kind} has no form in GGUF")
