"""The tokens that start and end a text count in a loss once, and where they belong: computed text by text, in loops."""

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from archetype.data.conversations import conversation_rows
from archetype.data.pairs import tokenized
from archetype.data.shards import is_held_out
from archetype.families.llama import llama
from archetype.families.original_transformer import transformer
from archetype.models.build import build
from archetype.tokenizers import Tokenizer, train_tokenizer
from archetype.tokenizers.added_tokens import add_tokens
from archetype.tokenizers.chat_template import ChatTemplate
from archetype.training.evaluate import evaluate
from archetype.training.objectives.sequence_to_sequence import SequenceToSequenceObjective
from archetype.training.recipe import Recipe
from archetype.training.resolve import build_objective
from tests.helpers.cases import case
from tests.helpers.recipes import WORDS
from tests.helpers.weights import randomize

LENGTH = 1024  # tokens: all that is held out is one row
SIZES: dict[str, Any] = dict(num_layers=1, d_model=16, num_heads=2, d_ff=24, vocab_size=290)


def tokenizer_of(adds_bos: bool) -> Tokenizer:
    """A byte-level BPE with two tokens that end a text, of which the first is written."""
    tokenizer = add_tokens(train_tokenizer("byte_bpe", " ".join(WORDS * 9), 280), ("<start>", "<end>", "<turn>"))
    end = tokenizer.special_tokens["<end>"]
    tokenizer.bos, tokenizer.adds_bos = tokenizer.special_tokens["<start>"], adds_bos
    tokenizer.eos = (end, tokenizer.special_tokens["<turn>"])
    return tokenizer


@torch.no_grad()
def nats(model: Any, ids: Sequence[int], first: int = 1, source: list[int] | None = None) -> list[float]:
    """Of each token from `first` on, given those before."""
    tokens = torch.tensor([[*ids]])
    inputs = {"tokens": tokens} if source is None else {"source": torch.tensor([source]), "target": tokens}
    logp = model(**inputs).logits[0].double().log_softmax(-1)
    return [-float(logp[place - 1, ids[place]]) for place in range(first, len(ids))]


