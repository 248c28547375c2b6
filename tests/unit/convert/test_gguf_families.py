"""GGUF files of latent attention, encoders and encoder-decoders: what is stored otherwise, and what is refused."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.errors import CheckpointError
from archetype.families.bert import bert
from archetype.families.deepseek_v2 import deepseek_v2
from archetype.families.gpt2 import gpt2
from archetype.families.llama import llama
from archetype.families.mamba import mamba
from archetype.families.mixtral import mixtral
from archetype.families.t5 import t5
from archetype.models.build import Model, build
from archetype.weights.quantized import QuantizedMatrix
from tests.helpers.cases import case
from tests.helpers.weights import randomize
from tests.unit.conftest import COMMON
from tests.unit.convert.test_gguf import arrays, value, written

LATENT: dict[str, Any] = COMMON | dict(
    num_heads=2, d_ff=12, num_experts=4, experts_per_token=2, expert_d_ff=6, kv_lora_rank=4, qk_nope_head_dim=4,
    qk_rope_head_dim=2, v_head_dim=3,
)  # fmt: skip
PAIR: dict[str, Any] = COMMON | dict(num_heads=2, d_ff=12, head_dim=6)
PLAIN = spec.Rotary(interleaved=True)


def stretched(**scaling: Any) -> spec.Rotary:
    return spec.Rotary(interleaved=True, scaling=spec.YarnScaling(factor=4.0, original_context_length=4, **scaling))


def test_latents_lead_to_keys_and_values_apart(models: dict[str, Model], tmp_path: Path) -> None:
    file = written(models["deepseek_v2"], tmp_path / "out")
    stored = arrays(file)
    up = models["deepseek_v2"].get_parameter("blocks.1.mixer.kv_up.weight").detach().view(2, 4 + 3, 4).numpy()
    assert (stored["blk.1.attn_k_b.weight"] == up[:, :4].transpose(0, 2, 1)).all()
    assert (stored["blk.1.attn_v_b.weight"] == up[:, 4:]).all()
    assert "blk.1.attn_kv_b.weight" not in stored
    sizes = ("key_length", "value_length", "key_length_mla", "value_length_mla", "kv_lora_rank", "q_lora_rank")
    assert [value(file, f"deepseek2.attention.{name}") for name in sizes] == [6, 4, 6, 3, 4, 5]
    assert value(file, "deepseek2.attention.head_count_kv") == 1
    assert value(file, "deepseek2.leading_dense_block_count") == 1
    assert value(file, "deepseek2.rope.scaling.yarn_log_multiplier") == pytest.approx(0.0707)


def test_an_encoder_is_there_for_vectors(tmp_path: Path) -> None:
    model = randomize(build(bert(**COMMON, num_heads=2, head=spec.NoHead(), pooler=True)))
    file = written(model, tmp_path / "out")
    stored = arrays(file)
    assert not [name for name in stored if name.startswith("cls")]
    assert {"token_types.weight", "blk.1.attn_output_norm.bias", "blk.0.layer_output_norm.weight"} <= stored.keys()
    num_parameters = sum(p.numel() for name, p in model.named_parameters() if not name.startswith("pooler"))
    assert sum(array.size for array in stored.values()) == num_parameters
    assert value(file, "tokenizer.ggml.token_type_count") == 2
    assert (value(file, "bert.attention.causal"), value(file, "bert.pooling_type")) == (False, 1)


@pytest.mark.parametrize("name", ["t5", "t5 gated"])
def test_two_stacks(models: dict[str, Model], tmp_path: Path, name: str) -> None:
    model = models[name]
    file = written(model, tmp_path / "out")
    stored = arrays(file)
    decoders = 1 if name == "t5 gated" else 2
    assert (value(file, "t5.block_count"), value(file, "t5.decoder_block_count")) == (2, decoders)
    assert ("output.weight" in stored) is (name == "t5 gated")
    assert f"dec.blk.{decoders - 1}.cross_attn_q.weight" in stored and f"dec.blk.{decoders}.attn_q.weight" not in stored
    norm = model.get_parameter("decoder.final_norm.weight").detach().numpy()
    scale = np.float32(1.0 if name == "t5 gated" else 8**-0.5)
    assert np.allclose(stored["dec.output_norm.weight"], norm * scale, rtol=1e-6)
    assert (stored["enc.output_norm.weight"] == model.get_parameter("encoder.final_norm.weight").detach().numpy()).all()


def test_tables_stay_exact(models: dict[str, Model], tmp_path: Path) -> None:
    model = randomize(build(t5(**PAIR))).to(torch.bfloat16)
    kinds = {tensor.name: tensor.tensor_type.name for tensor in written(model, tmp_path / "t5").tensors}
    assert kinds["dec.blk.0.attn_rel_b.weight"] == kinds["enc.blk.0.attn_norm.weight"] == "F32"
    assert kinds["enc.blk.0.attn_q.weight"] == "BF16"


REFUSED: dict[str, tuple[spec.ModelSpec, str]] = {
    "groups": (
        deepseek_v2(**LATENT, position=PLAIN, groups=spec.ExpertGroups(num_groups=2, groups_per_token=1)),
        "layers[1].feedforward.groups.top_k_in_group: llama.cpp does not support 1 in deepseek2, only 2",
    ),
    "biases": (deepseek_v2(**LATENT, position=PLAIN, attention_bias=True), "layers[*].mixer.bias: llama.cpp"),
    "biases of networks": (deepseek_v2(**LATENT, position=PLAIN, mlp_bias=True), "layers[0].feedforward.bias: llama"),
    "two precisions": (deepseek_v2(**LATENT, position=PLAIN, eps=1e-5), "layers[*].mixer.norm.eps: llama.cpp"),
    "26 layers": (
        deepseek_v2(**LATENT | {"num_layers": 26}, position=PLAIN, q_lora_rank=3), "layers[*].mixer.query: llama.cpp",
    ),
    "linear": (
        deepseek_v2(**LATENT, position=spec.Rotary(interleaved=True, scaling=spec.LinearScaling(factor=2.0))),
        "layers[*].mixer.position.scaling: llama.cpp does not support linear scaling in deepseek2",
    ),
    "plain yarn": (deepseek_v2(**LATENT, position=stretched()), "layers[*].mixer.position.scaling.mscale: llama.cpp"),
    "two mscales": (
        deepseek_v2(**LATENT, position=stretched(mscale=1.0, mscale_all_dim=0.7)),
        "layers[*].mixer.position.scaling.mscale: llama.cpp",
    ),
    "an attention factor": (
        deepseek_v2(**LATENT, position=stretched(mscale=1.0, mscale_all_dim=1.0, attention_factor=1.1)),
        "layers[*].mixer.position.scaling.attention_factor: llama.cpp",
    ),
    "no truncation": (
        deepseek_v2(**LATENT, position=stretched(mscale=1.0, mscale_all_dim=1.0, truncate=False)),
        "layers[*].mixer.position.scaling.truncate: llama.cpp",
    ),
    "no silu": (deepseek_v2(**LATENT, position=PLAIN, activation="relu"), "layers[0].feedforward.activation: llama"),
    "a head of hidden tokens": (bert(**COMMON, num_heads=2), "head: llama.cpp does not support a head of kind masked"),
    "a relu encoder": (
        bert(**COMMON, num_heads=2, head=spec.NoHead(), pooler=True, activation="relu"),
        "layers[0].feedforward.activation: llama.cpp does not support 'relu' here, only 'gelu'",
    ),
    "distances": (
        t5(**PAIR, max_distance=64),
        "encoder.layers[*].mixer.position.max_distance: llama.cpp does not support 64 here, only 128",
    ),
    "a deeper decoder": (t5(**PAIR, num_decoder_layers=3), "decoder.layers: llama.cpp does not support more of them"),
    "a silu gate": (t5(**PAIR, gated=True, activation="silu"), "encoder.layers[0].feedforward.activation: llama.cpp"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_llama_cpp_does_not_compute_is_refused(tmp_path: Path, case: str) -> None:
    model_spec, said = REFUSED[case]
    with pytest.raises(CheckpointError) as caught:
        written(build(model_spec), tmp_path / "out")
    assert str(caught.value).startswith(said), caught.value
    assert not list(tmp_path.iterdir())


FEW: dict[str, Any] = dict(num_layers=1, d_model=64, vocab_size=40, context_length=16, num_heads=2)
FEW_BITS = {
    "rows in another order": llama(**FEW, num_kv_heads=1, d_ff=48),
    "several in one": gpt2(**FEW),
    "experts": mixtral(**FEW, num_kv_heads=1, d_ff=32, num_experts=3),
    "latents": deepseek_v2(
        **FEW, d_ff=64, num_experts=4, experts_per_token=2, expert_d_ff=32, kv_lora_rank=32, qk_nope_head_dim=16,
        qk_rope_head_dim=16, v_head_dim=16, num_dense_layers=0,
    ),
    "two stacks": t5(**FEW, head_dim=32, d_ff=64),
    "states": mamba(num_layers=1, d_model=64, vocab_size=40, context_length=16),
}  # fmt: skip


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_model_of_few_bits_gives_its_own_numbers(tmp_path: Path, weights: str) -> None:
    """Every number is the model's to the bit, as the library reads them, and matrices have no more bits."""
    own = {"int8": "Q8_0", "int4": "Q4_0"}[weights]
    for name, model_spec in FEW_BITS.items():
        with case(name):
            model = randomize(build(model_spec))
            LanguageModel(model_spec, model).pack(weights)
            file = written(model, tmp_path / weights / name)
            exact = arrays(written(model, tmp_path / weights / f"{name} exact", type="f32"))
            kinds = {tensor.name: tensor.tensor_type.name for tensor in file.tensors}
            few = {name for name, kind in kinds.items() if kind == own}
            matrices = sum(isinstance(module, QuantizedMatrix) for module in model.modules())
            assert len(few) == matrices - (2 if name == "several in one" else 0)
            assert {*kinds.values()} == {own, "F32"} and "token_embd.weight" in few
            assert ("blk.0.attn_k_b.weight" in kinds) == (name == "latents")
            for tensor in file.tensors:
                numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(exact[tensor.name].shape)
                assert np.array_equal(numbers, exact[tensor.name]), tensor.name
    assert value(file, "general.file_type") == gguf.LlamaFileType[f"MOSTLY_{own}"]


def test_few_bits_become_others_with_an_error_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model_spec = FEW_BITS["several in one"]
    for weights, type, least, most in (
        ("int8", "q4_0", 0.02, 0.2),
        ("int4", "q8_0", 1e-4, 0.01),
        ("int8", "bf16", 1e-4, 0.01),
    ):
        model = randomize(build(model_spec))
        LanguageModel(model_spec, model).pack(weights)
        matrix = model.get_submodule("blocks.0.feedforward.up.weight").unpacked(torch.float32).numpy()
        file = written(model, tmp_path / f"{weights}-{type}", type=type)
        [tensor] = [tensor for tensor in file.tensors if tensor.name == "blk.0.ffn_up.weight"]
        assert tensor.tensor_type.name == type.upper()
        numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        error = float(np.sqrt(np.square(numbers - matrix).sum() / np.square(matrix).sum()))
        said = caplog.messages.pop()
        assert said.startswith(f"{ {'int8': 'q8_0', 'int4': 'q4_0'}[weights] } weights were rounded again to {type}")
        assert least < error < most and float(said.split()[-1]) == pytest.approx(error, rel=0.3)
