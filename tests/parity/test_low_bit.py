"""Folders in few bits, read by transformers with its own dequantization and by Archetype."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Mxfp4Config

import archetype
from archetype.api.language_model import LanguageModel
from archetype.convert.apply import export_tensors, shapes_of
from archetype.families.rules import for_model
from archetype.io.weight_files import SINGLE
from archetype.models.build import build
from tests.helpers.low_bit import METHODS, drawn, fp8_blocks
from tests.helpers.published import EXACT, text
from tests.helpers.weights import distance, randomize

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 32]}
BLOCKS = fp8_blocks((16, 32))


def exported(preset: str, folder: Path, **changes: Any) -> Path:
    spec = archetype.load_spec(preset).replace(vocab_size=61, context_length=32, **changes)
    model = randomize(build(spec)).bfloat16()
    archetype.export(LanguageModel(spec, model), folder, family=preset.removesuffix("-tiny").replace("-", "_"))
    return folder


def store(folder: Path, settings: dict[str, Any], stored: dict[str, Tensor], instead: set[str]) -> None:
    others = {name: tensor for name, tensor in load_file(folder / SINGLE).items() if name not in instead}
    save_file(
        others | {name: tensor.contiguous() for name, tensor in stored.items()}, folder / SINGLE, {"format": "pt"}
    )
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": settings}))


def same(folder: Path, reference: Any) -> None:
    """Every tensor to the bit, and the logits."""
    lm = archetype.load(folder)
    assert lm.family is not None
    rules = for_model(lm.family.format.rules_for(lm.spec), lm.spec.num_layers, shapes_of(lm.model))
    expected = reference.state_dict()
    tensors = dict(export_tensors(lm.model, rules))
    for name, tensor in tensors.items():
        if name in expected:
            assert tensor.dtype == expected[name].dtype and torch.equal(tensor, expected[name]), name
    assert sum(name in expected for name in tensors) > len(tensors) / 2
    tokens = text(12)
    with torch.no_grad():
        logits = lm.model.float()(tokens).logits
        assert distance(logits, reference.eval().float()(tokens).logits) < EXACT


def test_fp8_of_a_dense_model(tmp_path: Path) -> None:
    folder = exported("llama-tiny", tmp_path / "llama")
    stored, names = {}, set()
    for seed, (name, tensor) in enumerate(load_file(folder / SINGLE).items()):
        if tensor.ndim == 2 and ".layers." in name and not any(size % 32 for size in tensor.shape):
            parts, _ = BLOCKS(torch.Generator().manual_seed(seed), *tensor.shape, torch.bfloat16)
            stored |= {name.removesuffix(".weight") + end: part for end, part in parts.items()}
            names.add(name)
    assert len(names) >= 8
    others = [name.removesuffix(".weight") for name in load_file(folder / SINGLE) if name not in names]
    store(folder, FP8 | {"modules_to_not_convert": others}, stored, names)
    same(folder, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16))


def test_mxfp4_of_gpt_oss(tmp_path: Path) -> None:
    folder = exported("gpt-oss-tiny", tmp_path / "gpt_oss")
    stored, names = {}, set()
    for seed, (name, tensor) in enumerate(load_file(folder / SINGLE).items()):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = tensor.shape
            g = torch.Generator().manual_seed(seed)
            stored[f"{name}_blocks"] = drawn(g, 255, experts, outputs, inputs // 32, 16).to(torch.uint8)
            stored[f"{name}_scales"] = (drawn(g, 12, experts, outputs, inputs // 32) + 115).to(torch.uint8)
            names.add(name)
    assert len(names) == 4
    store(folder, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, stored, names)
    settings = Mxfp4Config(dequantize=True)
    same(folder, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, quantization_config=settings))


def test_another_library_reads_other_numbers_where_a_scale_differs(tmp_path: Path) -> None:
    """The control: one block's scale is doubled."""
    stored, numbers = METHODS["fp8 small blocks"].make(torch.Generator().manual_seed(1), 32, 64, torch.bfloat16)
    stored[".weight_scale_inv"][0, 0] *= 2
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    changed = Fp8Dequantize(None)._dequantize_one(stored[".weight"], stored[".weight_scale_inv"], torch.bfloat16)
    assert (changed != numbers).sum() > 400
