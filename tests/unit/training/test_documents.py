"""Runs on documents and mixtures: exact after a resume, refused where the data changed, one document from the next."""

import json
import random
from pathlib import Path

import pytest
import torch

from archetype.data import sources
from archetype.data.shards import is_held_out
from archetype.errors import CheckpointError, SpecError
from archetype.spec import parse
from archetype.training import datasets, defaults
from archetype.training.datasets import DocumentData, ImageData, MixtureData
from archetype.training.objectives.base import IGNORED
from archetype.training.objectives.next_token import PackedNextTokenObjective
from archetype.training.recipe import Recipe
from archetype.training.resolve import build_objective, build_tokenizer
from archetype.training.setup import resume, start
from tests.helpers.recipes import ENCODER, WORDS, decoder, transformer_pair, vision
from tests.unit.training.test_resume import assert_equal_states, measured, steps

CPU = torch.device("cpu")
GRU = decoder(mixer={"kind": "gru"})


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARCHETYPE_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(sources, "PIECE_BYTES", 2000)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    drawn = random.Random(0)
    texts = [" ".join(drawn.choice(WORDS) for _ in range(drawn.randint(1, 20))) for _ in range(80)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in texts))
    (tmp_path / "b.txt").write_text("\n---\n".join(texts[:30]))
    return tmp_path / "a.jsonl"


def recipe(file: Path, kind: str, separate: bool, **changes: object) -> Recipe:
    """Fewer than one epoch of the first source, and more of the second."""
    common = {"kind": kind, "tokenizer": "byte_bpe", "vocab_size": 280, "validation_fraction": 0.2}
    common["cross_document_attention"] = not separate
    part = {"text": [str(file)], "field": "body"}
    other = {"text": [str(file.with_name("b.txt"))], "separator": "---", "weight": 0.25}
    data = common | ({"parts": [part | {"weight": 0.75}, other]} if kind == "mixture" else part)
    fields = {"spec": decoder(), "data": data, "batch_size": 8, "steps": 12, "seed": 5, "dtype": "float32"}
    return Recipe.parse(fields | {"checkpoint_every": 4, "evaluate_every": 6} | changes)


@pytest.mark.parametrize(("kind", "separate"), [("documents", True), ("mixture", False)])
def test_interrupted_and_resumed_equals_uninterrupted(file: Path, tmp_path: Path, kind: str, separate: bool) -> None:
    started = recipe(file, kind, separate)
    whole = start(tmp_path / "whole", started, CPU)
    expected = [measured(step) for step in steps(whole)]
    first = steps(start(tmp_path / "run", started, CPU), 7)  # in the midst of an epoch
    second = resume(tmp_path / "run", CPU)
    assert [measured(step) for step in first + steps(second)] == expected
    assert_equal_states(second, whole)


def test_changed_documents_are_refused_and_the_same_ones_elsewhere_are_not(file: Path, tmp_path: Path) -> None:
    steps(start(tmp_path / "run", recipe(file, "documents", False), CPU), 4)
    text = file.read_text()
    file.write_text(text)  # another time of change: tokenised again, and found to be the same
    assert resume(tmp_path / "run", CPU).step == 4
    file.write_text(text.replace("token", "taken"))
    with pytest.raises(CheckpointError, match=r"a.jsonl: the data have changed .*; restore them, or pass --allow"):
        resume(tmp_path / "run", CPU)


def objective_of(recipe: Recipe) -> PackedNextTokenObjective:
    tokenizer = build_tokenizer(recipe.data, {})
    assert tokenizer is not None
    objective = build_objective(recipe, parse(recipe.spec | {"vocab_size": 280}), tokenizer, {})  # type: ignore[operator]
    assert isinstance(objective, PackedNextTokenObjective)
    return objective


def test_no_token_is_predicted_from_another_document_where_none_is_seen(file: Path) -> None:
    together, apart = (objective_of(recipe(file, "documents", separate)) for separate in (False, True))
    num_starts = 0
    for step in range(4):
        (tokens, targets), (same_tokens, fewer, ids) = together.batch(step), apart.batch(step)
        assert torch.equal(tokens, same_tokens)
        is_last = torch.nn.functional.pad(ids[:, 1:] != ids[:, :-1], (0, 1))  # the next token begins a document
        is_end = tokens == 0  # <|endoftext|>
        assert torch.equal(is_last[:, :-1], is_end[:, :-1])
        assert torch.equal(fewer, targets.masked_fill(is_end, IGNORED))
        num_starts += int(is_last.sum())
    assert num_starts > 9
    inputs, _ = apart.inputs_and_targets(apart.batch(0))
    assert set(inputs) == {"tokens", "document_ids"}
    held_out = [targets for n in range(apart.num_validation_batches) for targets in apart.validation_batch(n)[1]]
    assert sum(int((row != IGNORED).sum()) for row in held_out) == round(
        apart.corpus.held_out[0].num_bytes / apart.bytes_per_unit
    )


