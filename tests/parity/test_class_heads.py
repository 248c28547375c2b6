"""Decoders with a head for classes: the logits of transformers' *ForSequenceClassification, both ways."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import archetype
from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.errors import CheckpointError, SpecError
from archetype.models.decoder.module import Decoder
from archetype.tokenizers import train_tokenizer
from tests.helpers.weights import distance, randomize
from tests.helpers.zoo import SPECIAL, TASKS, write_small

PRESETS = {
    "llama-tiny": "LlamaForSequenceClassification",
    "gpt2-tiny": "GPT2ForSequenceClassification",
    "gemma3-270m": "Gemma3TextForSequenceClassification",
}
SIZES = [f"embedding.scale={32**0.5}", "d_model=32", "vocab_size=64", "layers[*].feedforward.d_ff=48"]


@pytest.mark.parametrize("preset", PRESETS)
def test_the_classes_of_a_decoder_are_those_of_transformers(preset: str, tmp_path: Path) -> None:
    source: Any = archetype.load_spec(preset)
    source = source.replace(layers=source.layers[:2], head=spec.ClassificationHead(num_classes=3, bias=False))
    source = source if preset.endswith("tiny") else spec.assign(source, SIZES)
    model = randomize(archetype.build(source))
    assert isinstance(model, Decoder)
    archetype.export(
        LanguageModel(model.spec, model, labels=("a", "b", "c"), special={"pad_token_id": 0}), tmp_path / "hf"
    )
    theirs = getattr(transformers, PRESETS[preset]).from_pretrained(tmp_path / "hf").eval()
    assert theirs.config.id2label == {0: "a", 1: "b", 2: "c"}
    tokens, counts = torch.arange(1, 41).view(2, 20), torch.tensor([20, 13])
    tokens[1, 13:] = 0
    again = archetype.load(tmp_path / "hf")
    with torch.inference_mode():
        expected = theirs(input_ids=tokens, attention_mask=(tokens > 0).long()).logits
        for one in (model, again.model):
            assert distance(one(tokens, num_tokens=counts).logits, expected) < 1e-5
        assert distance(model(tokens, num_tokens=counts, last_only=True).logits, expected) < 1e-5
    assert again.labels == ("a", "b", "c") and again.spec.head == source.head
    with pytest.raises(SpecError, match="cannot do this; it can embed or classify texts"):
        again.generate("text")


@pytest.mark.parametrize("format", ["hf", "archetype-hf"])
def test_classes_that_do_not_exclude_each_other_are_refused(format: str, tmp_path: Path) -> None:
    """Transformers' pipeline gives each its own sigmoid, whose sum is not 1; only its config.json says so."""
    source: Any = archetype.load_spec("llama-tiny")
    source = source.replace(head=spec.ClassificationHead(num_classes=3, bias=False))
    archetype.export(LanguageModel(source, archetype.build(source)), tmp_path / "hf", format=format)
    file = tmp_path / "hf" / "config.json"
    config = json.loads(file.read_text())
    for problem in ("multi_label_classification", "regression"):
        file.write_text(json.dumps(config | {"problem_type": problem}))
        with pytest.raises(CheckpointError, match="problem_type: only single_label_classification is supported for 3"):
            archetype.load(tmp_path / "hf")
    file.write_text(json.dumps(config | {"problem_type": "single_label_classification"}))
    assert archetype.load(tmp_path / "hf").spec.head == source.head


def test_a_format_without_such_a_head_is_refused() -> None:
    from archetype.families import FAMILIES

    mamba: Any = archetype.load_spec("mamba-130m")
    with pytest.raises(CheckpointError, match="head: the mamba format has no such classification head"):
        FAMILIES["mamba"].format.config_for(mamba.replace(head=spec.ClassificationHead(num_classes=2, bias=False)))


@pytest.mark.parametrize("kind", ["bart", "t5"])
def test_a_pair_names_the_class_of_a_text_as_transformers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its target is the source, one token later; its classes are read where the source ends."""

    class Ended(type(train_tokenizer("bytes", "", None))):  # type: ignore[misc]
        def add_special_tokens(self, ids: Sequence[int]) -> list[int]:
            return [*ids, 2]

    monkeypatch.setitem(SPECIAL, kind, {"vocab_size": 300, "decoder_start_token_id": 0})
    write_small(kind, tmp_path / "theirs", TASKS["texts"])
    lm = replace(archetype.load(tmp_path / "theirs"), tokenizer=Ended())
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "theirs").eval()
    for text in ("a few words", "b"):
        ids = torch.tensor([lm.tokenizer.add_special_tokens(lm.tokenizer.encode(text))])  # type: ignore[union-attr]
        target = torch.cat((torch.tensor([[0]]), ids[:, :-1]), 1)
        with torch.no_grad():
            expected = theirs(input_ids=ids, decoder_input_ids=target).logits.softmax(-1)
        assert distance(lm.classify(text), expected) < 1e-5
    with pytest.raises(SpecError, match="with head classification cannot do this; it can classify texts"):
        lm.translate("a")
    with pytest.raises(CheckpointError, match=r"only kind (language_model|rms) can be written, not"):
        archetype.export(lm, tmp_path / "gguf", "t5", format="gguf")
