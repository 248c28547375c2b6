"""An export through transformers' Auto classes: the same ids and texts of every kind of tokenizer, the same pixels."""

import io
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import sentencepiece
import torch
from transformers import AutoImageProcessor, AutoModelForImageClassification, AutoTokenizer

import archetype
from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.data.images import read_pictures
from archetype.tokenizers import Tokenizer, train_tokenizer
from archetype.tokenizers.sentencepiece import SentencePieceTokenizer
from tests.helpers.cases import case
from tests.helpers.examples import every
from tests.helpers.published import EXACT
from tests.helpers.weights import distance

TEXT = """Once upon a time the small cat slept on the warm stone in front of the house, where it sleeps every day.
Who has taken the bread that was lying on the table this morning? It was the neighbour's dog!
Élodie walked along the café's river until it was dark; then she went home (slowly) at 9.30.
"""


def pieces(kind: str, **settings: Any) -> SentencePieceTokenizer:
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.splitlines()), model_writer=file, vocab_size=400 if settings.get("byte_fallback")
        else 130, model_type=kind, hard_vocab_limit=False, minloglevel=2, **settings,
    )  # fmt: skip
    return SentencePieceTokenizer(file.getvalue())


RAW = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}  # as Llama 2 has them
TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: train_tokenizer("bytes", TEXT, None),
    "characters": lambda: train_tokenizer("characters", TEXT, None),
    "words": lambda: train_tokenizer("words", TEXT, 40),
    "bpe": lambda: train_tokenizer("bpe", TEXT, 90),
    "byte_bpe": lambda: train_tokenizer("byte_bpe", TEXT, 300),
    "lowercase byte_bpe": lambda: train_tokenizer("byte_bpe", TEXT, 300, lowercase=True),
    "sentencepiece bpe": lambda: pieces("bpe"),
    "sentencepiece bpe as Llama": lambda: pieces("bpe", byte_fallback=True, **RAW),
    "sentencepiece bpe without prefix": lambda: pieces("bpe", add_dummy_prefix=False, bos_id=-1, **RAW),
    "sentencepiece unigram": lambda: pieces("unigram"),
    "sentencepiece unigram with bytes": lambda: pieces("unigram", byte_fallback=True, **RAW),
}
ODD = (" ", "  ", "\t", "\n", "\n\n", "ﬁne", "ｃａｔ", "cafe\u0301", "猫", "🙂", "zzz", "9", "'", "▁", "Á")
WORDS = [*TEXT.split(), *ODD]


def fuzzed(known: set[str] | None) -> list[str]:
    """Texts of words, marks and spaces in any order; of known characters alone where a tokenizer has no others."""
    draw = random.Random(0)
    texts = ["Once", " Once upon", "", " ", "the  small", TEXT]
    texts += ["".join(draw.choice([" ", "", "  "]) + draw.choice(WORDS) for _ in range(12)) for _ in range(60)]
    return [text if known is None else "".join(c for c in text if c in known) for text in texts]


@pytest.mark.parametrize("name", every(4, TOKENIZERS))
def test_transformers_reads_the_tokenizer_of_an_export_as_it_is(name: str, tmp_path: Path) -> None:
    tokenizer = TOKENIZERS[name]()
    texts = fuzzed(set(TEXT) if name in ("characters", "bpe") else None)
    # each of these families has a tokenizer of its own there, which must not take its place
    for family in ("llama", "gpt2", "gemma"):
        model = spec.assign(archetype.load_spec(f"{family}-tiny"), [f"vocab_size={tokenizer.vocab_size}"])
        folder = tmp_path / family
        archetype.export(LanguageModel(model, archetype.build(model), tokenizer), folder)
        hf = AutoTokenizer.from_pretrained(folder)
        reopened = archetype.load(folder).tokenizer
        assert reopened is not None
        for text in texts:
            with case(family, text):
                ids = tokenizer.encode(text)
                assert hf(text, add_special_tokens=False)["input_ids"] == ids
                assert reopened.encode(text) == ids
                if name != "words":  # whose rule for spaces beside marks no decoder there has
                    assert hf.decode(ids, clean_up_tokenization_spaces=False) == tokenizer.decode(ids)
        if tokenizer.adds_bos:
            assert hf("Once")["input_ids"] == [tokenizer.bos, *tokenizer.encode("Once")]


def test_transformers_gives_a_vision_transformer_the_pixels_that_it_is_given_here(tmp_path: Path) -> None:
    model = archetype.load_spec("vit-tiny")
    lm = LanguageModel(model, archetype.build(model))
    archetype.export(lm, tmp_path / "out")
    pictures = numpy.random.default_rng(0).uniform(-3, 300, (2, model.num_channels, 8, 8)).astype("float32")
    numpy.savez(tmp_path / "pictures.npz", images=pictures)
    processor = AutoImageProcessor.from_pretrained(tmp_path / "out")
    prepared = processor([*pictures], return_tensors="pt", input_data_format="channels_first")["pixel_values"]
    assert torch.equal(prepared, torch.from_numpy(read_pictures(tmp_path / "pictures.npz")))
    hf = AutoModelForImageClassification.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        assert distance(lm.model.eval()(prepared).logits, hf(prepared).logits) < EXACT


def test_what_a_folder_says_of_pictures_goes_through_a_run(tmp_path: Path) -> None:
    model = archetype.load_spec("vit-tiny")
    archetype.export(LanguageModel(model, archetype.build(model)), tmp_path / "out")
    file = "preprocessor_config.json"
    said = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "image_mean": [0.5], "image_std": [0.5]}
    (tmp_path / "out" / file).write_text(json.dumps(said))
    archetype.load(tmp_path / "out").save(tmp_path / "run")
    archetype.export(archetype.load(tmp_path / "run"), tmp_path / "again")
    assert json.loads((tmp_path / "again" / file).read_text()) == said
