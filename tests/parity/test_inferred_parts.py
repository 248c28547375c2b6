"""Types with a part of their own that are read by their files alone, against transformers, every tensor random."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import AutoModelForCausalLM

import archetype
from archetype import spec
from archetype.convert.infer import read_unknown
from archetype.errors import ArchetypeError, CheckpointError
from archetype.nn.context import ForwardContext
from archetype.nn.place import Place
from archetype.parts.attention.module import Attention
from tests.helpers.published import EXACT, WRONG, swap
from tests.helpers.weights import distance, randomize
from tests.parity.test_inferred_families import SIZES, TOKENS, check

# The keys as published; the window is shorter than the text, and sqrt(32) is 5.6569, in bfloat16 5.65625.
RECURRENT_GEMMA: dict[str, Any] = {key: value for key, value in SIZES.items() if key != "max_position_embeddings"} | {
    "architectures": ["RecurrentGemmaForCausalLM"], "model_type": "recurrent_gemma", "attention_bias": False,
    "attention_window_size": 12, "block_types": ["recurrent", "attention"], "conv1d_width": 3,
    "embeddings_scale_by_sqrt_dim": True, "head_dim": 8, "hidden_activation": "silu",
    "logits_soft_cap": 5.0, "lru_width": 48, "num_hidden_layers": 3, "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-6, "rope_theta": 1e4, "tie_word_embeddings": True, "torch_dtype": "float32",
    "w_init_variance_scale": 0.01,
}  # fmt: skip


def test_recurrent_gemma(tmp_path: Path) -> None:
    """Recurrences and windows; the gates of a recurrence in the wrong order show."""
    mistake = swap("blocks.0.mixer.input_gate.weight", "blocks.0.mixer.decay_gate.weight")
    lm = check(RECURRENT_GEMMA, mistake, tmp_path, their_cache=False)  # their class returns no cache
    first, second, third = (block.mixer for block in lm.spec.layers)
    assert first == third == spec.RGLRU(num_heads=4, width=48, conv_kernel=3, activation=spec.SiLU())
    assert second.pattern == spec.Window(size=12)
    assert second.position.dim == 2
    assert lm.spec.embedding.scale == 5.65625
    assert lm.spec.head.softcap == 5.0


def test_gates_of_another_size_than_the_recurrence_are_refused() -> None:
    below = "model.layers.0.temporal_block."
    shapes: dict[str, Any] = {
        "model.embed_tokens.weight": (61, 32), "model.final_norm.weight": (32,),
        "model.layers.0.temporal_pre_norm.weight": (32,), "model.layers.0.channel_pre_norm.weight": (32,),
        f"{below}rg_lru.recurrent_param": (32,), f"{below}rg_lru.input_gate_weight": (4, 8, 6),
        "model.layers.0.mlp_block.down_proj.weight": (32, 48),
    }  # fmt: skip
    with pytest.raises(CheckpointError, match="a recurrence of width 32 with gates of 4 heads of 8"):
        read_unknown(RECURRENT_GEMMA, shapes)


BITNET: dict[str, Any] = SIZES | {
    "architectures": ["BitNetForCausalLM"], "model_type": "bitnet", "hidden_act": "relu2", "initializer_range": 0.02,
    "num_hidden_layers": 2, "rms_norm_eps": 1e-3, "rope_theta": 500000.0, "tie_word_embeddings": True,
    "torch_dtype": "float32", "use_cache": True,
}  # fmt: skip


def test_bitnet(tmp_path: Path) -> None:
    """Norms before both output projections, in the place of each other's layer in the control."""
    norms = swap("blocks.0.mixer.heads_norm.weight", "blocks.1.mixer.heads_norm.weight")
    lm = check(BITNET, norms, tmp_path)
    for block in lm.spec.layers:
        assert block.mixer.heads_norm == block.feedforward.hidden_norm == spec.RMSNorm(eps=1e-3)
        assert block.feedforward.activation == spec.ReLU2()
    whole = lm.model(TOKENS).logits
    swap("blocks.0.feedforward.hidden_norm.weight", "blocks.1.feedforward.hidden_norm.weight")(lm.model)
    assert distance(lm.model(TOKENS).logits, whole) > WRONG
    # weights of the published kind are rounded in every pass
    values = BITNET | {"quantization_config": {"quant_method": "bitnet", "quantization_mode": "online"}}
    (tmp_path / "theirs" / "config.json").write_text(json.dumps(values))
    with pytest.raises(ArchetypeError, match="quantization_config"):
        archetype.load(tmp_path / "theirs")


