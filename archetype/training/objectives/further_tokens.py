"""The loss of the tokens after the next (DeepSeek-AI 2024b, equations 24 and 25)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from archetype.training.chunked_loss import IGNORED


def further_loss(
    further: Sequence[Tensor],
    targets: Tensor,
    document_ids: Tensor | None,
    loss_of: Callable[[Tensor, Tensor], tuple[Tensor, int | Tensor]],
) -> Tensor:
    """The mean, over the further tokens, of the sum of each one's losses over the number of next tokens.

    So a batch that is computed in parts has the loss of the whole.

    Args:
        further: the vectors that the head reads for each further token, (B, T, D) each.
        targets: the next token of each position, (B, T), or IGNORED.
        document_ids: of each position, where no document sees another.
        loss_of: from vectors and targets to the mean loss, and over how many it is the mean.
    """
    later = further_targets(targets, len(further), document_ids)
    sums = [_sum_of_losses(vectors, ids, loss_of) for vectors, ids in zip(further, later, strict=True)]
    return torch.stack(sums).mean() / (targets != IGNORED).sum().clamp(min=1)


def further_targets(targets: Tensor, count: int, document_ids: Tensor | None = None) -> list[Tensor]:
    """What each position predicts for each further token, (B, T): the target of the position so many places later.

    It is IGNORED past the end of the row, and in another document than the position's own.
    """
    later = []
    for ahead in range(1, count + 1):
        ids = torch.full_like(targets, IGNORED)
        ids[:, :-ahead] = targets[:, ahead:]
        if document_ids is not None:
            ids[:, :-ahead][document_ids[:, :-ahead] != document_ids[:, ahead:]] = IGNORED
        later.append(ids)
    return later


def _sum_of_losses(
    vectors: Tensor, targets: Tensor, loss_of: Callable[[Tensor, Tensor], tuple[Tensor, int | Tensor]]
) -> Tensor:
    if not (targets != IGNORED).any():  # the mean of no losses is no number; processes wait for gradients of all
        return 0 * vectors.sum()
    mean, count = loss_of(vectors, targets)
    return mean * count
