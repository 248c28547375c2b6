"""How processes share a head over the vocabulary: the logits of some tokens for each."""

from archetype.parts.head.module import LanguageModelHead
from archetype.roles.parallel import COLUMN, EACH, Plans, SplitPlan
from archetype.spec.registry import provides


@provides("parallel", LanguageModelHead)
class LanguageModelHeadPlans(Plans[LanguageModelHead]):
    """The logits of some tokens for each process, which are gathered before the loss."""

    def tensor(self, size: int) -> SplitPlan:
        """The vocabulary is divided; a transform before the product stays whole."""
        names = (name for name, _ in self.module.named_parameters())
        parameters = dict.fromkeys(names, EACH) | {"weight": COLUMN, "bias": COLUMN}
        return SplitPlan(parameters, gathered=self.module.vocab_size)
