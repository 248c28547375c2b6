"""Files of few bits: blocks of K-quants, and the types of a file's tensors, which `cost` counts to the byte."""

import json
import struct
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, get_args

import gguf
import numpy as np
import pytest
import torch

import archetype
from archetype import spec
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.convert.gguf import k_quants
from archetype.convert.gguf.quantize import dequantize, quantize
from archetype.convert.gguf.types import BLOCKS, FILE_TYPES, FileType
from archetype.errors import CheckpointError, SpecError
from archetype.families.deepseek_v2 import deepseek_v2
from archetype.families.gpt2 import gpt2
from archetype.families.llama import llama
from archetype.families.mamba import mamba
from archetype.families.mixtral import mixtral
from archetype.families.t5 import t5
from archetype.models.build import build
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.weights import randomize
from tests.unit.convert.test_gguf import value, written

COMMON: dict[str, Any] = dict(num_layers=9, vocab_size=40, context_length=16)
SCALING = spec.Llama3Scaling(
    factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context_length=16
)
LATENT: dict[str, Any] = dict(
    num_heads=4, d_ff=64, num_experts=4, experts_per_token=2, expert_d_ff=32, kv_lora_rank=32, qk_nope_head_dim=16,
    qk_rope_head_dim=16, v_head_dim=32,
)  # fmt: skip
MODELS: dict[str, spec.ModelSpec] = {
    "whole blocks": llama(**COMMON | {"num_layers": 2}, d_model=256, num_heads=4, num_kv_heads=1, d_ff=256),
    "narrow, factors": llama(
        **COMMON, d_model=32, num_heads=2, d_ff=48, tied=True, position=spec.Rotary(theta=5e5, scaling=SCALING)
    ),
    "experts": mixtral(**COMMON, d_model=32, num_heads=2, num_kv_heads=1, d_ff=256, num_experts=8),
    "latents": deepseek_v2(**COMMON, d_model=32, **LATENT, position=spec.Rotary(interleaved=True)),
    "fused": gpt2(**COMMON, d_model=32, num_heads=2),
    "two stacks": t5(**COMMON, d_model=32, num_heads=2, head_dim=16, d_ff=64),
    "states": mamba(**COMMON, d_model=32),
}


def error(numbers: torch.Tensor, type: str) -> float:
    """The root of the mean square of what rounding changes, of the root of the mean square of the numbers."""
    return float((dequantize(quantize(numbers, type), type) - numbers).square().mean().sqrt() / numbers.square().mean())


