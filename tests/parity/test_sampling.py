"""The filters against transformers' own."""

import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from archetype.generate import Sampling
from archetype.generate.filters import filtered
from archetype.generate.logits_processors import penalise

LOGITS = torch.randn(64, 97, generator=torch.Generator().manual_seed(0)) * 3


def theirs(*processors: LogitsProcessor, logits: torch.Tensor = LOGITS) -> torch.Tensor:
    for processor in processors:
        logits = processor(None, logits)
    return logits.softmax(-1)


@pytest.mark.parametrize(
    ("sampling", "processors"),
    [
        (Sampling(temperature=0.3), [TemperatureLogitsWarper(0.3)]),
        (Sampling(top_k=1), [TopKLogitsWarper(1)]),
        (Sampling(top_k=20), [TopKLogitsWarper(20)]),
        (Sampling(top_k=500), [TopKLogitsWarper(500)]),
        (Sampling(top_p=0.1), [TopPLogitsWarper(0.1)]),
        (Sampling(top_p=0.93), [TopPLogitsWarper(0.93)]),
        (Sampling(min_p=0.02), [MinPLogitsWarper(0.02)]),
        (
            Sampling(temperature=1.7, top_k=30, top_p=0.9, min_p=0.05),
            [TemperatureLogitsWarper(1.7), TopKLogitsWarper(30), TopPLogitsWarper(0.9), MinPLogitsWarper(0.05)],
        ),
    ],
)
def test_filters_leave_the_same_probabilities(sampling: Sampling, processors: list[LogitsProcessor]) -> None:
    ours, expected = filtered(LOGITS, sampling).softmax(-1), theirs(*processors)
    assert torch.equal(ours > 0, expected > 0)
    torch.testing.assert_close(ours, expected, atol=1e-6, rtol=0)
    changed = not torch.allclose(ours, LOGITS.softmax(-1), atol=1e-3)
    assert changed == (sampling.top_k != 500)  # more than there are tokens


def test_ties_at_the_edge_of_top_k_stay() -> None:
    logits = torch.tensor([[1.0, 2.0, 1.0, 0.0, 1.0]])
    expected = theirs(TopKLogitsWarper(2), logits=logits)
    assert (expected > 0).sum() == 4
    torch.testing.assert_close(filtered(logits, Sampling(top_k=2)).softmax(-1), expected)


@pytest.mark.parametrize("penalty", [0.7, 1.3])
def test_the_repetition_penalty_is_the_same(penalty: float) -> None:
    ids = torch.randint(0, 97, (64, 12), generator=torch.Generator().manual_seed(1))
    expected = RepetitionPenaltyLogitsProcessor(penalty)(ids, LOGITS)
    ours = LOGITS.clone()
    for row, seen in zip(ours, ids.tolist(), strict=True):
        penalise(row, seen, penalty)
    assert torch.equal(ours, expected)
    assert not torch.equal(expected, LOGITS)
