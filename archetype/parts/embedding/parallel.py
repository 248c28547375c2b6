"""Tensor parallelism of embeddings: each process holds some rows of the token table."""

from archetype.parts.embedding.module import Embedding
from archetype.roles.parallel import Plans, TablePlan
from archetype.spec.registry import provides


@provides("parallel", Embedding)
class EmbeddingPlans(Plans[Embedding]):
    def tensor(self, size: int) -> TablePlan | None:
        # tables of positions and types are replicated
        return None if self.module.token is None else TablePlan("token")
