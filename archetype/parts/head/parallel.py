"""Tensor parallelism of a head over the vocabulary: each process computes some logits."""

from archetype.parts.head.module import LanguageModelHead
from archetype.roles.parallel import COLUMN, EACH, Plans, SplitPlan
from archetype.spec.registry import provides


@provides("parallel", LanguageModelHead)
class LanguageModelHeadPlans(Plans[LanguageModelHead]):
    def tensor(self, size: int) -> SplitPlan:
        # the vocabulary; a transform before the logits is replicated
        names = (name for name, _ in self.module.named_parameters())
        parameters = dict.fromkeys(names, EACH) | dict.fromkeys(("weight", "bias", "gain.weight"), COLUMN)
        return SplitPlan(parameters, gathered=self.module.vocab_size)
