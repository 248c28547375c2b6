"""Folders in few bits: loaded, counted and exported as the numbers that they stand for."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import archetype
from archetype.api.language_model import LanguageModel
from archetype.cost import total_parameters
from archetype.errors import CheckpointError, LeftOut, UnknownFamily
from archetype.families.llama import llama
from archetype.io.weight_files import SINGLE
from archetype.models.build import build
from tests.helpers.cases import case
from tests.helpers.low_bit import METHODS, Method
from tests.helpers.weights import randomize

SPEC = llama(num_layers=2, d_model=64, num_heads=4, num_kv_heads=2, d_ff=96, vocab_size=40, context_length=16)
EVERYWHERE = ("fp8 blocks", "modelopt nvfp4", "compressed int4 with zeros 32", "gptq 4", "awq")


def configure(folder: Path, **changes: Any) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text()) | changes
    file.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def low_bit(folder: Path, method: Method, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Make a folder's matrices of layers low-bit; returns all tensors as numbers."""
    file, numbers = {}, {}
    for seed, (name, tensor) in enumerate(sorted(load_file(folder / SINGLE).items())):
        if ".layers." not in name or tensor.ndim != 2:
            file[name] = numbers[name] = tensor.to(dtype)
            continue
        stored, numbers[name] = method.make(torch.Generator().manual_seed(seed), *tensor.shape, dtype)
        module = name.removesuffix(".weight")
        file |= {f"{module}{end}": part.contiguous().clone() for end, part in (stored | method.beside).items()}
    save_file(file, folder / SINGLE)
    configure(folder, dtype=str(dtype).removeprefix("torch."), quantization_config=method.settings)
    return numbers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small Llama."""
    archetype.export(LanguageModel(SPEC, randomize(build(SPEC))), tmp_path / "model", family="llama")
    return tmp_path / "model"


def same_file(folder: Path, numbers: dict[str, Tensor]) -> None:
    written = load_file(folder / SINGLE)
    assert written.keys() == numbers.keys()
    for name, tensor in numbers.items():
        assert written[name].dtype == tensor.dtype and torch.equal(written[name], tensor), name


@pytest.mark.parametrize(
    "name", [name if name in EVERYWHERE else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
)
def test_a_folder_is_loaded_and_exported_as_its_numbers(name: str, folder: Path, tmp_path: Path) -> None:
    numbers = low_bit(folder, METHODS[name])
    archetype.export(archetype.load(folder), tmp_path / "out")
    same_file(tmp_path / "out", numbers)
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert archetype.load_spec(folder) == archetype.load_spec(tmp_path / "out")


def test_a_family_that_is_not_registered_is_read_so_too(folder: Path, tmp_path: Path) -> None:
    numbers = low_bit(folder, METHODS["compressed int4 32"])
    configure(folder, model_type="mystery")
    with pytest.warns(UnknownFamily) as said:
        lm = archetype.load(folder)
    assert "quantization" not in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownFamily)
        archetype.export(lm, tmp_path / "out")
        assert total_parameters(archetype.load_spec(folder)) == sum(tensor.numel() for tensor in numbers.values())
    same_file(tmp_path / "out", numbers)
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())


def test_numbers_are_made_in_the_type_that_is_asked_for(folder: Path) -> None:
    """Not rounded to the file's type first."""
    for name in ("fp8 blocks", "awq"):
        with case(name):
            numbers = low_bit(folder, METHODS[name], torch.float32)
            configure(folder, dtype="bfloat16")
            state = archetype.load(folder, dtype="float32").model.state_dict()
            assert torch.equal(state["blocks.0.mixer.q.weight"], numbers["model.layers.0.self_attn.q_proj.weight"])
            save_file({name: tensor.contiguous() for name, tensor in numbers.items()}, folder / SINGLE)


def test_a_method_that_is_not_read_is_refused(folder: Path) -> None:
    configure(folder, quantization_config={"quant_method": "bitsandbytes"})
    message = f"{folder}: quantization_config: quant_method: 'bitsandbytes' is not supported; use one of fp8, "
    with pytest.raises(CheckpointError) as caught:
        archetype.load(folder)
    assert str(caught.value).startswith(message)


def test_low_bits_without_settings_are_refused(folder: Path) -> None:
    for name, said in (("fp8 blocks", "the model does not have this tensor"), ("gptq 4", "this tensor is missing")):
        low_bit(folder, METHODS[name])
        configure(folder, quantization_config=...)
        with case(name), pytest.raises(CheckpointError, match=said):
            archetype.load(folder)
        archetype.export(LanguageModel(SPEC, build(SPEC)), folder.parent / name, family="llama")
        (folder.parent / name / SINGLE).rename(folder / SINGLE)


PREDICTIONS = (
    {"eh_proj.weight": (64, 128), "enorm.weight": (64,), "hnorm.weight": (64,), "shared_head.norm.weight": (64,),
     "self_attn.q_proj.weight": (64, 64), "input_layernorm.weight": (64,)},
    {"mtp.fc.weight": (64, 128), "mtp.layers.0.self_attn.q_proj.weight": (64, 64), "mtp.norm.weight": (64,)},
    {"model.mtp_block.0.mlp.up_proj.weight": (96, 64), "model.mtp_emb_norm.0.weight": (64,)},
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(PREDICTIONS)))
@pytest.mark.parametrize("model_type", ["llama", "mystery"])
def test_prediction_layers_are_left_out_kept_and_written_back(
    number: int, model_type: str, folder: Path, tmp_path: Path
) -> None:
    shapes = PREDICTIONS[number]
    below = "model.layers.2." if "eh_proj.weight" in shapes else ""
    added = {f"{below}{name}": torch.randn(shape) for name, shape in shapes.items()}
    plain = load_file(folder / SINGLE)
    save_file(plain | added, folder / SINGLE)
    configure(folder, model_type=model_type)
    with pytest.warns((LeftOut, UnknownFamily)) as said:
        lm = archetype.load(folder)
    (message,) = {str(warning.message) for warning in said}
    assert f"{len(added)} tensors left out, such as {next(iter(lm.left_out))}" in message
    assert lm.spec.num_layers == 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lm.save(tmp_path / "run")
        for source, out in ((lm, "out"), (archetype.load(tmp_path / "run"), "again")):
            archetype.export(source, tmp_path / out)
            same_file(tmp_path / out, plain | added)


def test_prediction_layers_in_few_bits_are_written_back_as_numbers(folder: Path, tmp_path: Path) -> None:
    plain = load_file(folder / SINGLE)
    save_file(plain | {"model.layers.2.eh_proj.weight": torch.randn(64, 128)}, folder / SINGLE)
    numbers = low_bit(folder, METHODS["fp8 blocks"])
    with pytest.warns(LeftOut, match="1 tensors left out"):
        lm = archetype.load(folder)
    archetype.export(lm, tmp_path / "out")
    same_file(tmp_path / "out", numbers)