@pytest.mark.parametrize("spec", [ENCODER, transformer_pair()], ids=["masked", "spans"])
def test_other_objectives_learn_from_documents(file: Path, tmp_path: Path, spec: dict[str, object]) -> None:
    assert len(steps(start(tmp_path / "run", recipe(file, "documents", False, spec=spec, steps=2), CPU))) == 2
    with pytest.raises(SpecError, match=r"data.cross_document_attention: false needs the objective next_token"):
        start(tmp_path / "other", recipe(file, "documents", True, spec=spec, steps=2), CPU)


def test_a_layer_that_carries_on_is_named_before_anything_is_written(file: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"layers\[0\].mixer: gru does not separate packed documents"):
        start(tmp_path / "run", recipe(file, "documents", True, spec=GRU), CPU)
    assert not (tmp_path / "run").exists()


def test_what_is_given_as_text_is_read_as_what_it_is(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kind(*names: str, **data: str) -> str:
        fields = {"data.text": names, "data.tokenizer": "bytes"} | {f"data.{key}": value for key, value in data.items()}
        return defaults.assemble(None, fields)[0].data.kind

    assert kind(str(file)) == kind(f"{file.parent}/*.jsonl") == kind("hf:owner/name@1") == "documents"
    assert kind(str(file.with_name("b.txt"))) == kind(str(file), kind="corpus") == "corpus"
    monkeypatch.setattr(defaults, "MAX_CORPUS", 100)
    assert kind(str(file.with_name("b.txt"))) == "documents"


def test_the_alphabet_of_characters_is_that_of_all_documents(file: Path) -> None:
    data = DocumentData(text=(str(file),), field="body", tokenizer="characters")
    tokenizer = build_tokenizer(data, {})
    assert tokenizer is not None and tokenizer.vocab_size == len(set("".join(WORDS))) + 1
    mixture = MixtureData(parts=({"text": (str(file),), "field": "body"},), tokenizer="characters")  # type: ignore[arg-type]
    assert build_tokenizer(mixture, {}).vocab_size == tokenizer.vocab_size  # type: ignore[union-attr]


def test_a_tokenizer_is_trained_on_a_sample_of_all_pieces_that_stays_small(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DocumentData(text=(str(file),), field="body", validation_fraction=0.2)
    texts = [json.loads(line)["body"] for line in file.read_text().splitlines()]
    assert data.training_texts({}) == [text for text in texts if not is_held_out(text, 0.2)]
    monkeypatch.setattr(datasets, "SAMPLE", 300)
    sample = data.training_texts({})
    assert 200 < sum(map(len, sample)) <= 300 and sample[-1] in "".join(texts[-30:])


def test_images_of_a_folder_by_class(tmp_path: Path) -> None:
    from PIL import Image

    for label, name in enumerate(("cat", "dog", "eel")):
        (tmp_path / "images" / name).mkdir(parents=True)
        for n in range(8):
            colour = (80 * label, 10 * n, 0)
            Image.new("RGB", (10 + n, 12), colour).save(tmp_path / "images" / name / f"{n}.{'png' if n % 2 else 'bmp'}")
    data = ImageData(file=str(tmp_path / "images"), validation_fraction=0.25)
    spec = vision() | {"num_channels": 3}
    data = data.prepared_for(parse(spec), lambda: None)
    image_recipe = Recipe(spec=spec, data=data, batch_size=6, steps=2, dtype="float32")
    images, labels = build_objective(image_recipe, parse(spec), None, {}).batch(0)
    assert images.shape == (6, 3, 8, 8) and torch.equal((images[:, 0, 4, 4] * 255 / 80).round().long(), labels)
    assert len(steps(start(tmp_path / "run", image_recipe, CPU))) == 2
    (tmp_path / "images" / "cat" / "9.png").write_bytes(b"no image")
    with pytest.raises(Exception, match=r"9.png: is not an image; fix or remove it"):
        build_objective(image_recipe, parse(spec), None, {})
