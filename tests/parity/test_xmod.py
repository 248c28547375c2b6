"""X-MOD: a network of the language behind the layer's own, and the layer's last norm behind both."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import archetype
from archetype.errors import CheckpointError
from archetype.estimate.report import cost_report
from tests.helpers.causal import in_chunks
from tests.helpers.published import EXACT, WRONG, lose
from tests.helpers.weights import distance
from tests.parity.test_inferred_families import SIZES, TOKENS, check, read, written

XMOD: dict[str, Any] = SIZES | {
    "architectures": ["XmodForCausalLM"], "model_type": "xmod", "num_hidden_layers": 2, "is_decoder": True,
    "pad_token_id": 1, "layer_norm_eps": 1e-2, "type_vocab_size": 1, "languages": ["en_XX", "de_DE", "fr_XX"],
    "default_language": "de_DE", "adapter_reduction_factor": 4, "hidden_act": "gelu",
}  # fmt: skip
del XMOD["num_key_value_heads"]


@torch.no_grad()
def test_xmod(tmp_path: Path) -> None:
    """Whole, step by step and written back, with the adapters of other languages as they are."""
    lm = check(XMOD, lose("blocks.1.feedforward.up.weight"), tmp_path)
    assert [layer.feedforward.d_ff for layer in lm.spec.layers] == [48, 8, 48, 8]
    whole = lm.model(TOKENS).logits
    assert distance(in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), [1, 7, 12]), whole) < EXACT
    assert cost_report(lm.spec, 1, 12, dtype="float32").state["bytes"] == lm.model.new_state(1, 12).nbytes
    theirs = written(XMOD | {"default_language": "fr_XX"}, tmp_path / "french")
    assert distance(read(tmp_path / "french").model(TOKENS).logits, theirs(TOKENS).logits) < EXACT
    english = load_file(tmp_path / "theirs" / "model.safetensors")
    assert any(".en_XX." in name for name in english)
    # both norms are one tensor of the file: a model in which they differ cannot be written
    norm = lm.model.blocks[1].feedforward_norm
    norm.weight = torch.nn.Parameter(norm.weight + 0.5)
    with pytest.raises(CheckpointError, match=r"feedforward_norm\.weight"):
        archetype.export(lm, tmp_path / "again")


@torch.no_grad()
def test_both_norms_of_a_layer_count(tmp_path: Path) -> None:
    written(XMOD, tmp_path)
    lm = read(tmp_path)
    whole = lm.model(TOKENS).logits
    for layer in (0, 1):
        norm = lm.model.blocks[layer].feedforward_norm.weight
        original = norm.clone()
        norm.zero_()
        assert distance(lm.model(TOKENS).logits, whole) > WRONG
        norm.copy_(original)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"default_language": "ja_XX"}, "default_language: 'ja_XX' is not one of the file's languages"),
        ({"pre_norm": True}, "pre_norm: True is not supported"),
        ({"adapter_layer_norm": True}, "adapter_layer_norm: True is not supported"),
        ({"adapter_reuse_layer_norm": False}, "adapter_reuse_layer_norm: False is not supported"),
        ({"ln_before_adapter": False}, "ln_before_adapter: False is not supported"),
    ],
)
def test_other_places_of_norms_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    written(XMOD | change | ({"default_language": "en_XX"} if "pre_norm" in change else {}), tmp_path)
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path)
