"""Forward passes as most tests want them: logits, or logits and the state after them."""

from typing import Any

import torch
from torch import Tensor, nn

from archetype.nn.state import State


def forward_step(model: nn.Module, *arguments: Any, **options: Any) -> tuple[Tensor, State]:
    """The logits of a pass with a state, and the state after it."""
    output = model(*arguments, **options)
    assert output.state is not None
    return output.logits, output.state


def taught(
    model: nn.Module,
    source: Tensor,
    target: Tensor,
    source_num_tokens: Tensor | None = None,
    num_tokens: Tensor | None = None,
) -> Tensor:
    """The logits of whole targets with their sources, as in training."""
    logits: Tensor = model(target, None, num_tokens, source=source, source_num_tokens=source_num_tokens).logits
    return logits


def logits_or_hidden(output: Any) -> torch.Tensor:
    """Logits, the vectors of texts, or the hidden vectors of a model without a head."""
    vectors = output.hidden if output.text_vectors is None else output.text_vectors
    result: Tensor = vectors if output.logits is None else output.logits
    return result
