"""muP: sizes of activations and the best learning rate do not depend on the width."""

import numpy as np
import pytest
import torch

from archetype import families, spec
from archetype.errors import SpecError
from archetype.models.build import build
from archetype.models.decoder.module import Decoder
from archetype.training.optimizers import SGD, AdamW, Muon, roles_of

SIZES = ["vocab_size=64", "d_model=32", "layers[*].mixer.num_heads=2", "layers[*].feedforward.d_ff=64"]
BASE = spec.assign(families.preset("gpt2-tiny"), SIZES)


def change_of_logits(model: spec.Decoder, seed: int) -> float:
    """The root of the mean square of what four steps of AdamW add to the logits."""
    built = build(model, seed)
    tokens = torch.randint(64, (8, 17), generator=torch.Generator().manual_seed(seed))
    optimizer = AdamW(learning_rate=5e-3, weight_decay=0.0).build(built)
    for group in optimizer.param_groups:
        group["lr"] *= group["learning_rate_ratio"]
    before = built(tokens[:, :-1]).logits.detach()
    for _ in range(4):
        logits = built(tokens[:, :-1]).logits
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return float((built(tokens[:, :-1]).logits.detach() - before).square().mean().sqrt())


def test_activations_do_not_grow_with_the_width() -> None:
    """The coordinate check (Yang 2021, appendix D.1); the usual parametrization is a control that must fail it."""

    def growth(wide: spec.Decoder, narrow: spec.Decoder) -> float:
        changes = [np.mean([change_of_logits(model, seed) for seed in range(2)]) for model in (narrow, wide)]
        return float(changes[1] / changes[0])

    def usual(factor: int) -> spec.Decoder:
        wide = spec.widen(BASE, factor)
        return wide.replace(initialization=spec.NormalInitialization(), head=BASE.head)

    for factor in (2, 8):
        assert 0.6 < growth(spec.widen(BASE, factor), spec.widen(BASE, 1)) < 1.4, factor
    assert growth(usual(8), usual(1)) > 2


def test_hidden_matrices_are_drawn_and_learn_by_the_width() -> None:
    narrow, wide = (build(spec.widen(BASE, factor)) for factor in (1, 4))
    for name, role in roles_of(narrow).items():
        if role in ("hidden", "embedding"):
            ratio = (wide.get_parameter(name).std() / narrow.get_parameter(name).std()).item()
            assert ratio == pytest.approx(0.5 if role == "hidden" else 1.0, rel=0.1), name
    for optimizer, expected in ((AdamW(), 0.25), (Muon(), 0.5)):
        ratios = {name: set() for name in ("hidden", "embedding", "norm")}
        for each in optimizer.grouped(wide):
            ratios.setdefault(each.role, set()).add(each.learning_rate_ratio)
        assert ratios["embedding"] == ratios["norm"] == {1.0} and ratios["hidden"] == {
            0.25 if optimizer.kind == "adamw" else 0.5
        }, expected
        assert {each.learning_rate_ratio for each in optimizer.grouped(narrow)} == {1.0}


def test_what_mup_does_not_cover_is_refused() -> None:
    with pytest.raises(SpecError, match=r"optimizer\.kind: mup does not support SGD; use adamw, muon"):
        SGD().build(build(spec.widen(BASE, 2)))
    with pytest.raises(SpecError, match=r"layers\[0\]: only attention and MLPs can be widened"):
        spec.widen(families.preset("mamba-tiny"), 2)


def test_a_wider_model_is_a_specification_like_any_other() -> None:
    wide = spec.widen(BASE, 4)
    assert (wide.d_model, wide.layers[0].mixer.num_heads, wide.head.scale) == (128, 8, 0.25)
    assert spec.parse(wide.dump()) == wide and isinstance(build(wide), Decoder)
