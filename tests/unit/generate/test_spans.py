"""Answers that are spans of a text, by a question: those of transformers' logits, and refusals."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import archetype
from archetype.api.language_model import LanguageModel
from archetype.apps.cli.encoder import answer
from archetype.errors import DataError, SpecError
from archetype.tokenizers import open_tokenizer, train_tokenizer
from tests.helpers.published import WRONG
from tests.helpers.zoo import TASKS, write_small

QUESTION, TEXT = "who ran?", "Once a CAT ran home, and slept all day at home."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with a head for spans, and a tokenizer that puts a question before a text."""
    folder = tmp_path_factory.mktemp("spans")
    write_small("bert", folder, TASKS["spans"])
    words = ["[UNK]", "[CLS]", "[SEP]", "who", "ran", "?", "once", "a", "cat", "home", ",", "and", "slept", "all", "."]
    backend = Tokenizer(models.WordLevel({word: id for id, word in enumerate(words)}, "[UNK]"))
    backend.normalizer, backend.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    backend.add_special_tokens(["[UNK]", "[CLS]", "[SEP]"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder


def test_the_likeliest_span_of_transformers_logits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(folder).eval()
    row: Any = tokenizer(QUESTION, TEXT, return_tensors="pt", return_offsets_mapping=True, return_token_type_ids=True)
    offsets, places = row.pop("offset_mapping")[0], [n for n, one in enumerate(row.sequence_ids(0)) if one == 1]
    with torch.no_grad():
        output = theirs(**row)
    begins, ends = (logits[0][places].softmax(0) for logits in (output.start_logits, output.end_logits))
    for longest in (1, 3, 15):
        best, first, last = max(
            (float(begins[i] * ends[j]), i, j) for i in range(len(places)) for j in range(i, len(places))
            if j < i + longest
        )  # fmt: skip
        start, end = int(offsets[places[first]][0]), int(offsets[places[last]][1])
        span = archetype.load(folder).answer(QUESTION, TEXT, longest)
        assert (span.start, span.end, span.text) == (start, end, TEXT[start:end])
        assert abs(span.probability - best) < WRONG * best
    answer(folder, QUESTION, TEXT, 15, as_json=True)
    assert json.loads(capsys.readouterr().out)["answer"]["text"] == span.text
    answer(folder, QUESTION, TEXT, device="cpu")
    assert capsys.readouterr().out.startswith(span.text)


def test_what_cannot_answer_is_refused(folder: Path) -> None:
    lm = archetype.load(folder)
    with pytest.raises(DataError, match=r"text: 8[0-9] tokens with the question, but the model's context is 64"):
        lm.answer(QUESTION, "cat " * 75)
    with pytest.raises(DataError, match="text: has no token"):
        lm.answer(QUESTION, " ")
    with pytest.raises(DataError, match="a tokenizer of kind bytes does not define how to encode a pair"):
        replace(lm, tokenizer=train_tokenizer("bytes", "", None)).answer(QUESTION, TEXT)
    other = archetype.load_spec("bert-tiny")
    without = LanguageModel(other, archetype.build(other), open_tokenizer(folder))
    with pytest.raises(SpecError, match="head: a head of kind masked_language_model does not mark answer spans"):
        without.answer(QUESTION, TEXT)
