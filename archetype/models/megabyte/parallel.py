"""Tensor parallelism of MegaByte's embeddings."""

from archetype.models.megabyte.module import GlobalEmbedding, LocalEmbedding
from archetype.roles.parallel import Plans, TablePlan
from archetype.spec.registry import provides


@provides("parallel", GlobalEmbedding, LocalEmbedding)
class EmbeddingPlans(Plans[GlobalEmbedding | LocalEmbedding]):
    """Split plans of the embeddings."""

    def tensor(self, size: int) -> TablePlan:
        """Split the table of bytes by rows, which a tied head shares; position vectors are replicated."""
        return TablePlan("token")