def test_more_bits_are_nearer_and_super_blocks_are_nearer_than_blocks() -> None:
    numbers = torch.randn(4, 100, 512, generator=torch.Generator().manual_seed(0))
    errors = [error(numbers, type) for type in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_0")]
    assert all(0.3 * few < more < 0.7 * few for few, more in pairwise(errors)), errors
    for type, plain in (("q4_k", "q4_0"), ("q5_k", "q5_0"), ("q5_k", "q5_1")):
        assert error(numbers, type) < error(numbers, plain)


def test_blocks_do_not_depend_on_what_is_quantized_beside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.randn(3, 7, 512, generator=torch.Generator().manual_seed(0))
    for type in k_quants.K_QUANTS:
        with case(type):
            whole = quantize(numbers, type)
            weights, size = BLOCKS[type]
            assert whole.shape == (3, 7, 512 // weights * size)
            assert torch.equal(whole[1], quantize(numbers[1], type))
            monkeypatch.setattr(k_quants, "AT_ONCE", 5)
            assert torch.equal(whole, quantize(numbers, type))
            monkeypatch.undo()


def test_zeros_stay_zeros() -> None:
    numbers = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
    numbers[:, 32:96], numbers[3] = 0.0, 0.0
    for type in k_quants.K_QUANTS:
        read = dequantize(quantize(numbers, type), type)
        assert read.isfinite().all() and not read[3].any(), type
        if type in ("q3_k", "q6_k"):  # which have no minimum
            assert not read[:, 32:96].any()


@pytest.mark.parametrize("name", every(6, sorted(MODELS, key="narrow, factors".__ne__)))
def test_cost_counts_the_bytes_that_a_file_has(name: str, tmp_path: Path) -> None:
    model = randomize(build(MODELS[name]))
    sizes = {}
    for type in FILE_TYPES if name == "narrow, factors" else ("q4_k_m", "q6_k", "q2_k", "q8_0"):
        with case(type):
            file = written(model, tmp_path / type, type=type)
            sizes[type] = sum(int(tensor.n_bytes) for tensor in file.tensors)
            assert archetype.cost_report(model.spec, dtype=type.upper()).memory["weights"] == sizes[type]
            of_file = gguf.LlamaFileType(value(file, "general.file_type")).name
            assert of_file == f"{'ALL' if type == 'f32' else 'MOSTLY'}_{type.upper()}"
    assert sizes["q2_k"] < sizes["q4_k_m"] < sizes["q6_k"] <= sizes["q8_0"]  # the control: types are told apart


def test_a_file_of_a_mix_is_read_as_the_numbers_that_were_written(tmp_path: Path) -> None:
    model = randomize(build(MODELS["whole blocks"]))
    exact = {tensor.name: tensor.data for tensor in written(model, tmp_path / "exact", type="f32").tensors}
    file = written(model, tmp_path / "out", type="q4_k_m")
    kinds = {tensor.tensor_type.name for tensor in file.tensors}
    assert kinds == {"F32", "Q4_K", "Q6_K"}
    read = archetype.load(tmp_path / "out" / "model.gguf")
    table = next(tensor for tensor in file.tensors if tensor.name == "token_embd.weight")
    numbers = gguf.quants.dequantize(table.data, table.tensor_type)
    assert np.array_equal(read.model.get_parameter("embedding.token.weight").detach().float().numpy(), numbers)
    distance = np.sqrt(np.square(numbers - exact["token_embd.weight"]).mean() / np.square(numbers).mean())
    assert 0.01 < distance < 0.1
    published = archetype.cost_report(tmp_path / "out" / "model.gguf", dtype="published").memory["weights"]
    assert published == sum(int(tensor.n_bytes) for tensor in file.tensors)


def test_the_choices_are_the_types_that_are_known() -> None:
    assert get_args(FileType) == tuple(FILE_TYPES)


def test_a_model_that_llama_cpp_does_not_know_has_no_such_types() -> None:
    for source, cause in (
        ("opt-125m", "q4_k_m is a type of GGUF files, but opt-125m: no family can express it"),
        (llama(**COMMON, d_model=32, num_heads=2, d_ff=48, activation="relu"), "q4_k_m is a type of GGUF files, but"),
    ):
        with pytest.raises(SpecError) as caught:
            archetype.cost_report(source, dtype="q4_k_m")
        assert str(caught.value).startswith(f"dtype: {cause}")
        assert str(caught.value).endswith("; use a type that is not GGUF's, such as int4")


def test_decoding_reads_the_experts_in_their_own_type() -> None:
    from archetype.estimate.roofline import weights_read

    report = archetype.cost_report("gpt-oss-20b", dtype="published")
    uniform = {dtype: archetype.cost_report("gpt-oss-20b", dtype=dtype) for dtype in ("bfloat16", "mxfp4")}
    reads = {dtype: weights_read(one, 1, "decode") for dtype, one in uniform.items()}
    assert reads["mxfp4"] < weights_read(report, 1, "decode") < reads["bfloat16"]
    ends = ("experts.gate", "experts.up", "experts.down")
    experts = sum(row.active for row in report.rows if row.module.endswith(ends))
    saved = experts * (16 - 4.25) / 8
    assert reads["bfloat16"] - weights_read(report, 1, "decode") == pytest.approx(saved, rel=1e-6)


def test_the_types_of_a_published_folder_are_those_of_its_headers(shared: Path, tmp_path: Path) -> None:
    """gpt-oss has its experts alone in MXFP4, as the preset says too."""
    entries = json.loads((shared / "published/headers_derived/openai__gpt-oss-20b.header.json").read_text())
    config = shared / "published/configs" / entries.pop("__metadata__")["config"]
    (tmp_path / "config.json").write_bytes(config.read_bytes())
    sizes = {name: prod(entry["shape"]) * {"F16": 2, "U8": 1}[entry["dtype"]] for name, entry in entries.items()}
    offset = 0
    for name, nbytes in sizes.items():
        entries[name] = {**entries[name], "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    header = json.dumps(entries).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    for source in (tmp_path, "gpt-oss-20b"):
        assert archetype.cost_report(source, dtype="published").memory["weights"] == sum(sizes.values())
    assert sum(sizes.values()) > 1.2 * archetype.cost_report(tmp_path, dtype="mxfp4").memory["weights"]


def test_what_a_folder_does_not_say_is_refused(tmp_path: Path) -> None:
    model_spec = llama(**COMMON, d_model=32, num_heads=2, d_ff=48)
    export(LanguageModel(model_spec, build(model_spec).to(torch.bfloat16)), tmp_path / "out")
    whole = archetype.cost_report(tmp_path / "out", dtype="bfloat16").memory["weights"]
    assert archetype.cost_report(tmp_path / "out", dtype="published").memory["weights"] == whole
    (tmp_path / "out" / "model.safetensors").unlink()
    for source, cause in (
        (tmp_path / "out", f"{tmp_path / 'out' / 'config.json'}: has no safetensors next to it"),
        ("llama-3-8b", "dtype: the dtypes in which llama-3-8b was published are unknown"),
        (model_spec, "dtype: the dtypes in which the model was published are unknown"),
    ):
        with pytest.raises(SpecError) as caught:
            archetype.cost_report(source, dtype="published")
        assert str(caught.value).startswith(cause)


@pytest.mark.parametrize("type", ["q8_0", "q5_1", "q5_0", "q4_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"])
def test_a_scale_beyond_float16_is_refused(type: str) -> None:
    """llama.cpp's own converter writes infinity as the scale, and the block is read as infinities and NaN."""
    drawn = torch.randn(2, 256, generator=torch.Generator().manual_seed(0))
    drawn /= drawn.abs().max()
    assert dequantize(quantize(drawn * 6e4, type), type).isfinite().all()
    with pytest.raises(CheckpointError, match=r"exceeds the largest float16, 65,504; use --type bf16"):
        quantize(drawn * 1e10, type)
    if type == "q8_0":
        with pytest.warns(RuntimeWarning, match="overflow"):
            blocks = gguf.quants.quantize((drawn * 1e10).numpy(), gguf.GGMLQuantizationType.Q8_0)
        with np.errstate(invalid="ignore"):
            assert not np.isfinite(gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0)).any()


def test_a_weight_beyond_float16_names_its_tensor(tmp_path: Path) -> None:
    model = randomize(build(MODELS["narrow, factors"]))
    with torch.no_grad():
        model.embedding.token.weight[0, 0] = 1e6  # type: ignore[union-attr,operator]
    with pytest.raises(CheckpointError, match=r"token_embd.weight: weights: a scale or weight of 1e\+06 exc"):
        written(model, tmp_path / "half", type="f16")  # type: ignore[arg-type]
    assert written(model, tmp_path / "wide", type="bf16")  # type: ignore[arg-type]
