"""`evaluate` says of a model what it computes itself, by the measures of sacrebleu and of plain sums."""

import json
import math
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu
import torch
from PIL import Image
from typer.testing import CliRunner

import archetype
from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.api.loading import build_untrained
from archetype.apps.cli.main import app
from archetype.convert.image_processor import square_pictures
from archetype.distribution import install_command
from archetype.errors import ArchetypeError
from archetype.families.bert import bert
from archetype.families.original_transformer import transformer
from archetype.families.vit import vit
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from tests.helpers.weights import randomize

TEXT = "the cat sat on the mat and the other cat sat there"
SOURCES = ["the cat", "sat on the mat there", "and", "the other cat sat", "on"]
TARGETS = ["tac eht", "there sat", "dna", "cat other", "the mat there"]


@cache
def translator() -> LanguageModel:
    """A small transformer with random weights that writes letters of the text alone."""
    spec = transformer(num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=280, context_length=30)
    lm = LanguageModel(spec, randomize(build(spec)), train_tokenizer("byte_bpe", TEXT, 280))
    assert lm.tokenizer is not None
    others = [id for id in range(280) if lm.tokenizer.decode([id]) not in TEXT]
    with torch.no_grad():
        for parameter in lm.model.parameters():
            parameter[others if len(parameter) == 280 else []] = 0.0  # their logits are 0, and others above
    return lm


