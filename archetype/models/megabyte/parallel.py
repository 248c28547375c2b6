"""How processes share the embeddings of a model of patches: the vectors of some bytes for each."""

from archetype.models.megabyte.module import GlobalEmbedding, LocalEmbedding
from archetype.roles.parallel import Plans, TablePlan
from archetype.spec.registry import provides


@provides("parallel", GlobalEmbedding, LocalEmbedding)
class EmbeddingPlans(Plans[GlobalEmbedding | LocalEmbedding]):
    """The vectors of some bytes for each process."""

    def tensor(self, size: int) -> TablePlan:
        """The table of bytes is divided, which a tied head multiplies by; those of positions stay whole."""
        return TablePlan("token")
