"""Tokenizers: text to ids and back, each kind equal to its own library, and never half a character."""

from archetype.tokenizers.files import open_tokenizer
from archetype.tokenizers.stream import TextStream
from archetype.tokenizers.tokenizer import Tokenizer
from archetype.tokenizers.train import train_tokenizer

__all__ = ["TextStream", "Tokenizer", "open_tokenizer", "train_tokenizer"]
