"""Loss of multi-token prediction (DeepSeek-AI 2024b, equations 24 and 25)."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from archetype.training.chunked_loss import IGNORED


def further_loss(
    further: Sequence[Tensor],
    targets: Tensor,
    document_ids: Tensor | None,
    loss_of: Callable[[Tensor, Tensor, int], Tensor],
    counts: Sequence[int] = (),
) -> Tensor:
    """Return the mean over further tokens of their summed losses, each divided by the number of next-token targets.

    Args:
        further: inputs of the head, (B, T, D) for each further token.
        targets: next token of each position, (B, T), or IGNORED.
        document_ids: document of each position, (B, T), if attention stays within a document.
        loss_of: returns the mean loss, given head inputs, targets and the number of targets.
        counts: number of targets for each further token (empty: read from the device).
    """
    later = further_targets(targets, len(further), document_ids)
    counts = counts or [int((ids != IGNORED).sum()) for ids in later]
    # sums, not means, so that the losses of micro-batches add up to the loss of the batch
    sums = [
        # without targets the mean is undefined, and with several processes each parameter needs a gradient
        loss_of(vectors, ids, count) * count if count else 0 * vectors.sum()
        for vectors, ids, count in zip(further, later, counts, strict=True)
    ]
    return torch.stack(sums).mean() / (targets != IGNORED).sum().clamp(min=1)


def further_targets(targets: Tensor, count: int, document_ids: Tensor | None = None) -> list[Tensor]:
    """Return the targets for each further token, (B, T): the next-token targets shifted by 1 to `count` positions.

    Targets are IGNORED past the end of the row and across documents.
    """
    later = []
    for ahead in range(1, count + 1):
        ids = torch.full_like(targets, IGNORED)
        ids[:, :-ahead] = targets[:, ahead:]  # position t predicts the target of position t + ahead
        if document_ids is not None:
            ids[:, :-ahead].masked_fill_(document_ids[:, :-ahead] != document_ids[:, ahead:], IGNORED)
        later.append(ids)
    return later
