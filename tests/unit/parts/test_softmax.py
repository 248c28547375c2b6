"""Other normalizations of attention's scores: off-by-one softmax and softpick."""

import pytest
import torch
from torch import Tensor

from archetype.errors import SpecError
from archetype.models.build import build
from archetype.parts.attention.pairs import MaskedPairs
from archetype.parts.pattern.scores import MASKED, ScoreFunction
from tests.helpers.specs import DECODERS, attending
from tests.helpers.weights import distance, randomize

SOFTPICK = ScoreFunction(1.0, normalization="softpick")
TOKENS = torch.randint(31, (2, 17), generator=torch.Generator().manual_seed(0))


def softpick(scores: Tensor) -> Tensor:
    """Equation 3 of Zuhri (2025), without a stable form."""
    steps = scores.double().exp() - 1
    return steps.relu() / steps.abs().sum(-1, keepdim=True)


def test_softpick_is_the_rectified_quotient_over_the_keys_that_are_not_masked() -> None:
    scores = 3 * torch.randn(1, 2, 5, 9, generator=torch.Generator().manual_seed(1))
    assert distance(SOFTPICK.softmax(scores), softpick(scores)) < 1e-6
    masked = torch.cat((scores, torch.full((1, 2, 5, 4), MASKED)), dim=-1)
    weights = SOFTPICK.softmax(masked)
    assert torch.equal(weights[..., :9], SOFTPICK.softmax(scores)) and not weights[..., 9:].any()


def test_softpick_reads_nothing_where_no_score_is_positive_and_never_overflows() -> None:
    assert not SOFTPICK.softmax(-torch.rand(1, 1, 3, 5)).any()
    assert not SOFTPICK.softmax(torch.full((1, 1, 3, 5), MASKED)).any()
    assert not SOFTPICK.softmax(torch.full((1, 1, 3, 5), -300.0)).any()
    assert torch.equal(
        SOFTPICK.softmax(torch.tensor([[[[300.0, -300.0, 300.0]]]])), torch.tensor([[[[0.5, 0.0, 0.5]]]])
    )


@torch.no_grad()
def test_off_by_one_is_a_softmax_with_a_sink_of_zero() -> None:
    ours, sinks = build(attending(softmax="off_by_one")), build(attending(sinks=True))
    randomize(ours)
    randomize(sinks)
    sinks.load_state_dict(ours.state_dict(), strict=False)
    for name, tensor in sinks.named_parameters():
        if name.endswith("sinks"):
            tensor.zero_()
    assert torch.equal(ours(TOKENS).logits, sinks(TOKENS).logits)
    plain = build(attending())
    plain.load_state_dict(ours.state_dict())
    assert distance(plain(TOKENS).logits, ours(TOKENS).logits) > 1e-3


@torch.no_grad()
def test_tiles_of_softpick_are_joined_as_if_all_pairs_were_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = randomize(build(DECODERS["softpick, tiles"]))
    tiled = model(TOKENS).logits
    pairs = model.blocks[0].mixer.pairs
    assert pairs.saves_pairs(TOKENS.shape[1])
    monkeypatch.setattr(type(pairs), "attend", MaskedPairs.attend)
    assert distance(tiled, model(TOKENS).logits) < 1e-5


def test_another_softmax_has_no_sinks() -> None:
    with pytest.raises(SpecError, match="softmax softpick has no sink logits"):
        attending(softmax="softpick", sinks=True)
