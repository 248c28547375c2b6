"""What a run can learn. Each file has one objective: its settings in the recipe, its examples and its loss."""

from archetype.train.objectives.base import ObjectiveConfig
from archetype.train.objectives.image_class import ImageClass
from archetype.train.objectives.masked_token import MaskedToken
from archetype.train.objectives.next_token import NextToken
from archetype.train.objectives.sequence_to_sequence import SequenceToSequence
from archetype.train.objectives.span_corruption import SpanCorruption

__all__ = ["ImageClass", "MaskedToken", "NextToken", "ObjectiveConfig", "SequenceToSequence", "SpanCorruption"]
