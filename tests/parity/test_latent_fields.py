"""Latent attention with factors of its latents and a norm of the shared key, against dots 3 in transformers."""

import json
import warnings
from pathlib import Path

import pytest
import torch

import archetype
from archetype.errors import ArchetypeError
from tests.helpers.published import EXACT
from tests.helpers.weights import distance
from tests.helpers.zoo import TASKS, write_small


def test_dots3_without_windows_agrees_and_with_them_is_refused(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = write_small("dots3_note_text", tmp_path, TASKS["causal"])
        lm = archetype.load(tmp_path)
    mixer = lm.spec.layers[0].mixer
    assert mixer.latent_scale == pytest.approx((32 / mixer.kv_lora_rank) ** 0.5) and mixer.query.scale != 1.0
    read = TASKS["causal"].ours
    with torch.no_grad():
        assert distance(read(lm.model), theirs) < EXACT
        lm.model.blocks[0].mixer.k_norm.weight.mul_(2.0)
        assert distance(read(lm.model), theirs) > 1e-3
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config["layer_types"][1] = "sliding_attention"
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ArchetypeError, match="latent attention with sliding windows"):
        archetype.load(tmp_path)