DIFFLLAMA: dict[str, Any] = SIZES | {
    "architectures": ["DiffLlamaForCausalLM"], "model_type": "diffllama", "attention_bias": True, "head_dim": 12,
    "hidden_act": "silu", "initializer_range": 0.02, "lambda_std_dev": 0.2, "num_hidden_layers": 2,
    "rms_norm_eps": 1e-3, "rope_theta": 1e4, "tie_word_embeddings": False, "torch_dtype": "float32",
}  # fmt: skip


def small_lambdas(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of a large lambda only the second heads would be left, whose scale the norm removes."""
    return {name: tensor * 0.2 if "lambda" in name else tensor for name, tensor in tensors.items()}


@torch.no_grad()
def test_diffllama(tmp_path: Path) -> None:
    """Differences of weights; lambda begins elsewhere in each layer, and pairs of heads are not neighbours."""
    mistake = swap("blocks.0.mixer.differential.lambda_q1", "blocks.1.mixer.differential.lambda_q1")
    lm = check(DIFFLLAMA, mistake, tmp_path, small_lambdas)
    first = lm.spec.layers[0].mixer
    assert first.differential == spec.Differential(norm=spec.RMSNorm(eps=1e-3, weight=False))
    assert lm.model.new_state(1, 20).layers[0].nbytes == 4 * 2 * 20 * 2 * 12  # keys and values once
    whole = lm.model(TOKENS).logits
    lm.model.blocks[1].mixer.differential.lambda_init += 0.1
    assert distance(lm.model(TOKENS).logits, whole) > WRONG


@torch.no_grad()
def test_without_lambda_the_first_half_of_the_heads_is_left() -> None:
    """With lambda 0 and no norm a pair has the weights of its first head, on the values of both."""
    attention = spec.Attention(num_heads=4, differential=spec.Differential(norm=spec.NoNorm()))
    part = randomize(Attention(attention, Place(16, layer=2)))
    plain = Attention(spec.Attention(num_heads=4), Place(16, layer=2))
    plain.load_state_dict(part.state_dict(), strict=False)
    part.differential.weight_of_second = lambda: torch.tensor(0.0)
    for name in "qk":  # heads h and h + 2 of a plain layer read alike what its first two heads read
        matrix = getattr(plain, name).weight.view(4, 4, 16)
        matrix[2:] = matrix[:2]
    order = [0, 2, 1, 3]  # a pair's values stand side by side
    plain.o.weight.copy_(part.o.weight.view(16, 4, 4)[:, order].flatten(1) * (1 - part.differential.lambda_init))
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(0))
    assert distance(part(x, ForwardContext.of(x)), plain(x, ForwardContext.of(x))) < EXACT


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_heads": 3}, "num_heads: 3 heads cannot be paired for differential attention"),
        ({"num_heads": 2, "num_kv_heads": 1}, "num_kv_heads: 1 heads cannot be paired"),
    ],
)
def test_heads_without_pairs_are_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValidationError, match=message.partition(": ")[2]):
        spec.Attention(**fields, differential=spec.Differential())


# Names and keys as published: NX-AI/xLSTM-7b and RWKV/rwkv-4-169m-pile. Sizes of xLSTM's cache are multiples of 64.
XLSTM: dict[str, Any] = {
    "add_out_norm": True, "architectures": ["xLSTMForCausalLM"], "autocast_kernel_dtype": "bfloat16",
    "bos_token_id": 0, "cell_norm_eps": 1e-6, "chunk_size": 16, "chunkwise_kernel": "chunkwise--native_autograd",
    "embedding_dim": 128, "eos_token_id": 2, "eps": 1e-4, "ffn_proj_factor": 1.3, "ffn_round_up_to_multiple_of": 8,
    "gate_soft_cap": 3.0, "hidden_size": 128, "inference_state_dtype": "float32", "mode": "inference",
    "model_type": "xlstm", "norm_eps": 1e-3, "norm_reduction_force_float32": True, "num_blocks": 2, "num_heads": 4,
    "num_hidden_layers": 2, "output_logit_soft_cap": 5.0, "pad_token_id": 1, "qk_dim_factor": 0.5,
    "return_last_states": True, "sequence_kernel": "native_sequence__native", "step_kernel": "native",
    "tie_word_embeddings": False, "torch_dtype": "float32", "use_bias": False, "use_cache": True, "v_dim_factor": 1.0,
    "vocab_size": 61, "weight_mode": "single",
}  # fmt: skip
RWKV: dict[str, Any] = {
    "architectures": ["RwkvForCausalLM"], "attention_hidden_size": 32, "bos_token_id": 0, "context_length": 128,
    "eos_token_id": 0, "hidden_size": 32, "intermediate_size": 48, "layer_norm_epsilon": 1e-5, "model_type": "rwkv",
    "num_hidden_layers": 3, "rescale_every": 6, "tie_word_embeddings": False, "use_cache": True, "vocab_size": 61,
}  # fmt: skip


def test_xlstm(tmp_path: Path) -> None:
    """Matrix memories with exponential gates; gates in the wrong order show."""
    mistake = swap("blocks.0.mixer.input_gate.weight", "blocks.0.mixer.forget_gate.weight")
    lm = check(XLSTM, mistake, tmp_path, their_cache=False)  # which has another name
    mixer = spec.MLSTM(num_heads=4, head_dim=16, gate_softcap=3.0, norm_eps=1e-3, eps=1e-4, chunk_size=16)
    assert {layer.mixer for layer in lm.spec.layers} == {mixer}
    assert lm.spec.head.softcap == 5.0


@torch.no_grad()
def test_rwkv(tmp_path: Path) -> None:
    """Sums of exponential weights and a network that reads the token before; shares of another projection show."""
    mistake = swap("blocks.1.feedforward.mix", "blocks.1.feedforward.mix_receptance")
    lm = check(RWKV, mistake, tmp_path, their_cache=False)  # which is a list here
    assert {layer.mixer for layer in lm.spec.layers} == {spec.RWKV4()}
    network = spec.ChannelMixing(d_ff=48, receptance=True, mix_of="token")
    assert {layer.feedforward for layer in lm.spec.layers} == {network}
    assert lm.spec.embedding.norm == spec.LayerNorm() and lm.spec.context_length == 128
    # in evaluation mode their class halves the stream after some layers, which LayerNorm's epsilon shows
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs", rescale_every=1)
    logits = theirs.train()(TOKENS, use_cache=False).logits
    assert distance(lm.model(TOKENS).logits, logits) < EXACT
    assert distance(theirs.eval()(TOKENS, use_cache=False).logits, logits) > EXACT


@pytest.mark.parametrize(
    ("values", "change", "message"),
    [
        (XLSTM, {"use_bias": True}, "use_bias: needs RMSNorm with a bias, which is not supported; only false is"),
        (XLSTM, {"weight_mode": "fused"}, "weight_mode: 'fused' is not supported"),
        (RWKV, {"layer_norm_epsilon": 1e-3}, "layer_norm_epsilon: 0.001 is not supported"),
    ],
)
def test_keys_that_mean_another_part_are_refused(values: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_unknown(values | change, {})
