"""Low-bit matrices become the numbers that their own libraries make of them, to the bit."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from archetype.errors import CheckpointError
from archetype.io import weight_files
from archetype.io.low_bit import tensors as low_bit_tensors
from archetype.io.low_bit.header import plain_header
from archetype.io.low_bit.registry import METHODS as READ
from archetype.io.low_bit.settings import read_settings, without_settings
from archetype.io.low_bit.tensors import LowBitTensors
from archetype.io.tensors import Tensors
from archetype.io.weight_files import SINGLE, TensorHeader
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.low_bit import METHODS, drawn, fp4_octets, fp4_values, fp8_blocks, words

TYPES = (torch.bfloat16, torch.float32, torch.float16)
NORM = {"norm.weight": torch.ones(3, dtype=torch.bfloat16)}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def opened(
    folder: Path, stored: dict[str, Tensor], settings: dict[str, Any], dtype: torch.dtype | None = None
) -> LowBitTensors:
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / SINGLE)
    return LowBitTensors(Tensors.open(folder), settings, dtype)


def same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(
        one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
    )


@pytest.mark.parametrize("name", every(2, METHODS))
def test_numbers_are_equal_to_the_bit(name: str, tmp_path: Path) -> None:
    method = METHODS[name]
    for dtype, (rows, columns) in zip(TYPES, ((64, 96), (32, 32), (160, 64)), strict=True):
        with case(dtype):
            stored, numbers = method.make(generator(rows), rows, columns, dtype)
            file = {f"a.b{ending}": tensor for ending, tensor in (stored | method.beside).items()}
            tensors = opened(tmp_path, NORM | file, method.settings, dtype)
            assert sorted(tensors.names()) == ["a.b.weight", "norm.weight"]
            assert tensors.shape("a.b.weight") == (rows, columns)
            assert tensors.dtype("a.b.weight") == dtype
            assert same(tensors.mapped("a.b.weight"), numbers)
            with tensors.copied("a.b.weight") as copied:
                assert same(copied, numbers)
            assert torch.equal(tensors.mapped("norm.weight"), NORM["norm.weight"])
            plain = plain_header(weight_files.header(tmp_path), method.settings)
            assert plain == {
                "norm.weight": TensorHeader("BF16", (3,)),
                "a.b.weight": TensorHeader("BF16", (rows, columns)),
            }


def test_numbers_are_made_a_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_bit_tensors, "AT_ONCE", 1)
    for name in ("fp8 small blocks", "compressed int4 with zeros 32", "gptq by activation", "awq", "modelopt nvfp4"):
        with case(name):
            stored, numbers = METHODS[name].make(generator(), 288, 64, torch.bfloat16)
            file = {f"a{ending}": tensor for ending, tensor in stored.items()}
            tensors = opened(tmp_path, file, METHODS[name].settings)
            assert same(tensors.mapped("a.weight"), numbers)


def test_blocks_at_the_edges_may_be_cut_short(tmp_path: Path) -> None:
    """DeepSeek-V3 has matrices of 576 rows in blocks of 128."""
    stored, numbers = fp8_blocks((128, 128))(generator(), 144, 200, torch.bfloat16)
    file = {f"a{ending}": tensor for ending, tensor in stored.items()}
    settings = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert same(opened(tmp_path, file, settings).mapped("a.weight"), numbers)


def test_experts_of_gpt_oss_are_published_as_inputs_and_outputs(tmp_path: Path) -> None:
    nibbles, exponents = drawn(generator(), 15, 3, 40, 64), (drawn(generator(1), 30, 3, 40, 2) + 100).to(torch.uint8)
    numbers = fp4_values(nibbles) * 2.0 ** (exponents.float() - 127).repeat_interleave(32, dim=-1)
    blocks = fp4_octets(nibbles).view(3, 40, 2, 16)
    tensors = opened(
        tmp_path, {"e.down_proj_blocks": blocks, "e.down_proj_scales": exponents}, {"quant_method": "mxfp4"}
    )
    assert tensors.shape("e.down_proj") == (3, 64, 40)
    assert same(tensors.mapped("e.down_proj"), numbers.transpose(1, 2).bfloat16())


def test_stacks_of_matrices_have_scales_of_their_own(tmp_path: Path) -> None:
    settings = {"quant_method": "fp8", "weight_block_size": [16, 16]}
    both = [fp8_blocks((16, 16))(generator(seed), 32, 48, torch.bfloat16) for seed in range(3)]
    weight, scale = (
        torch.stack([stored[end].view(torch.uint8) if end == ".weight" else stored[end] for stored, _ in both])
        for end in (".weight", ".weight_scale_inv")
    )
    file = {"e.up": weight.view(torch.float8_e4m3fn), "e.up_scale_inv": scale}
    assert same(opened(tmp_path, file, settings).mapped("e.up"), torch.stack([numbers for _, numbers in both]))


def test_a_group_of_modules_has_a_scheme_of_its_own(tmp_path: Path) -> None:
    four, eight = (METHODS[f"compressed int{bits} {rest}"] for bits, rest in ((4, "32"), (8, "with zeros rows")))
    groups = {
        "group_0": four.settings["config_groups"]["group_0"] | {"targets": ["Linear"]},
        "group_1": eight.settings["config_groups"]["group_0"] | {"targets": ["re:.*attn.*", "mlp.odd"]},
    }
    settings = four.settings | {"config_groups": groups, "format": "mixed-precision"}
    file, expected = {}, {}
    for seed, (module, method) in enumerate(
        {"model.attn.q": eight, "model.mlp.up": four, "model.mlp.odd": eight}.items()
    ):
        stored, expected[f"{module}.weight"] = method.make(generator(seed), 32, 64, torch.bfloat16)
        file |= {f"{module}{ending}": tensor for ending, tensor in stored.items()}
    tensors = opened(tmp_path, file, settings)
    assert {name: tensors.shape(name) for name in tensors.names()} == dict.fromkeys(expected, (32, 64))
    assert all(same(tensors.mapped(name), numbers) for name, numbers in expected.items())


def test_zero_points_of_the_other_convention_are_other_numbers(tmp_path: Path) -> None:
    stored, numbers = METHODS["gptq 4"].make(generator(), 32, 64, torch.float16)
    file = {f"a{ending}": tensor for ending, tensor in stored.items()}
    other = opened(tmp_path, file, {"quant_method": "gptq", "checkpoint_format": "gptq_v2"}, torch.float16)
    assert not torch.equal(other.mapped("a.weight"), numbers)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no method": ({}, "quant_method: None is not supported; use one of fp8"),
    "another method": ({"quant_method": "bitsandbytes"}, "quant_method: 'bitsandbytes' is not supported"),
    "marlin": ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "checkpoint_format: 'marlin' is not supported"),
    "another packing": (
        {"quant_method": "auto-round", "packing_format": "auto_round:llm_compressor"},
        "packing_format: 'auto_round:llm_compressor' is not supported; use one of auto_round:auto_gptq, ",
    ),
    "no whole numbers": (
        {"quant_method": "auto-round", "data_type": "mx_fp"},
        "data_type: 'mx_fp' is not supported; use int",
    ),
    "three bits of awq": (
        {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 3},
        "version: 'gemm' with 3 bits is not supported",
    ),
    "gemv": ({"quant_method": "awq", "version": "gemv"}, "version: 'gemv' with 4 bits is not supported"),
    "no groups": ({"quant_method": "compressed-tensors"}, "config_groups: is not a mapping of groups; fix the file"),
    "sparse": (
        METHODS["compressed int8"].settings | {"sparsity_config": {"format": "sparse-24-bitmask"}},
        "sparsity_config: is not supported",
    ),
    "rotated": (
        METHODS["compressed int8"].settings
        | {"transform_config": {"config_groups": {"R4": {"apply": [{"location": "input"}]}}}},
        "transform_config: R4: transforms input at run time, which is not supported",
    ),
    "another format": (
        METHODS["compressed int8"].settings | {"config_groups": {"g": {"format": "marlin-24", "weights": {}}}},
        "config_groups: g: format 'marlin-24' is not supported; use one of pack-quantized",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_in_one_line(name: str) -> None:
    settings, message = REFUSED[name]
    with pytest.raises(CheckpointError) as caught:
        plain_header({}, settings)
    assert str(caught.value).startswith(f"quantization_config: {message}")


JUNK: tuple[Any, ...] = (None, -1, 0, 3.5, True, "x", "re:(", [], [0, 0], ["x"], {}, {"x": 1})


def spoiled(value: Any) -> Iterator[Any]:
    """The same settings, with junk in the place of each of their values."""
    yield from JUNK
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            for other in spoiled(value[key]):
                copied = value.copy()
                copied[key] = other
                yield copied


def test_damaged_settings_are_read_or_refused_in_one_line() -> None:
    header = {"a.weight": TensorHeader("F8_E4M3", (8, 8)), "a.weight_scale": TensorHeader("F32", (8, 1))}
    refused = 0
    for name, method in METHODS.items():
        for settings in spoiled(method.settings):
            with case(name, settings), contextlib.suppress(CheckpointError):
                config = {"quantization_config": settings}
                if (read := read_settings(config)) is not None:
                    plain_header(header, read)
                continue
            refused += 1
    assert refused > 500


def test_what_the_method_does_not_explain_is_refused_by_its_name() -> None:
    for name in READ:
        settings = METHODS["compressed int8"].settings if name == "compressed-tensors" else {"quant_method": name}
        for dtype in ("U8", "I32", "F8_E4M3"):
            with case(name, dtype), pytest.raises(CheckpointError) as caught:
                plain_header({"a.weight": TensorHeader(dtype, (8, 8))}, settings)
            assert str(caught.value).startswith(f"a.weight: is stored as {dtype} [8, 8], which {name} does not explain")


def test_parts_that_do_not_fit_each_other_are_refused(tmp_path: Path) -> None:
    for name, method in METHODS.items():
        stored, _ = method.make(generator(), 64, 96, torch.bfloat16)
        for cut in stored:
            short = {end: tensor[:-1] if end == cut and tensor.ndim else tensor for end, tensor in stored.items()}
            file = {f"a{end}": tensor for end, tensor in short.items()}
            with case(name, cut):
                try:
                    tensors = opened(tmp_path, file, method.settings)
                    mapped = tensors.mapped("a.weight")
                except (CheckpointError, KeyError) as error:
                    assert isinstance(error, CheckpointError)
                    assert "\n" not in str(error)
                else:  # of one row less, which its scales allow
                    assert len(mapped) in (63, 64)


@pytest.mark.parametrize("bits", [0, 9, 4.0, "4", None])
def test_a_number_of_bits_is_one_that_words_hold(bits: object, tmp_path: Path) -> None:
    weights = {"num_bits": bits, "type": "int", "strategy": "channel", "symmetric": True}
    settings = {"quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}  # fmt: skip
    with pytest.raises(CheckpointError, match=f"num_bits: {bits!r} is not a number from 1 to 8"):
        plain_header({"a.weight_packed": TensorHeader("I32", (8, 8))}, settings)


def test_a_group_beyond_the_last_is_refused(tmp_path: Path) -> None:
    stored, _ = METHODS["gptq by activation"].make(generator(), 32, 64, torch.bfloat16)
    stored[".g_idx"][5] = 4
    tensors = opened(tmp_path, {f"a{end}": tensor for end, tensor in stored.items()}, {"quant_method": "gptq"})
    with pytest.raises(CheckpointError, match=r"^a\.weight: g_idx: refers to a group beyond the 4; download it again$"):
        tensors.mapped("a.weight")


@pytest.mark.parametrize("order", [[*range(63), 2], [0] * 63])
def test_an_order_of_groups_that_are_not_there_is_refused(order: list[int], tmp_path: Path) -> None:
    method = METHODS["compressed int4 32"]
    stored, _ = method.make(generator(), 32, 64, torch.bfloat16)
    stored |= {".weight_g_idx": torch.tensor([min(group, 2) for group in order], dtype=torch.int32)}
    tensors = opened(tmp_path, {f"a{end}": tensor for end, tensor in stored.items()}, method.settings)
    with pytest.raises(CheckpointError, match=r"^a\.weight: weight_g_idx: refers to a group beyond the 2; download it"):
        tensors.mapped("a.weight")


def test_words_that_are_not_filled_are_refused(tmp_path: Path) -> None:
    file = {
        "a.weight_packed": words(drawn(generator(), 15, 8, 12), 4),
        "a.weight_scale": torch.ones(8, 1),
        "a.weight_shape": torch.tensor([8, 12]),
    }
    tensors = opened(tmp_path, file, METHODS["compressed int4 rows"].settings)
    with pytest.raises(CheckpointError, match=r"^a\.weight: weight_shape: has 12 inputs, which do not fill words"):
        tensors.mapped("a.weight")


def test_settings_are_found_where_tools_write_them(tmp_path: Path) -> None:
    inner = {"quant_method": "fp8"}
    for config in (
        {"quantization_config": inner},
        {"compression_config": inner},
        {"text_config": {"quantization_config": inner}},
    ):
        assert read_settings({"a": 1} | config) == inner
        assert without_settings({"a": 1} | config) == {"a": 1} | (
            {"text_config": {}} if "text_config" in config else {}
        )
    assert read_settings({"a": 1}, tmp_path) is None
    for name, content, expected in (
        ("quant_config.json", {"w_bit": 4, "q_group_size": 128}, {"quant_method": "awq", "bits": 4, "group_size": 128}),
        ("quantize_config.json", {"bits": 4}, {"quant_method": "gptq", "bits": 4}),
        (
            "hf_quant_config.json",
            {"quantization": {"quant_algo": "NVFP4"}},
            {"quantization": {"quant_algo": "NVFP4"}, "quant_algo": "NVFP4", "quant_method": "modelopt"},
        ),
    ):
        (tmp_path / name).write_text(json.dumps(content))
        assert read_settings({}, tmp_path) == expected
    with pytest.raises(CheckpointError, match=r"^quantization_config: 3 is not a mapping; fix the file$"):
        read_settings({"quantization_config": 3})
