"""Files of few bits against those that llama.cpp's own quantizer makes of the same weights, where it is installed."""

import ctypes
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from archetype import spec
from archetype.api.exporting import export
from archetype.api.language_model import LanguageModel
from archetype.convert.gguf import file as ours
from archetype.convert.gguf.architectures import GGUF
from archetype.convert.gguf.encoders import as_mean
from archetype.convert.gguf.quantize import quantize
from archetype.convert.gguf.tensors import file_shapes
from archetype.convert.gguf.types import BLOCKS, FILE_TYPES, Facts, tensor_types
from archetype.families.bert import bert
from archetype.families.deepseek_v2 import deepseek_v2
from archetype.families.gemma import gemma
from archetype.families.gpt2 import gpt2
from archetype.families.llama import llama
from archetype.families.mamba import mamba
from archetype.families.mixtral import mixtral
from archetype.families.qwen2 import qwen2
from archetype.families.qwen3_moe import qwen3_moe
from archetype.families.t5 import t5
from archetype.models.build import build
from tests.helpers.cases import case
from tests.helpers.weights import randomize

MIXES = [type for type, most in FILE_TYPES.items() if BLOCKS[most][0] == 256]
FEW: dict[str, Any] = dict(d_model=32, vocab_size=40, context_length=16)
HEADS: dict[str, Any] = FEW | dict(num_heads=8, num_kv_heads=1, d_ff=64)
EQUAL: dict[str, Any] = HEADS | dict(num_kv_heads=8)
WIDE: dict[str, Any] = dict(d_model=256, vocab_size=40, context_length=16, num_heads=4, num_kv_heads=2, head_dim=32)
# Rows of 32 weights take the narrower types, which tell apart what the rule gives; those of 256 take K-quants.
RULE: dict[str, spec.ModelSpec] = {
    "llama": llama(num_layers=9, **EQUAL),
    "llama tied": llama(num_layers=17, **HEADS, tied=True),
    "llama, wide": llama(num_layers=9, **WIDE, d_ff=48),
    "llama, wide networks": llama(num_layers=9, **HEADS | {"d_ff": 256}),
    "llama 65B": llama(num_layers=80, **EQUAL),
    "llama 70B": llama(num_layers=80, **HEADS),
    "qwen2 70B": qwen2(num_layers=80, **EQUAL),
    "mixtral of 8": mixtral(num_layers=9, **HEADS, num_experts=8),
    "mixtral of 4": mixtral(num_layers=9, **HEADS, num_experts=4),
    "qwen3_moe": qwen3_moe(
        num_layers=9, **FEW, num_heads=4, num_kv_heads=2, head_dim=8, expert_d_ff=32, num_experts=8, experts_per_token=2
    ),
    "gemma": gemma(num_layers=9, **HEADS, head_dim=32),
    "gpt2": gpt2(num_layers=9, **FEW, num_heads=4),
    "bert": bert(num_layers=9, **FEW, num_heads=4, head=spec.NoHead(), pooler=True),
    "t5": t5(num_layers=9, **FEW, num_heads=4, head_dim=8, d_ff=64),
    "mamba": mamba(num_layers=9, **FEW),
    "deepseek_v2": deepseek_v2(
        num_layers=9, **FEW, num_heads=4, d_ff=64, num_experts=4, experts_per_token=2, expert_d_ff=32, kv_lora_rank=32,
        qk_nope_head_dim=16, qk_rope_head_dim=16, v_head_dim=32, position=spec.Rotary(interleaved=True),
    ),
}  # fmt: skip


FAST = ("llama", "mixtral of 8", "gpt2", "deepseek_v2", "mamba")


def written(model: LanguageModel, family: str, folder: Path, type: str) -> Path:
    export(model, folder, family, format="gguf", type=type)  # type: ignore[arg-type]
    return folder / ours.FILE


