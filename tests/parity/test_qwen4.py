"""Logits of Qwen4-Exp: gated residual streams, and an index of pooled keys beside gated delta nets."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import archetype
from archetype import spec
from archetype.convert.infer import read_unknown
from archetype.errors import CheckpointError
from archetype.estimate.report import total_parameters
from archetype.models.cost import model_cost
from tests.helpers.causal import in_chunks
from tests.helpers.published import EXACT, WRONG, lose, same_tensors, swap
from tests.helpers.weights import distance
from tests.parity.test_inferred_families import PROMPT, SIZES, TOKENS, check, read, their_steps, written

# With 16 heads at least one scores each pool above 0, so that no pools tie.
QWEN4: dict[str, Any] = SIZES | {
    "architectures": ["Qwen4ExpForCausalLM"], "model_type": "qwen4_exp_text", "attention_bias": False, "head_dim": 8,
    "hc_count": 3, "hc_lowrank": 5, "hidden_act": "silu", "indexer_budget": 12, "indexer_compress_ratio": 4,
    "indexer_head_dim": 6, "indexer_kv_heads": 1, "indexer_n_heads": 16,
    "layer_types": ["linear_attention", "indexed_attention"], "linear_conv_kernel_dim": 3, "linear_key_head_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_value_head_dim": 8, "moe_intermediate_size": 16,
    "norm_topk_prob": True, "num_experts": 6, "num_experts_per_tok": 2, "num_hidden_layers": 2,
    "output_gate_type": "sigmoid", "rms_norm_eps": 1e-2, "shared_expert_intermediate_size": 24,
    "rope_parameters": {
        "mrope_section": [1, 1, 0], "partial_rotary_factor": 0.5, "rope_theta": 100.0, "rope_type": "default",
    },
    "tie_word_embeddings": False,
}  # fmt: skip


@torch.no_grad()
def test_qwen4(tmp_path: Path) -> None:
    """Whole, step by step and written back; exchanged weights of the two sublayers' streams show."""
    mistake = swap("blocks.1.mixer_residual.gates.gate_up.weight", "blocks.1.feedforward_residual.gates.gate_up.weight")
    lm = check(QWEN4, mistake, tmp_path)
    residual, (recurrent, indexed) = lm.spec.residual, lm.spec.layers
    assert (residual.kind, residual.num_streams, residual.rank, residual.unit_offset) == ("gated_streams", 3, 5, True)
    assert lm.spec.final_norm.is_absent and recurrent.wiring.norm.is_absent and recurrent.mixer.gate == "sigmoid"
    index = indexed.mixer.index
    assert (index.pool, index.top_pools, index.num_heads, index.position.dim) == (4, 3, 16, 4)
    # keys, values and the index's keys of one layer, which grow, and the memory of the other
    states = [model_cost(lm.spec).state(length)[0] for length in (40, 41)]
    assert states[1] - states[0] == 2 * 2 * 8 + 6
    whole = lm.model(TOKENS).logits
    state = {name: tensor.clone() for name, tensor in lm.model.state_dict().items()}
    for lost in ("residual_exit.norm_weight", "blocks.0.mixer_residual.write_weights.weight"):
        lose(lost)(lm.model)
        assert distance(lm.model(TOKENS).logits, whole) > WRONG
        lm.model.load_state_dict(state)
    # how many pools are read, and where their keys rotate, change the answers
    for field in ("top_pools=2", "position.theta=7.0"):
        other = archetype.build(spec.assign(lm.spec, [f"layers[1].mixer.index.{field}"])).eval()
        other.load_state_dict(state)
        assert distance(other(TOKENS).logits, whole) > EXACT


WITH_MEMORY = QWEN4 | {
    "heads_per_ngram": 2, "make_ngram_vocab_size_divisible_by": 8, "ngram_size": 3, "ngram_vocab_size_base": 40,
    "ple_conv_kernel_size": 3, "ple_embed_dim": 32, "ple_layer_ids": [1], "seed": 7, "split_ngram_parts": 4,
}  # fmt: skip


@torch.no_grad()
def test_the_memory_of_n_grams_reads_each_stream(tmp_path: Path) -> None:
    theirs = written(WITH_MEMORY, tmp_path / "theirs")
    lm = read(tmp_path / "theirs")
    memory = lm.spec.layers[0].feedforward
    assert (lm.spec.num_layers, memory.kind, memory.num_streams, memory.table) == (3, "ngram_memory", 3, 0)
    assert sum(parameter.numel() for parameter in lm.model.parameters()) == total_parameters(lm.spec)
    whole = theirs(TOKENS, use_cache=False).logits
    assert distance(lm.model(TOKENS).logits, whole) < EXACT
    cuts = list(range(PROMPT, TOKENS.shape[1]))
    ours = in_chunks(lm.model, TOKENS, lm.model.new_state(1, TOKENS.shape[1]), cuts)
    assert distance(ours, whole) < EXACT and distance(their_steps(theirs, TOKENS), whole) < EXACT
    # the numbers of its hashes follow from the configuration, and are not written
    archetype.export(lm, tmp_path / "written")
    same_tensors(tmp_path / "theirs", tmp_path / "written", tuple(
        f"model.layers.0.ple.ple_embedding.{name}"
        for name in ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
    ))  # fmt: skip
    swap("blocks.0.feedforward.query_norm.0.weight", "blocks.0.feedforward.query_norm.2.weight")(lm.model)
    assert distance(lm.model(TOKENS).logits, whole) > WRONG


@pytest.mark.parametrize(
    ("changes", "changed", "message"),
    [
        ({"hc_count": 4}, {}, "streams with 96 features in total"),
        ({"hc_lowrank": 4}, {}, "hc_lowrank: 4 is not supported .the gates of the streams have this number of rows"),
        ({"indexer_budget": 13}, {}, "an index of pools whose tensors do not fit its keys"),
        ({"indexer_n_heads": None}, {}, "an index of pools whose size is unknown"),
        ({"output_gate_type": "relu"}, {}, "a delta network with gate 'relu'"),
        (
            {},
            {"model.layers.0.ple.key_proj.weight": (96, 8)},
            "ple_layer_ids: does not name layer 0",
        ),
        ({}, {"model.layers.0.input_layernorm.weight": (32,)}, "residual streams with two norms in a row"),
        ({}, {"model.layers.0.mlp_hyper_connection.hc_norm.weight": None}, "residual streams with unknown gates"),
    ],
    ids=["streams", "rank", "budget", "no size", "gate", "n-grams", "two norms", "no norm"],
)
def test_what_is_not_qwen4_is_refused(
    changes: dict[str, Any],
    changed: dict[str, tuple[int, ...] | None],
    message: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.getbasetemp() / "qwen4"
    if not folder.is_dir():
        written(QWEN4, folder)
    shapes = {name: tuple(x.shape) for name, x in load_file(folder / "model.safetensors").items()} | changed
    values = json.loads((folder / "config.json").read_text()) | changes
    with pytest.raises(CheckpointError, match=message):
        read_unknown(values, {name: shape for name, shape in shapes.items() if shape is not None})