@pytest.mark.parametrize("adds_bos", [False, True])
def test_documents(adds_bos: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends with the first token that ends a text; what starts one is predicted of nothing where none is seen."""
    monkeypatch.setenv("ARCHETYPE_CACHE", str(tmp_path / "cache"))
    drawn = random.Random(1)
    texts = [" ".join(drawn.choice(WORDS) for _ in range(drawn.randint(1, 12))) for _ in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    held_out, tokenizer = [text for text in texts if is_held_out(text, 0.2)], tokenizer_of(adds_bos)
    start = [tokenizer.bos] if adds_bos and tokenizer.bos is not None else []
    documents = [[*start, *tokenizer.encode(text), tokenizer.eos[0]] for text in held_out]
    model_spec = llama(**SIZES, context_length=LENGTH)
    model = randomize(build(model_spec)).eval()
    for separate in (True, False):
        data = {"kind": "documents", "text": [str(tmp_path / "a.jsonl")], "validation_fraction": 0.2,
                "cross_document_attention": not separate}  # fmt: skip
        fields = {"spec": model_spec.dump(), "data": data, "batch_size": 2, "steps": 2, "dtype": "float32"}
        objective = build_objective(Recipe.parse(fields), model_spec, tokenizer, {})
        evaluation = evaluate(model, objective, "float32")
        stream = objective.validation_batch(0)[0][0, : 1 + sum(map(len, documents))].tolist()
        losses = [loss for ids in documents for loss in nats(model, ids)] if separate else nats(model, stream)
        with case(separate, adds_bos):
            # in an order of its own, behind the end of the last one
            assert stream[0] == tokenizer.eos[0] and parts(stream[1:], tokenizer.eos[0]) == sorted(documents)
            assert evaluation is not None and evaluation.count == len(losses)
            assert evaluation.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)
            num_bytes = sum(len(text.encode()) for text in held_out)
            assert evaluation.bits_per_byte == pytest.approx(sum(losses) / math.log(2) / num_bytes, rel=1e-5)


def parts(stream: list[int], end: int) -> list[list[int]]:
    """The documents of a stream, sorted."""
    documents: list[list[int]] = [[]]
    for id in stream:
        documents[-1].append(id)
        documents += [[]] if id == end else []
    return sorted(documents[:-1])


def test_pairs_of_texts() -> None:
    """A source ends, a target starts and ends with the first token that ends a text; that end is predicted too."""
    tokenizer, drawn = tokenizer_of(adds_bos=True), random.Random(2)
    sources, targets = ([" ".join(drawn.sample(WORDS, drawn.randint(1, 6))) for _ in range(9)] for _ in range(2))
    end, losses = tokenizer.eos[0], []
    model = randomize(build(transformer(**SIZES, context_length=64))).eval()
    for source, target in zip(sources, targets, strict=True):
        losses += nats(model, [end, *tokenizer.encode(target), end], source=[*tokenizer.encode(source), end])
    pairs = tokenized(sources, targets, tokenizer, 64)
    evaluation = evaluate(model, SequenceToSequenceObjective(pairs, pairs, "", 4, 0, 0.1), "float32")
    assert evaluation is not None and evaluation.count == len(losses)
    assert evaluation.loss == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_pairs_with_a_side_that_is_too_long_are_left_out() -> None:
    """Whichever side it is; the longest that fit have one token less than there is room, for the end."""
    tokenizer = tokenizer_of(adds_bos=False)
    short, long = "the", " ".join(WORDS)
    room = len(tokenizer.encode(long)) + 1
    for sources, targets, longest, count in (
        ([short, long], [long, short], room, 2), ([short, long], [long, short], room - 1, 0),
        ([short], [short], room - 1, 1),
    ):  # fmt: skip
        pairs = tokenized(sources, targets, tokenizer, longest)
        assert len(pairs) == count and all(len(side) <= longest + 1 for side in (*pairs.sources, *pairs.targets))


@pytest.mark.parametrize("adds_bos", [False, True])
def test_preferences(adds_bos: bool, tmp_path: Path) -> None:
    """Each completion of a prompt ends with the first token that ends a text, which counts as its own."""
    tokenizer, drawn = tokenizer_of(adds_bos), random.Random(4)
    records = [{name: " ".join(drawn.sample(WORDS, 3)) for name in ("prompt", "chosen", "rejected")} for _ in range(20)]
    for record in records:
        record["prompt"] += " "
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    model_spec = llama(**SIZES, context_length=64)
    data = {"kind": "preferences", "examples": [str(tmp_path / "pairs.jsonl")], "validation_fraction": 0.3}
    fields = {"spec": model_spec.dump(), "data": data, "batch_size": 2, "steps": 2, "objective": {"kind": "dpo"}}
    recipe = Recipe.parse(fields)
    objective: Any = build_objective(recipe, model_spec, tokenizer, recipe.data.read_texts(tmp_path))
    rows = [row for pair in (*objective.training, *objective.validation) for row in pair]
    texts = {(record["prompt"], record[name]) for record in records for name in ("chosen", "rejected")}
    expected = {}
    for prompt, completion in texts:
        whole, before = tokenizer.encode(prompt + completion), len(tokenizer.encode(prompt))
        if tokenizer.encode(prompt + completion)[:before] != tokenizer.encode(prompt):
            whole = [*tokenizer.encode(prompt), *tokenizer.encode(completion)]
        start = [tokenizer.bos] if adds_bos else []
        ids = (*start, *whole, tokenizer.eos[0])
        expected[ids] = [place >= len(start) + before for place in range(len(ids))]
    assert {tuple(ids.tolist()): marks.tolist() for ids, marks in rows} == expected


@pytest.mark.parametrize(
    ("behind", "learned"),
    [("<turn>\n", "<turn>"), ("<turn>", "<turn>"), ("\n", "\n"), ("<turn>\n<start>", "<turn>\n<start>"), ("", "")],
)
def test_answers_of_a_conversation(behind: str, learned: str) -> None:
    """An answer is learned with the special token behind it, and without what the template writes behind that."""
    tokenizer = tokenizer_of(adds_bos=False)
    source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}" + behind.replace("\n", "{{ '\n' }}")
    template = ChatTemplate(source + "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}", {})
    turns = [("user", "the model"), ("assistant", "reads a token"), ("user", "and"), ("assistant", "says what comes")]
    messages = [{"role": role, "content": content} for role, content in turns]
    [row] = conversation_rows(messages, template, tokenizer, "here")
    assert row.text == "".join(f"<{role}>{content}{behind}" for role, content in turns)
    assert tokenizer.encode_with_special_tokens(row.text) == row.ids
    runs, previous = list[list[int]](), False
    for id, is_answer in zip(row.ids, row.is_answer, strict=True):
        if is_answer:
            runs = runs if previous else [*runs, []]
            runs[-1].append(id)
        previous = is_answer
    answers = [
        tokenizer.encode_with_special_tokens(content + learned) for role, content in turns if role == "assistant"
    ]
    assert [spelled(tokenizer, run) for run in runs] == [spelled(tokenizer, ids) for ids in answers]


def spelled(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """A text with its special tokens, whose cut may be another within the whole."""
    names = {id: name for name, id in tokenizer.special_tokens.items()}
    return "".join(names.get(id) or tokenizer.decode([id]) for id in np.asarray(ids).tolist())
