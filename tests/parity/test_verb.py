"""The verb that users compare with: it agrees where the models do, and names the first module where they do not."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import typer

import archetype.errors
from archetype.apps.cli.convert import parity as verb
from archetype.convert import parity
from archetype.convert.hf_folder import read_model
from archetype.families import Family
from archetype.models.build import Model
from tests.helpers.published import lose, swap
from tests.helpers.weights import randomize
from tests.parity import test_decoders, test_encoders, test_pairs

CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "llama": ("LlamaForCausalLM", test_decoders.llama_config),
    "gpt2": ("GPT2LMHeadModel", test_decoders.gpt2_config),
    "gemma2": ("Gemma2ForCausalLM", test_decoders.gemma2),  # with scaled vectors and soft-capped logits
    "bloom": ("BloomForCausalLM", test_decoders.bloom),
    "mamba": ("MambaForCausalLM", test_decoders.mamba),
    "bert": ("BertForMaskedLM", test_encoders.bert),
    "longformer": ("LongformerForMaskedLM", test_encoders.longformer),
    "vit": ("ViTForImageClassification", test_encoders.vit),
    "t5": ("T5ForConditionalGeneration", test_pairs.t5),
    "marian": ("MarianMTModel", test_pairs.marian),
}


def written(name: str, folder: Path) -> Path:
    architecture, config = CASES[name]
    model = getattr(transformers, architecture)(config())
    positions = {key: tensor.clone() for key, tensor in model.state_dict().items() if "embed_positions" in key}
    randomize(model).load_state_dict(positions, strict=False)
    model.save_pretrained(folder)  # type: ignore[operator]
    return folder


def spoil_models(monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any], None]) -> None:
    """Have the verb read every model with this mistake in it."""

    def read_spoiled(*arguments: Any, **options: Any) -> tuple[Family, Model]:
        family, model = read_model(*arguments, **options)
        model = copy.deepcopy(model)
        spoil(model)
        return family, model

    monkeypatch.setattr(parity, "read_model", read_spoiled)


@pytest.mark.parametrize("name", CASES)
def test_the_same_weights_agree_in_every_module(name: str, tmp_path: Path) -> None:
    comparison = parity.compare(written(name, tmp_path))
    assert comparison.agrees and comparison.first is None
    assert comparison.kl is not None and comparison.kl < 1e-9 and comparison.top1 == 1.0
    if name != "vit":  # whose modules have other names than its files
        assert len(comparison.modules) >= 8
        assert len({module.module for module in comparison.modules}) == len(comparison.modules)


def test_equal_norms_of_a_fresh_model_are_paired_by_their_names(tmp_path: Path) -> None:
    """ViT's modules have other names than its files, and no weight tells one fresh norm from another."""
    torch.manual_seed(0)
    transformers.ViTForImageClassification(test_encoders.vit()).save_pretrained(tmp_path)
    comparison = parity.compare(tmp_path)
    assert comparison.agrees and comparison.first is None
    norms = {row.module: row.reference for row in comparison.modules if row.module.endswith("norm")}
    assert len(norms) == 2 * test_encoders.vit().num_hidden_layers + 1
    for module, reference in norms.items():
        place = {"mixer_norm": "before", "feedforward_norm": "after"}.get(module.rpartition(".")[2], "norm")
        assert reference.endswith(place), (module, reference)


def test_what_is_shown_as_beyond_is_not_called_agreement() -> None:
    row = parity.ModuleDifference("blocks.0.mixer", "h.0.attn", 1e-3)
    assert not parity.Parity("float32", 1e-5, [row], [], 1e-7, None, None).agrees
    assert parity.Parity("float32", 1e-2, [row], [], 1e-7, None, None).agrees


@pytest.mark.parametrize(
    ("name", "spoil", "first"),
    [
        ("llama", swap("blocks.0.mixer_norm.weight", "blocks.0.feedforward_norm.weight"), "blocks.0.mixer_norm"),
        ("llama", swap("blocks.1.mixer.k.weight", "blocks.0.mixer.k.weight"), "blocks.0.mixer.k"),
        ("gpt2", lose("blocks.1.mixer.v.bias"), "blocks.1.mixer.q, blocks.1.mixer.k, blocks.1.mixer.v"),
        ("bloom", lose("blocks.1.mixer.v.bias"), "blocks.1.mixer.q, blocks.1.mixer.k, blocks.1.mixer.v"),
        ("bert", lose("blocks.1.feedforward.up.bias"), "blocks.1.feedforward.up"),
        ("t5", swap("decoder.blocks.1.mixer_norm.weight", "decoder.blocks.1.cross_norm.weight"),
         "decoder.blocks.1.mixer_norm"),
    ],
)  # fmt: skip
def test_the_first_module_that_diverges_is_named(
    name: str, spoil: Callable[[Any], None], first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_models(monkeypatch, spoil)
    comparison = parity.compare(written(name, tmp_path))
    assert not comparison.agrees
    assert comparison.first is not None and comparison.first.module == first


def test_a_difference_is_shown_and_the_status_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil_models(monkeypatch, lose("blocks.1.mixer.q.weight"))
    with pytest.raises(typer.Exit) as caught:
        verb(written("llama", tmp_path), dtype=["float32"])
    assert caught.value.exit_code == 1
    shown = capsys.readouterr().out
    assert "blocks.1.mixer.q" in shown and "<- exceeds the tolerance" in shown
    assert "first above 1e-05: blocks.1.mixer.q (model.layers.1.self_attn.q_proj)" in shown


def test_bfloat16_is_compared_in_its_own_type(tmp_path: Path) -> None:
    comparison = parity.compare(written("llama", tmp_path), "bfloat16")
    assert comparison.dtype == "bfloat16" and comparison.tolerance == 0.05
    assert 1e-4 < comparison.difference < 0.05


def test_a_text_needs_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(archetype.errors.DataError, match="tokenizer: the model's folder has no tokenizer; omit --text"):
        parity.compare(written("llama", tmp_path), text="a")