def quantized(c: Any, exact: Path, type: str) -> Any:
    """What llama.cpp's quantizer makes of a file in float32."""
    file, settings = exact.with_name(f"{type}.gguf"), c.llama_model_quantize_default_params()
    settings.ftype, settings.nthread = gguf.LlamaFileType[f"MOSTLY_{type.upper()}"].value, 1
    assert c.llama_model_quantize(str(exact).encode(), str(file).encode(), ctypes.byref(settings)) == 0
    return gguf.GGUFReader(file)


def kinds(file: Any) -> dict[str, str]:
    return {tensor.name: tensor.tensor_type.name for tensor in file.tensors}


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in RULE]
)
def test_every_tensor_has_the_type_that_llama_cpp_gives_it(c: Any, name: str, tmp_path: Path) -> None:
    model, family = LanguageModel(RULE[name], randomize(build(RULE[name]))), name.split()[0].strip(",")
    exact, seen = written(model, family, tmp_path / "exact", "f32"), set()
    target, computed = GGUF[family], as_mean(RULE[name])
    shapes = file_shapes(computed, target)
    keys = target.metadata(computed, lambda: shapes, lambda tensor: [])
    for type in MIXES:
        with case(type):
            mine = tensor_types(shapes, type, Facts.of(target.architecture, keys))
            assert {name: type.upper() for name, type in mine.items()} == kinds(quantized(c, exact, type))
            seen |= {*mine.values()}
    assert len(seen) > 3  # the control: several types are told apart


def test_the_bytes_are_those_of_llama_cpp(c: Any, tmp_path: Path) -> None:
    model_spec = llama(num_layers=2, **WIDE, d_ff=256)
    model = LanguageModel(model_spec, randomize(build(model_spec)))
    exact = written(model, "llama", tmp_path / "exact", "f32")
    for type in [*MIXES, "q8_0"]:
        with case(type):
            mine, theirs = written(model, "llama", tmp_path / type, type), quantized(c, exact, type)
            stored = {tensor.name: np.asarray(tensor.data) for tensor in theirs.tensors}
            for tensor in gguf.GGUFReader(mine).tensors:
                assert np.array_equal(tensor.data, stored[tensor.name]), tensor.name
            assert kinds(gguf.GGUFReader(mine)) == kinds(theirs)
            for key in ("general.file_type", "general.quantization_version"):
                assert gguf.GGUFReader(mine).get_field(key).contents() == theirs.get_field(key).contents()


def test_blocks_of_awkward_numbers_are_those_of_llama_cpp(c: Any) -> None:
    """Groups of zeros, of equal numbers, of one sign, with outliers, halves, and scales too small for 16 bits."""
    from llama_cpp import _ggml

    chunk = _ggml.libggml.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    g = torch.Generator().manual_seed(0)
    normal = torch.randn(200, 256, generator=g)
    sparse = torch.where(torch.rand(200, 256, generator=g) < 0.1, normal, 0.0)
    small = normal.clone()
    small[:, :64], small[:50], small[50:100] = 0.0, 0.7, 1e-7 * normal[50:100]
    few = torch.randint(-3, 4, (200, 256), generator=g).float()
    for numbers in (normal, normal**5, normal.abs() + 0.5, -normal.abs() - 0.5, sparse, small, few, normal.bfloat16()):
        x = numbers.float().contiguous()
        for type in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q5_0", "q5_1"):
            weights, size = BLOCKS[type]
            theirs = np.zeros(x.numel() // weights * size, np.uint8)
            kind, nothing = gguf.GGMLQuantizationType[type.upper()].value, ctypes.c_void_p(0)
            rows, width = (ctypes.c_int64(count) for count in x.shape)
            source, target = ctypes.c_void_p(x.data_ptr()), theirs.ctypes.data_as(ctypes.c_void_p)
            assert chunk(kind, source, target, ctypes.c_int64(0), rows, width, nothing) == theirs.size
            assert np.array_equal(quantize(x, type).numpy().ravel(), theirs), type
