"""Training objectives. Each file defines an objective's recipe settings, examples and loss."""

from archetype.training.objectives.base import ObjectiveConfig as ObjectiveConfig
from archetype.training.objectives.chat import Chat as Chat
from archetype.training.objectives.contrastive import Contrastive as Contrastive
from archetype.training.objectives.dpo import DPO as DPO
from archetype.training.objectives.image_class import ImageClass as ImageClass
from archetype.training.objectives.masked_token import MaskedToken as MaskedToken
from archetype.training.objectives.next_token import NextToken as NextToken
from archetype.training.objectives.sequence_to_sequence import SequenceToSequence as SequenceToSequence
from archetype.training.objectives.span_corruption import SpanCorruption as SpanCorruption
from archetype.training.objectives.synthetic import SyntheticTask as SyntheticTask
from archetype.training.objectives.text_class import Regression as Regression
from archetype.training.objectives.text_class import TextClass as TextClass
from archetype.training.objectives.text_similarity import TextSimilarity as TextSimilarity
from archetype.training.objectives.token_class import TokenClass as TokenClass
from archetype.training.objectives.token_diffusion import MaskedDiffusion as MaskedDiffusion
