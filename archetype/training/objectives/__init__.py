"""Objectives of training. Each file has one: its settings in the recipe, its examples and its loss."""

from archetype.training.objectives.base import ObjectiveConfig
from archetype.training.objectives.chat import Chat
from archetype.training.objectives.dpo import DPO
from archetype.training.objectives.image_class import ImageClass
from archetype.training.objectives.masked_token import MaskedToken
from archetype.training.objectives.next_token import NextToken
from archetype.training.objectives.sequence_to_sequence import SequenceToSequence
from archetype.training.objectives.span_corruption import SpanCorruption
from archetype.training.objectives.synthetic import SyntheticTask
from archetype.training.objectives.text_class import Regression, TextClass

__all__ = [
    "DPO", "Chat", "ImageClass", "MaskedToken", "NextToken", "ObjectiveConfig", "Regression", "SequenceToSequence",
    "SpanCorruption", "SyntheticTask", "TextClass",
]  # fmt: skip
