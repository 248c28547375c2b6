"""Costs of norms, positions, embeddings and heads without a registered cost."""

import torch
from torch import Tensor

from archetype.built_costs.counting import META, by_child, flops_of, on_meta, saved_by, total
from archetype.cost.formula import ZERO, Counts, Formula
from archetype.cost.registry import NormCost
from archetype.cost.work import TrainingWork, Work
from archetype.nn.context import ForwardContext
from archetype.nn.registry import build_embedding, build_head, build_norm, build_position, module_class
from archetype.parts.embedding.cost import TokenEmbeddingCost
from archetype.parts.head.cost import HeadCost
from archetype.parts.position.cost import PositionCost
from archetype.roles.embedding import TokenEmbedding
from archetype.roles.head import Head
from archetype.roles.norm import Norm
from archetype.roles.position import AttentionSizes, EmbeddingPosition


class MeasuredNormCost(NormCost):
    """Cost of a norm, from its parameters and the tensors that one pass saves."""

    def __init__(self, part: Norm, d: Formula) -> None:
        super().__init__(part, d)
        self.module = on_meta(lambda: build_norm(part, d.value))

    def parameters(self) -> Formula:
        return total(self.module)

    def saved_activations(self, vectors: int) -> int:
        x = torch.empty(1, vectors, self.d.value, device=META)
        work = TrainingWork(1, vectors, False, "float32")
        return saved_by(lambda: self.module(x, ForwardContext.of(x)), self.module, work)


class MeasuredPositionCost(PositionCost):
    """Cost of positions, from their parameters."""

    def parameters(self, context_length: int) -> Formula:
        if not isinstance(self.part, EmbeddingPosition):
            return ZERO
        return total(on_meta(lambda: build_position(self.part, context_length, self.d.value)))

    def mixer_parameters(self, sizes: AttentionSizes) -> Formula:
        return total(on_meta(lambda: module_class(self.part)(self.part, sizes)))


class MeasuredEmbeddingCost(TokenEmbeddingCost):
    """Cost of a token embedding, from its parameters and the products of one pass."""

    def __init__(self, part: TokenEmbedding, d: Formula, vocabulary: Formula, context_length: int) -> None:
        super().__init__(part, d, vocabulary, context_length)
        self.module = on_meta(lambda: build_embedding(part, vocabulary.value, context_length, d.value))

    def parameters(self) -> Counts:
        return by_child(self.module)

    def flops(self, work: Work) -> Counts:
        # all on the token table, whose vectors the products read
        return {"token": flops_of(lambda: self._vectors(1, work.tokens.value), self.part)}

    def saved_activations(self, work: TrainingWork) -> int:
        saved = saved_by(lambda: self._vectors(work.rows, work.length), self.module, work)
        return super().saved_activations(work) + saved

    def _vectors(self, batch: int, length: int) -> Tensor:
        ids = torch.zeros(batch, length, dtype=torch.long, device=META)
        return self.module(ids, ForwardContext.of(ids))


class MeasuredHeadCost(HeadCost):
    """Cost of a head, from its parameters and the products of one pass."""

    def __init__(self, part: Head, d: Formula, vocab_size: int) -> None:
        super().__init__(part, d, vocab_size)
        self.module = on_meta(lambda: build_head(part, vocab_size, d.value))
        self.tied, self.num_answers = part.shares_table, getattr(part, "num_classes", vocab_size)
        self.further_arguments = () if part.has_classes else (torch.empty(vocab_size, d.value, device=META),)

    def parameters(self) -> Counts:
        """Return the parameters of the whole module as one entry."""
        return {self._name: total(self.module)}

    def flops(self, work: Work) -> Counts:
        tokens = work.rows if self.part.classifies else work.answered_tokens
        return {self._name: flops_of(lambda: self._logits(1, tokens.value), self.part)}

    def saved_activations(self, work: TrainingWork) -> int:
        length = 1 if self.part.classifies else work.length
        return saved_by(lambda: self._logits(work.rows, length), self.module, work)

    def num_logits(self, rows: int, tokens: int) -> int:
        return self.num_answers * (rows if self.part.classifies else tokens)

    @property
    def _name(self) -> str:
        return "classifier" if self.part.has_classes else "lm_head"

    def _logits(self, batch: int, length: int) -> Tensor:
        x = torch.empty(batch, length, self.d.value, device=META)
        return self.module(x[:, 0] if self.part.classifies else x, *self.further_arguments)
