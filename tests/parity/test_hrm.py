"""HRM: two stacks in turn, of which each reads the other's outputs; and inputs of earlier layers, added again."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from archetype import spec
from archetype.errors import CheckpointError, SpecError
from archetype.estimate.report import cost_report
from archetype.models.build import build
from archetype.models.file import parse
from archetype.spec.edit import assign
from tests.helpers.causal import in_chunks
from tests.helpers.published import EXACT, WRONG, lose
from tests.helpers.specs import block, decoder
from tests.helpers.weights import distance, randomize
from tests.parity.test_inferred_families import SIZES, TOKENS, check, read, written

HRM: dict[str, Any] = SIZES | {
    "architectures": ["HrmTextForCausalLM"], "model_type": "hrm_text", "head_dim": 8, "num_hidden_layers": 12,
    "num_layers_per_stack": 2, "H_cycles": 2, "L_cycles": 2, "embedding_scale": 3.0, "rms_norm_eps": 1e-2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "tie_word_embeddings": False,
    "prefix_lm": True, "hidden_act": "silu",
}  # fmt: skip
del HRM["num_key_value_heads"]


@torch.no_grad()
def test_hrm(tmp_path: Path) -> None:
    """Whole, step by step and written back; gates are of the attention, and each sum counts."""
    lm = check(HRM, lose("blocks.5.mixer.gate.weight"), tmp_path)
    assert [(layer.weights_of, layer.adds_input_of, layer.norm_between) for layer in lm.spec.layers[::2]] == [
        (None, None, False), (0, 0, True), (None, 0, True), (0, 4, True), (0, 6, True), (4, 6, True)
    ]  # fmt: skip
    assert parse(lm.spec.dump()) == lm.spec
    whole = lm.model(TOKENS).logits
    assert distance(in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), [1, 7, 12]), whole) < EXACT
    assert cost_report(lm.spec, 1, 12, dtype="float32").state["bytes"] == lm.model.new_state(1, 12).nbytes
    for change in ("layers[6].adds_input_of=0", "layers[10].adds_input_of=null", "layers[4].norm_between=false"):
        other = build(assign(lm.spec, [change])).eval()
        other.load_state_dict(lm.model.state_dict())
        assert distance(other(TOKENS).logits, whole) > WRONG, change


def test_an_initial_state_other_than_zero_is_refused(tmp_path: Path) -> None:
    written(HRM, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.z_L_init"][3] = 1e-3
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"model\.z_L_init: differs from what this family computes"):
        read(tmp_path)


@torch.no_grad()
def test_the_input_of_an_earlier_layer_is_added() -> None:
    """As for a skip connection: `reinject` of two passes is the same sum, to the bit."""
    first, again = block(), block() | {"weights_of": 0}
    looped = build(decoder(first, again | {"reinject": True}))
    skipped = build(decoder(first, again | {"adds_input_of": 0}))
    randomize(looped)
    skipped.load_state_dict(looped.state_dict())
    tokens = torch.randint(31, (2, 9), generator=torch.Generator().manual_seed(0))
    assert torch.equal(looped(tokens).logits, skipped(tokens).logits)
    plain = build(decoder(first, again))
    plain.load_state_dict(looped.state_dict())
    assert distance(plain(tokens).logits, skipped(tokens).logits) > WRONG


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adds_input_of": 1}, r"layers\[1\]\.adds_input_of: 1 is not an earlier layer; use less than 1"),
        ({"adds_input_of": 0, "reinject": True, "weights_of": 0}, "cannot be combined with reinject"),
    ],
)
def test_what_cannot_be_added_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        decoder(block(), block() | change)
    with pytest.raises(SpecError, match=r"adds vectors in each pass, which .*adds_input_of cannot sum"):
        decoder(block(), block() | {"adds_input_of": 0}, residual=spec.DepthAttention(layers_per_block=1))
