"""MiniMax agrees with transformers: layers of lightning attention and of attention, normed streams, experts."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import MiniMaxConfig, MiniMaxForCausalLM

import archetype
from archetype.cost import cost_report
from archetype.errors import CheckpointError
from archetype.families import preset
from tests.helpers.causal import in_chunks
from tests.helpers.published import EXACT, WRONG
from tests.helpers.weights import distance, randomize

TOKENS, PROMPT = torch.arange(4, 40)[None] % 61, 9
SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 3, "num_local_experts": 4, "max_position_embeddings": 64, "block_size": 8, "pad_token_id": 0,
}  # fmt: skip
FACTORS = {f"{kind}_alpha_factor": 3.5565588200778455 for kind in ("full_attn", "linear_attn", "mlp")}
LINEAR, FULL = "linear_attention", "full_attention"


def written(folder: Path, **keys: Any) -> Any:
    """The folder of a model whose parameters are random; its decays are computed."""
    model = MiniMaxForCausalLM(MiniMaxConfig(**SIZES | keys))
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    randomize(model)
    for name, buffer in model.named_buffers():
        buffer.copy_(buffers[name])
    model.save_pretrained(folder)
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize(
    "keys",
    [
        {},
        FACTORS | {"layer_types": [LINEAR, LINEAR, FULL], "head_dim": 6, "rope_theta": 99.0},
        {"sliding_window": 5, "layer_types": [LINEAR, FULL, LINEAR], "tie_word_embeddings": True},
    ],
    ids=["in turns", "factors", "window"],
)
def test_minimax(keys: dict[str, Any], tmp_path: Path) -> None:
    theirs = written(tmp_path / "theirs", **keys)
    lm: Any = archetype.load(tmp_path / "theirs", dtype="float32")
    whole = theirs(TOKENS, use_cache=False).logits
    assert distance(lm.model(TOKENS).logits, whole) < EXACT
    state = lm.model.new_state(1, TOKENS.shape[1])
    ours = in_chunks(lm.model, TOKENS, state, list(range(PROMPT, TOKENS.shape[1])))
    assert distance(ours, whole) < EXACT
    archetype.export(lm, tmp_path / "written")
    read, rewritten = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "written"))
    tables = {name for name in read if name.endswith(("slope_rate", "query_decay", "key_decay", "diagonal_decay"))}
    assert tables and rewritten.keys() == read.keys() - tables
    assert all(torch.equal(tensor, read[name]) for name, tensor in rewritten.items())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = MiniMaxForCausalLM.from_pretrained(tmp_path / "written", dtype=torch.float32).eval()
    assert distance(again(TOKENS, use_cache=False).logits, whole) < EXACT
    number = next(number for number, block in enumerate(lm.spec.layers) if block.mixer.kind == "linear_attention")
    weight = lm.model.get_parameter(f"blocks.{number}.mixer.k.weight")
    weight.copy_(weight.roll(1, 0))
    assert distance(lm.model(TOKENS).logits, whole) > WRONG


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"mlp_alpha_factor": 2.0}, "mlp_alpha_factor: differs from those of the other sublayers"),
        ({"layer_types": [FULL, "chunked", FULL]}, "layer_types: does not name full_attention or linear_attention"),
        ({"full_attn_beta_factor": 2.0, "linear_attn_beta_factor": 2.0, "mlp_beta_factor": 2.0},
         "mlp_beta_factor: 2.0 is not supported"),
    ],
    ids=["factors", "kinds", "beta"],
)  # fmt: skip
def test_keys_that_are_refused(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    written(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | keys
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message):
        archetype.load(tmp_path)


def test_other_decays_than_those_computed_are_refused(tmp_path: Path) -> None:
    written(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.self_attn.slope_rate"
    rounded = tensors | {name: tensors[name].bfloat16().float()}
    save_file(rounded, tmp_path / "model.safetensors", {"format": "pt"})
    archetype.load(tmp_path)
    save_file(tensors | {name: tensors[name] * 1.1}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match="slope_rate: differs from what this family computes"):
        archetype.load(tmp_path)


def test_minimax_text_01_is_counted_as_released() -> None:
    """456 billion parameters, of which 45.9 are active, without the tables (MiniMax 2025, abstract)."""
    counts = cost_report(preset("minimax-text-01")).parameters
    assert round(counts["total"] / 1e9) == 456 and round((counts["active"] - 2 * counts["embedding"]) / 1e9, 1) == 45.9