def printed(*arguments: Any) -> str:
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_translations_are_scored_as_by_sacrebleu_and_targets_by_the_plain_sum(tmp_path: Path) -> None:
    lm = translator()
    lm.save(tmp_path / "model")
    (tmp_path / "source.txt").write_text("\n".join(SOURCES))
    (tmp_path / "target.txt").write_text("\n".join(TARGETS))
    pairs = [f"--{side}={tmp_path / side}.txt" for side in ("source", "target")]
    score = json.loads(printed(tmp_path / "model", *pairs, "--num-beams", 1, "--json"))
    translations = lm.translate(SOURCES, num_beams=1)
    assert score["bleu"] == sacrebleu.corpus_bleu(translations, [TARGETS]).score
    assert score["chrf"] == sacrebleu.corpus_chrf(translations, [TARGETS]).score > 0
    assert "tok:13a" in score["signature"]
    assert lm.tokenizer is not None
    (end,), total, right, count = lm.tokenizer.eos, 0.0, 0, 0
    with torch.no_grad():
        for source, target in zip(SOURCES, TARGETS, strict=True):
            ids = [end, *lm.tokenizer.encode(target), end]
            read = torch.tensor([[*lm.tokenizer.encode(source), end]])
            logits = lm.model(torch.tensor([ids[:-1]]), source=read).logits[0]
            total += float(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum"))
            right += int((logits.argmax(-1) == torch.tensor(ids[1:])).sum())
            count += len(ids) - 1
    assert score["loss"] == pytest.approx(total / count, rel=1e-5) and score["num_tokens"] == count
    assert score["accuracy"] == right / count and score["perplexity"] == pytest.approx(math.exp(score["loss"]))
    lines = [json.dumps({"source": s, "target": t}) for s, t in zip(SOURCES, TARGETS, strict=True)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(lines))
    assert archetype.evaluate(lm, data=tmp_path / "pairs.jsonl", num_beams=1).record() == score
    assert f"{score['chrf']:.2f}" in printed(tmp_path / "model", "--data", tmp_path / "pairs.jsonl", "--num-beams", 1)


def test_a_pair_too_long_is_named_by_its_line_with_empty_pairs_counted(tmp_path: Path) -> None:
    sides = {"source": ["", "b", "", "a"], "target": ["x", "y", "", "z" * 40]}
    for side, lines in sides.items():
        (tmp_path / side).write_text("\n".join(lines))
    (tmp_path / "pairs.csv").write_text(f'source,target\n" ",x\n"b\nb",y\n\na,{"z" * 40}\n')
    cause = "has a source or target of 41 tokens, but the model's context is 30; split it into sentences"
    for data, place in (
        ((tmp_path / "source", tmp_path / "target"), f"{tmp_path}/source, {tmp_path}/target: line 4"),
        (tmp_path / "pairs.csv", "pairs.csv: line 6"),
    ):
        with pytest.raises(ArchetypeError) as caught:
            translator().evaluate(data)
        assert str(caught.value).endswith(f"{place}: {cause}")


def test_classes_of_images_are_reported_from_files_and_folders(tmp_path: Path) -> None:
    spec = vit(num_layers=1, d_model=8, num_heads=2, patch_size=2, image_size=4, num_classes=3, num_channels=1)
    lm = LanguageModel(spec, randomize(build(spec)), labels=("bird", "cat", "dog"),
                       image_processor=square_pictures(1, 4).contents())  # fmt: skip
    lm.save(tmp_path / "vit")
    pixels, labels = np.random.default_rng(0).integers(256, size=(30, 4, 4), dtype=np.uint8), np.arange(30) % 3
    np.savez(tmp_path / "images.npz", images=pixels / 255, labels=labels)
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        if lm.labels[label] != "bird":  # a folder may lack a class
            (tmp_path / "folder" / lm.labels[label]).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(tmp_path / "folder" / lm.labels[label] / f"{number}.png")
    probabilities = lm.classify(torch.from_numpy(pixels[:, None] / np.float32(255)))
    best, some = probabilities.argmax(1).numpy(), labels != 0
    report = json.loads(printed(tmp_path / "vit", "--data", tmp_path / "images.npz", "--json"))
    assert report["accuracy"] == pytest.approx((best == labels).mean())
    assert report["confusion"]["cat"].get("dog", 0) == ((labels == 1) & (best == 2)).sum()
    assert report["loss"] == pytest.approx(-np.log(probabilities.numpy()[np.arange(30), labels]).mean(), rel=1e-4)
    report = json.loads(printed(tmp_path / "vit", "--images", tmp_path / "folder", "--json"))
    assert report["accuracy"] == pytest.approx((best == labels)[some].mean())
    assert report["classes"]["bird"]["support"] == 0 < report["classes"]["dog"]["support"]
    np.savez(tmp_path / "more.npz", images=pixels, labels=labels + 1)
    with pytest.raises(ArchetypeError, match=r"'3' is not one of the model's classes, bird, cat, dog; name"):
        lm.evaluate(tmp_path / "more.npz")


def test_a_text_is_scored_with_its_accuracy_and_cut_where_it_has_a_class(tmp_path: Path) -> None:
    encoder = bert(num_layers=1, d_model=8, num_heads=2, vocab_size=260, context_length=12, pooler=True,
                   head=spec.ClassificationHead(num_classes=2))  # fmt: skip
    lm = LanguageModel(encoder, randomize(build(encoder)), train_tokenizer("bytes", "", None))
    (tmp_path / "texts.csv").write_text(f"text,label\nthe cat,0\n{'a long text' * 3},1\n")
    report = lm.evaluate(tmp_path / "texts.csv")
    assert report.macro.support == 2 and "texts: 1 truncated to 12 tokens" in str(report)
    assert report.accuracy == lm.classify(["the cat", "a long texta"]).argmax(1).eq(torch.tensor([0, 1])).float().mean()
    (tmp_path / "texts.csv").write_text("text,label\nthe cat,good\n")
    with pytest.raises(ArchetypeError, match="'good' is not one of the model's classes, 0, 1; name the classes as"):
        lm.evaluate(tmp_path / "texts.csv")
    with pytest.raises(ArchetypeError, match="pairs and beam search need an encoder-decoder"):
        archetype.evaluate(lm, data=tmp_path / "texts.csv", num_beams=2)


def test_what_cannot_be_evaluated_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = build_untrained("llama-tiny")
    with pytest.raises(
        ArchetypeError, match="the model has no classes, values or targets; evaluate the model on plain"
    ):
        archetype.evaluate(lm, data=tmp_path / "texts.csv")
    for arguments, message in (
        (["--text", "a", "--data", "b"], "evaluate: accepts exactly one kind of data; pass FILE, --text, --data"),
        (["--data", "a", "--stride", "4"], "--stride: has no effect without --text or FILE; add --text or"),
        (["--text", "a", "--num-beams", "4"], "--num-beams: has no effect without --source or --data"),
        ([], "evaluate: accepts exactly one kind of data"),
        (["--source", "a"], "--source: has no effect without --target"),
        (["--data", "b", "--num-beams", "0"], "num_beams: 0 is too small"),
    ):  # fmt: skip
        with pytest.raises(ArchetypeError, match=message):
            printed(tmp_path, *arguments)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    (tmp_path / "pairs.csv").write_text("source,target\na,b\n")
    with pytest.raises(ArchetypeError, match=re.escape(f"sacrebleu: is not installed; {install_command('sacrebleu')}")):
        translator().evaluate(tmp_path / "pairs.csv")
