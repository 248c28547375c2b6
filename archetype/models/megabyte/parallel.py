"""Tensor parallelism of MegaByte's embeddings."""

from archetype.models.megabyte.module import GlobalEmbedding, LocalEmbedding
from archetype.roles.parallel import Plans, TablePlan
from archetype.spec.registry import provides


@provides("parallel", GlobalEmbedding, LocalEmbedding)
class EmbeddingPlans(Plans[GlobalEmbedding | LocalEmbedding]):
    def tensor(self, size: int) -> TablePlan:
        # a tied head shares the rows; position vectors are replicated
        return TablePlan("token")
