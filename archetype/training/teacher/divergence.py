"""Divergence of a model's distribution over tokens from a teacher's."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Classes(NamedTuple):
    """A teacher's distribution for each token: over the vocabulary, or over its k most likely tokens and all others.

    Attributes:
        log_p: log-probabilities (n, V), or (n, k + 1), the last one of all other tokens; (n, k) if there are no others.
        ids: the most likely tokens; None for the whole vocabulary.
    """

    log_p: Float[Tensor, "n C"]
    ids: Int[Tensor, "n k"] | None = None

    def of(self, tokens: slice) -> "Classes":
        """Return the distributions of some of the tokens."""
        return Classes(self.log_p[tokens], None if self.ids is None else self.ids[tokens])

    @classmethod
    def most_likely(cls, log_p: Float[Tensor, "n V"], k: int) -> "Classes":
        """Return the k most likely tokens of each distribution."""
        ids = log_p.topk(min(k, log_p.shape[1])).indices
        return cls(in_classes(log_p, ids), ids)


def in_classes(log_p: Float[Tensor, "n V"], ids: Int[Tensor, "n k"] | None) -> Float[Tensor, "n C"]:
    """Return the log-probabilities of the tokens `ids`, and of all others together."""
    if ids is None:
        return log_p
    chosen = log_p.gather(1, ids)
    if ids.shape[1] == log_p.shape[1]:
        return chosen
    others = log_p.scatter(1, ids, float("-inf")).logsumexp(1, keepdim=True)
    return torch.cat((chosen, others), dim=1)


def divergence_and_gradient(
    z: Float[Tensor, "n V"], teacher: Classes, temperature: float
) -> tuple[Float[Tensor, "n"], Float[Tensor, "n V"]]:
    """Return the KL divergence of the model's classes from the teacher's, in nats, and its gradient by the logits z.

    With q the model's probabilities, the gradient is (q - p) / temperature for the teacher's most likely tokens, and
    q (1 - p_others / q_others) / temperature for each of the others.
    """
    log_q = (z / temperature).log_softmax(1)
    classes = in_classes(log_q, teacher.ids)
    nats, gradient = (teacher.log_p.exp() * (teacher.log_p - classes)).sum(1), log_q.exp()
    if teacher.ids is None:
        return nats, gradient.sub_(teacher.log_p.exp()).div_(temperature)
    k = teacher.ids.shape[1]
    of_chosen = classes[:, :k].exp() - teacher.log_p[:, :k].exp()
    if classes.shape[1] > k:
        # in logarithms, because p_others / q_others may be too large for a float
        gradient.sub_(log_q.add_(teacher.log_p[:, k:] - classes[:, k:]).exp_())
    return nats, gradient.scatter_(1, teacher.ids, of_chosen).div_(temperature)
