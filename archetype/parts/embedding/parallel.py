"""How processes share an embedding: the vectors of some tokens for each."""

from archetype.parts.embedding.module import Embedding
from archetype.roles.parallel import Plans, TablePlan
from archetype.spec.registry import provides


@provides("parallel", Embedding)
class EmbeddingPlans(Plans[Embedding]):
    """The vectors of some tokens for each process."""

    def tensor(self, size: int) -> TablePlan | None:
        """The table of tokens, where it has one, is divided; those of positions and types stay whole."""
        return None if self.module.token is None else TablePlan("token")
