"""Conversion of text to token ids and back, with the same results as the reference library of each kind."""

from archetype.tokenizers.registry import open_tokenizer, register_tokenizer, train_tokenizer, trainable_kinds
from archetype.tokenizers.stream import TextStream
from archetype.tokenizers.tokenizer import Tokenizer

__all__ = ["TextStream", "Tokenizer", "open_tokenizer", "register_tokenizer", "train_tokenizer", "trainable_kinds"]
