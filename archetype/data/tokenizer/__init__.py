"""Tokenizers: text to ids and back, each kind equal to its own library, and never half a character."""

from archetype.data.tokenizer.files import open_tokenizer
from archetype.data.tokenizer.stream import TextStream
from archetype.data.tokenizer.tokenizer import Tokenizer
from archetype.data.tokenizer.train import train_tokenizer

__all__ = ["TextStream", "Tokenizer", "open_tokenizer", "train_tokenizer"]
