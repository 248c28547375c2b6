"""Stable API for extensions, which import only this module, `archetype` and `archetype.spec`.

    import archetype
    from archetype import spec
    from archetype.extend import ForwardContext, LayerState, MixerCost, Place

The names remain when the modules that define them move. `archetype.register` adds a part, and `archetype check` tests
it. `docs/adding_a_part.md` describes the requirements of each role.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from archetype.cost.formula import Counts, Formula, symbol
from archetype.cost.registry import Complexity, MixerCost, ResidualCost, linear
from archetype.cost.work import FLOAT32, INT64, TrainingWork, Work
from archetype.models.block.module import Block, PreNormBlock
from archetype.models.causal import CausalModel
from archetype.models.cost import ModelCost
from archetype.models.output import Output
from archetype.models.spec import CausalSpec, ModelSpec
from archetype.nn.cache import KVCache
from archetype.nn.context import ForwardContext, Vectors, last_tokens
from archetype.nn.convolution import ConvolutionState, MatrixState, after_newest
from archetype.nn.layer_state import LayerState
from archetype.nn.place import Place
from archetype.nn.registry import build_embedding, build_norm
from archetype.nn.residual import ResidualStream
from archetype.nn.selection import Choice, KeySelector
from archetype.nn.state import State
from archetype.parts.attention.core import attend
from archetype.parts.embedding.cost import TokenEmbeddingCost
from archetype.parts.head.cost import HeadCost
from archetype.parts.pattern.scores import ScoreFunction, causal_pairs
from archetype.parts.position.module import Rotary, Rotation, ScoreBias
from archetype.roles.drawing import Cell, Inside, X, inside_of
from archetype.roles.embedding import AnyTokenEmbedding
from archetype.roles.head import NextTokenHead
from archetype.roles.norm import AnyNorm
from archetype.roles.pattern import MaskContext, PatternRule
from archetype.spec.base import Flag, Index, Length, Positive, Probability, Size, WideSize
from archetype.spec.errors import invalid
from archetype.weights.linear import Linear, Table

if TYPE_CHECKING:
    from archetype.data.corpus import Corpus, corpus
    from archetype.data.held_out import split
    from archetype.runs.directory import Run
    from archetype.studies.compare import compare
    from archetype.studies.decisions import Decision
    from archetype.studies.evidence import NOT_SHOWN, SHOWN, Evidence, Verdict
    from archetype.studies.report import summary_text
    from archetype.studies.statistics import paired_interval, sign_flip_p
    from archetype.tokenizers import Tokenizer
    from archetype.tokenizers.json_file import JSONTokenizer, TokenizerFile
    from archetype.training.datasets import Data, RunningText, TextData
    from archetype.training.objectives import ObjectiveConfig
    from archetype.training.objectives.base import Batch, ObjectiveInputs
    from archetype.training.objectives.next_token import NextTokenObjective
    from archetype.training.objectives.text import corpus_of
    from archetype.training.optimizers import Optimizer
    from archetype.training.schedules import Schedule
    from archetype.training.trackers import Record, Tracker, Writer

__all__ = [
    "FLOAT32", "INT64", "NOT_SHOWN", "SHOWN", "AnyNorm", "AnyTokenEmbedding", "Batch", "Block", "CausalModel",
    "CausalSpec", "Cell", "Choice", "Complexity", "ConvolutionState", "Corpus", "Counts", "Data", "Decision",
    "Evidence", "Flag", "Formula", "ForwardContext", "HeadCost", "Index", "Inside", "JSONTokenizer", "KVCache",
    "KeySelector", "LayerState", "Length", "Linear", "MaskContext", "MatrixState", "MixerCost", "ModelCost",
    "ModelSpec", "NextTokenHead", "NextTokenObjective", "ObjectiveConfig", "ObjectiveInputs", "Optimizer", "Output",
    "PatternRule", "Place", "Positive", "PreNormBlock", "Probability", "Record", "ResidualCost", "ResidualStream",
    "Rotary", "Rotation", "Run", "RunningText", "Schedule", "ScoreBias", "ScoreFunction", "Size", "State", "Table",
    "TextData", "TokenEmbeddingCost", "Tokenizer", "TokenizerFile", "Tracker", "TrainingWork", "Vectors", "Verdict",
    "WideSize", "Work", "Writer", "X", "after_newest", "attend", "build_embedding", "build_norm", "causal_pairs",
    "compare", "corpus", "corpus_of", "inside_of", "invalid", "last_tokens", "linear", "paired_interval", "sign_flip_p",
    "split", "summary_text", "symbol",
]  # fmt: skip
_LAZY = {  # slow imports happen at the first access
    "data.corpus": "Corpus corpus",
    "data.held_out": "split",
    "runs.directory": "Run",
    "studies.compare": "compare",
    "studies.decisions": "Decision",
    "studies.evidence": "NOT_SHOWN SHOWN Evidence Verdict",
    "studies.report": "summary_text",
    "studies.statistics": "paired_interval sign_flip_p",
    "tokenizers": "Tokenizer",
    "tokenizers.json_file": "JSONTokenizer TokenizerFile",
    "training.datasets": "Data RunningText TextData",
    "training.objectives": "ObjectiveConfig",
    "training.objectives.base": "Batch ObjectiveInputs",
    "training.objectives.next_token": "NextTokenObjective",
    "training.objectives.text": "corpus_of",
    "training.optimizers": "Optimizer",
    "training.schedules": "Schedule",
    "training.trackers": "Record Tracker Writer",
}

if not TYPE_CHECKING:  # a type checker would otherwise accept any attribute

    def __getattr__(name: str) -> object:
        for module, names in _LAZY.items():
            if name in names.split():
                return getattr(import_module(f"archetype.{module}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
