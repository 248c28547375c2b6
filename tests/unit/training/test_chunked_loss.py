"""The loss in chunks is the plain one, and so are its gradients; only the logits are never there."""

import json
from typing import Any

import pytest
import torch
from torch import nn

from archetype import spec
from archetype.models.build import Model, build
from archetype.training import chunked_loss
from archetype.training.objectives import base
from archetype.training.objectives.base import IGNORED, Batch, Objective
from tests.helpers.recipes import EXPERTS, decoder, megabyte, transformer_pair
from tests.helpers.weights import randomize

V, B, T = 50, 3, 11
CAUSAL: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"head": {"tied": True}},
    "soft-capped, scaled": {"head": {"tied": True, "softcap": 3.0, "scale": 1.5}},
    "bias": {"head": {"bias": True}},
    "transform": {"head": {"bias": True, "transform": {"activation": "gelu", "norm": {"kind": "layer"}}}},
    "experts": {"layers": [decoder(feedforward=EXPERTS)["layers"][0]]},
}


class Tokens(Objective):
    """Random targets, some of which are not predicted."""

    label_smoothing = 0.0
    source = False

    def batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(V, (B, T + 1), generator=generator)
        targets = torch.where(torch.rand((B, T), generator=generator) < 0.3, IGNORED, tokens[:, 1:])
        return tokens[:, :-1], targets

    validation_batch = batch

    def inputs_and_targets(self, batch: Batch) -> tuple[dict[str, Any], torch.Tensor]:
        tokens, targets = batch
        return ({"source": tokens, "target": tokens} if self.source else {"tokens": tokens}), targets


def built(fields: dict[str, Any]) -> Model:
    without_dropout = json.loads(json.dumps(fields).replace('"dropout": 0.1', '"dropout": 0.0'))
    model = build(spec.parse({"vocab_size": V} | without_dropout), seed=1)
    randomize(model)
    return model


def loss_and_gradients(model: nn.Module, objective: Tokens, dtype: str) -> tuple[float, dict[str, torch.Tensor]]:
    model.to(torch.float64 if dtype == "float64" else torch.float32).zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        output = objective.compute_loss(model, objective.batch(1))
    (output.loss * 0.7).backward()
    return output.loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def models() -> dict[str, Model]:
    causal = {name: built(decoder() | fields) for name, fields in CAUSAL.items()}
    return causal | {"megabyte": built(megabyte()), "pair": built(transformer_pair())}


def in_chunks(patch: pytest.MonkeyPatch, rows: int = 4) -> None:
    patch.setattr(base, "LARGE_LOGITS", 0)
    patch.setattr(chunked_loss, "chunk_rows", lambda vocab_size: rows)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_are_those_of_the_plain_path(monkeypatch: pytest.MonkeyPatch, smoothing: float) -> None:
    """To the rounding of float32, in which a loss is summed; in bfloat16 both round products to 8 bits elsewhere."""
    for name, model in models().items():
        objective = Tokens()
        objective.label_smoothing, objective.source = smoothing, name == "pair"
        for dtype, tolerance in (("float64", 5e-7), ("bfloat16", 0.06)):
            plain, expected = loss_and_gradients(model.train(), objective, dtype)
            with monkeypatch.context() as patch:
                in_chunks(patch)
                chunked, gradients = loss_and_gradients(model, objective, dtype)
            assert chunked == pytest.approx(plain, rel=1e-6 if dtype == "float64" else 2e-3), name
            assert gradients.keys() == expected.keys()
            for parameter, gradient in gradients.items():
                largest = expected[parameter].abs().max().clamp(min=1e-9)
                assert (gradient - expected[parameter]).abs().max() < tolerance * largest, (name, dtype, parameter)


def test_held_out_loss_and_accuracy_are_those_of_the_plain_path(monkeypatch: pytest.MonkeyPatch) -> None:
    model, objective = built(decoder()).eval(), Tokens()
    with torch.inference_mode():
        tokens, targets = objective.batch(1)
        answers = model(tokens).logits.argmax(-1)
        targets = torch.where(targets == IGNORED, targets, torch.where(tokens % 2 == 0, answers, targets))
        plain = objective.compute_loss(model, (tokens, targets))
        in_chunks(monkeypatch)
        chunked = objective.compute_loss(model, (tokens, targets))
    assert float(chunked.loss) == pytest.approx(float(plain.loss), rel=1e-6)
    assert (chunked.num_targets, chunked.num_correct) == (plain.num_targets, plain.num_correct)
    assert plain.num_correct and plain.num_correct < plain.num_targets


def test_a_frozen_head_has_no_gradient_and_its_features_do(monkeypatch: pytest.MonkeyPatch) -> None:
    model = built(decoder()).train()
    model.lm_head.requires_grad_(False)
    _, expected = loss_and_gradients(model, Tokens(), "float32")
    in_chunks(monkeypatch)
    _, gradients = loss_and_gradients(model, Tokens(), "float32")
    assert "lm_head.weight" not in gradients and gradients.keys() == expected.keys()
    torch.testing.assert_close(gradients["final_norm.weight"], expected["final_norm.weight"], rtol=1e-5, atol=1e-7)


def test_only_large_logits_are_computed_in_chunks() -> None:
    model = built(decoder())
    assert base.head_to_chunk(model, base.LARGE_LOGITS // (4 * V)) is None
    assert base.head_to_chunk(model, base.LARGE_LOGITS // (4 * V) + 1) is model.lm_head
    assert base.head_to_chunk(nn.Linear(2, 2), 10**9) is None
    assert chunked_loss.chunk_rows(151_936) == 256 and chunked_loss.chunk_rows(4096) == 2048
