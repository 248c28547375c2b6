"""Arms are matched by the models that are built, parts from outside included."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archetype.api.extension import load_extension
from archetype.errors import SpecError
from archetype.models.build import build_on_meta
from tests.helpers.registered import registries_as_before
from tests.unit.studies.pretended import pretended
from tests.unit.studies.small import BASE, study, trained

EXTENSION = '''
"""Attention whose output is scaled by a learned number for each feature and layer."""
from typing import Literal
import torch
from torch import nn
import archetype
from archetype import spec
from archetype.parts.attention.module import Attention

class Scaled(spec.Attention):
    kind: Literal["scaled_attention"] = "scaled_attention"

class ScaledAttention(Attention):
    def __init__(self, attention, place):
        super().__init__(attention, place)
        self.scale = nn.Parameter(torch.ones(1 + place.layer, place.d_model))

    def forward(self, *inputs):
        return super().forward(*inputs) * self.scale.mean(0)

archetype.register(Scaled, module=ScaledAttention)
'''
MIXER = {"kind": "scaled_attention", "num_heads": 2, "position": "rotary"}
DEEP = BASE | {"layers": BASE["layers"] * 3}


@pytest.fixture
def extension(tmp_path: Path) -> Iterator[None]:
    (tmp_path / "scaled.py").write_text(EXTENSION)
    with registries_as_before():
        load_extension(tmp_path / "scaled.py")
        yield


@pytest.mark.usefixtures("extension")
def test_a_part_from_outside_is_matched_by_what_is_built(tmp_path: Path) -> None:
    arms: dict[str, Any] = {"plain": {}, "scaled": {"layers[*].mixer": MIXER}}
    part = trained(base=DEEP, arms=arms)
    built = {}
    for name, arm in study(tmp_path, "full", part).trained["width"].arms.items():
        model = build_on_meta(arm.spec)
        embedding = arm.spec.vocab_size * arm.spec.d_model  # type: ignore[attr-defined]
        built[name] = sum(parameter.numel() for parameter in model.parameters()) - embedding
    assert built["scaled"] - built["plain"] == (1 + 2 + 3) * 8
    off = (built["scaled"] - built["plain"]) / built["plain"]
    message = rf"arms\.scaled: non_embedding is {built['scaled']:,}, but {built['plain']:,} in the control"
    with pytest.raises(SpecError, match=message):
        study(tmp_path, "full", part | {"match": {"params": off * 0.99}})
    study(tmp_path, "full", part | {"match": {"params": off * 1.01}})
    match = {"params": off / 2, "free": "layers[*].feedforward.d_ff"}
    (of_part,) = pretended(tmp_path, "full", part | {"match": match})[0].outcome()["parts"]
    assert of_part["arms"]["scaled"]["solved"] and of_part["arms"]["scaled"]["non_embedding"] < built["scaled"]
