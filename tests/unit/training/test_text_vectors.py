"""Vectors of texts learn: losses are the published formulas, and a run goes on, is split and is written as said."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

import archetype
from archetype.api import loading
from archetype.api.language_model import LanguageModel
from archetype.api.pretrained import open_pretrained
from archetype.errors import ArchetypeError
from archetype.models.build import build
from archetype.models.file import parse
from archetype.training import metrics
from archetype.training.budget import Budget
from archetype.training.examples import ScoredPairs, TextPairs
from archetype.training.loop import run
from archetype.training.objectives import Contrastive, TextSimilarity
from archetype.training.optimizers import AdamW
from archetype.training.recipe import Recipe
from archetype.training.setup import resume, start
from tests.helpers.cases import case
from tests.helpers.parallel import train_in
from tests.helpers.recipes import WORDS, block, decoder
from tests.helpers.weights import distance, randomize
from tests.unit.training.test_resume import assert_equal_states, steps

CPU = torch.device("cpu")
EXACT, WRONG = 1e-6, 1e-3
SIZES = {"context_length": 24, "d_model": 16, "final_norm": {"kind": "rms"}}
MODELS: dict[str, dict[str, Any]] = {
    "encoder": SIZES | {"kind": "encoder", "layers": [block()], "pooler": True},
    "decoder": decoder() | {"context_length": 24},
    "layers": SIZES | {"kind": "encoder", "layers": [block()], "head": {
        "kind": "sentence_embedding", "pooling": ["max", "mean"], "layers": [{"width": 5}], "normalize": False}},
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pairs, triplets and pairs with scores."""
    folder, drawn = tmp_path_factory.mktemp("pairs"), random.Random(0)
    rows: dict[str, list[dict[str, Any]]] = {"pairs": [], "triplets": [], "scored": []}
    for _ in range(48):
        words = [drawn.choice(WORDS) for _ in range(drawn.randint(2, 4))]
        anchor, other = " ".join(words), " ".join(drawn.sample(WORDS, 2))
        rows["pairs"].append({"anchor": anchor, "positive": f"{words[0]} {words[-1]}"})
        rows["triplets"].append(rows["pairs"][-1] | {"negative": [other, other[::-1]]})
        rows["scored"].append({"text1": anchor, "text2": other, "score": len(set(words) & set(other.split())) / 2})
    for name, records in rows.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    return {name: folder / f"{name}.jsonl" for name in rows}


def recipe_of(files: dict[str, Path], name: str, model: str = "encoder", **fields: Any) -> Recipe:
    data = (ScoredPairs if name == "scored" else TextPairs)(examples=(str(files[name]),), tokenizer="bytes")
    return Recipe(
        spec=MODELS[model], data=data, batch_size=8, steps=7, evaluate_every=4, checkpoint_every=3, dtype="float32",
        optimizer=AdamW(learning_rate=3e-3),
    ).replace(**fields)  # fmt: skip


def ranking(vectors: list[Tensor], scale: float = 20.0, symmetric: bool = False, dot: bool = False) -> Tensor:
    """MultipleNegativesRankingLoss of sentence-transformers, and its symmetric form, row by row."""
    anchors, *documents = vectors if dot else [normalize(one, dim=-1) for one in vectors]
    losses = []
    for row, anchor in enumerate(anchors):
        scores = scale * torch.stack([anchor @ text for column in documents for text in column])
        losses.append(scores.exp().sum().log() - scores[row])
        if symmetric:
            back = scale * torch.stack([other @ documents[0][row] for other in anchors])
            losses[-1] = (losses[-1] + back.exp().sum().log() - back[row]) / 2
    return torch.stack(losses).mean()


def cosent(vectors: list[Tensor], scores: Tensor, scale: float = 20.0) -> Tensor:
    """CoSENTLoss of sentence-transformers, pair by pair."""
    cosines = cosine_similarity(*vectors)
    total = torch.ones((), dtype=cosines.dtype)
    for one, lower in enumerate(scores):
        for other, higher in enumerate(scores):
            if lower < higher:
                total = total + (scale * (cosines[one] - cosines[other])).exp()
    return total.log()


def squares(vectors: list[Tensor], scores: Tensor) -> Tensor:
    """CosineSimilarityLoss of sentence-transformers."""
    return (cosine_similarity(*vectors) - scores).square().mean()


CASES: list[tuple[str, Any, Any]] = [
    ("pairs", Contrastive(), ranking),
    ("triplets", Contrastive(scale=5.0), lambda vectors: ranking(vectors, 5.0)),
    ("pairs", Contrastive(symmetric=True), lambda vectors: ranking(vectors, symmetric=True)),
    ("triplets", Contrastive(symmetric=True, scale=1.0, similarity="dot"),
     lambda vectors: ranking(vectors, 1.0, symmetric=True, dot=True)),
    ("scored", TextSimilarity(), cosent),
    ("scored", TextSimilarity(scale=3.0), lambda vectors, scores: cosent(vectors, scores, 3.0)),
    ("scored", TextSimilarity(loss="cosine"), squares),
]  # fmt: skip


@pytest.mark.parametrize("model", MODELS)
def test_losses_and_their_gradients_are_the_published_formulas(
    files: dict[str, Path], model: str, tmp_path: Path
) -> None:
    for number, (name, objective, formula) in enumerate(CASES):
        with case(f"{name}, {objective}"):
            state = start(tmp_path / str(number), recipe_of(files, name, model, objective=objective), CPU)
            network: Any = randomize(state.model.double()).eval()
            batch = state.objective.batch(2)
            columns = 4 if name == "triplets" else 2
            loss = state.objective.compute_loss(network, batch)
            gradients = torch.autograd.grad(loss.loss, [network.embedding.token.weight])
            vectors = [  # each text alone, without padding
                torch.cat([
                    network(tokens[None, :count]).text_vectors
                    for tokens, count in zip(batch[2 * column], batch[2 * column + 1], strict=True)
                ])
                for column in range(columns)
            ]  # fmt: skip
            labels = [one.double() for one in batch[2 * columns :]]
            expected = formula(vectors, *labels)
            assert distance(loss.loss, expected) < EXACT and loss.num_targets == 8
            theirs = torch.autograd.grad(expected, [network.embedding.token.weight])
            assert distance(gradients[0], theirs[0]) < EXACT
            with torch.no_grad():
                mixed = [vectors[0], vectors[1].roll(1, 0), *vectors[2:]]
                assert distance(formula(mixed, *labels), expected) > WRONG
                counted = state.objective.compute_loss(network, batch).num_correct
                if name == "scored":
                    assert counted is None
                    continue
                scores = [normalize(one, dim=-1) for one in vectors] if objective.similarity == "cosine" else vectors
                nearest = (scores[0] @ torch.cat(scores[1:]).T).argmax(1)
                assert counted == int((nearest == torch.arange(8)).sum())


@pytest.mark.parametrize(("name", "model"), [("triplets", "encoder"), ("pairs", "decoder"), ("scored", "layers")])
def test_a_run_learns_resumes_to_the_bit_and_is_read(
    files: dict[str, Path], name: str, model: str, tmp_path: Path
) -> None:
    recipe = recipe_of(files, name, model)
    whole = start(tmp_path / "whole", recipe, CPU)
    run(whole, lambda event: None)
    first = steps(start(tmp_path / "parts", recipe, CPU), 4)
    second = resume(tmp_path / "parts", CPU)
    assert [step.loss for step in first + steps(second)] == losses_of(tmp_path / "whole")
    assert_equal_states(second, whole)
    held_out = [line for line in metrics.read(whole.run.metrics_file) if "validation_loss" in line]
    assert all((line["validation_accuracy"] is None) == (name == "scored") for line in held_out)
    lm = loading.load(tmp_path / "whole")
    pooling = {"encoder": ("mean",), "decoder": ("last",), "layers": ("max", "mean")}[model]
    assert lm.spec.head.embeds and lm.spec.head.pooling == pooling
    assert whole.recipe.objective is not None and whole.recipe.objective.takes(whole.recipe.data)  # type: ignore[attr-defined]
    ids = lm.embedding_tokens(["the model"])
    expected = lm.model(torch.tensor(ids)).text_vectors  # type: ignore[operator]
    assert distance(lm.embed("the model"), expected) < EXACT


def test_pairs_have_epochs(files: dict[str, Path], tmp_path: Path) -> None:
    budget = Budget(epochs=3)
    state = start(tmp_path / "run", recipe_of(files, "pairs", objective=Contrastive()), CPU, budget=budget)
    assert state.recipe.steps == 3 * (len(state.objective.training) // 8)  # type: ignore[attr-defined]


def losses_of(folder: Path) -> list[float]:
    return [line["loss"] for line in metrics.read(folder / "metrics.jsonl") if "loss" in line]


@pytest.fixture
def without_dropout(files: dict[str, Path]) -> Recipe:
    spec = MODELS["encoder"] | {"layers": [block(dropout=0.0, mixer={"kind": "attention", "num_heads": 2})]}
    return recipe_of(files, "pairs", steps=3, evaluate_every=3).replace(spec=spec)


def test_negatives_are_those_of_a_micro_batch(without_dropout: Recipe, tmp_path: Path) -> None:
    for rows in (None, 4):
        run(start(tmp_path / str(rows), without_dropout.replace(micro_batch_size=rows), CPU), lambda event: None)
    assert losses_of(tmp_path / "None")[0] > losses_of(tmp_path / "4")[0]  # more texts to be told from
    with pytest.raises(ArchetypeError, match="micro_batch_size: the loss compares the rows of a micro-batch"):
        start(tmp_path / "one", without_dropout.replace(micro_batch_size=1), CPU)


@pytest.mark.slow
def test_two_processes_train_as_one_that_computes_half_of_the_rows_at_once(
    without_dropout: Recipe, tmp_path: Path
) -> None:
    run(start(tmp_path / "one", without_dropout.replace(micro_batch_size=4), CPU), lambda event: None)
    train_in(2, [(str(tmp_path / "two"), without_dropout, {})])
    assert losses_of(tmp_path / "two") == pytest.approx(losses_of(tmp_path / "one"), rel=1e-5)


def test_prompts_stand_before_texts_and_stay_with_the_model(files: dict[str, Path], tmp_path: Path) -> None:
    objective = Contrastive(anchor_prompt="q: ", document_prompt="d: ")
    state = start(tmp_path / "run", recipe_of(files, "triplets", objective=objective), CPU)
    texts = [bytes(row[:count].tolist()).decode() for row, count in zip(*state.objective.batch(0)[:2], strict=True)]
    others = [bytes(row[:count].tolist()).decode() for row, count in zip(*state.objective.batch(0)[4:6], strict=True)]
    assert all(text.startswith("q: ") for text in texts) and all(text.startswith("d: ") for text in others)
    run(state, lambda event: None)
    lm = loading.load(tmp_path / "run")
    assert distance(lm.embed("the", prompt="query"), lm.embed("q: the")) < EXACT
    assert distance(lm.embed("the", prompt="document"), lm.embed("the")) > WRONG
    archetype.export(lm, tmp_path / "out", format="archetype-hf")
    prompts = json.loads((tmp_path / "out/config_sentence_transformers.json").read_text())["prompts"]
    assert prompts == {"query": "q: ", "document": "d: "}
    for name, said in (
        ("title", "no prompt named .title.; use one of query, document"),
        ("quer", "did you mean query"),
    ):
        with case(name), pytest.raises(ArchetypeError, match=said):
            lm.embed("the", prompt=name)
    with pytest.raises(ArchetypeError, match="cannot be combined with pooling"):
        lm.embed("the", pooling="mean", prompt="query")


def test_the_longest_text_and_small_letters_of_a_pretrained_model_are_obeyed(
    files: dict[str, Path], tmp_path: Path
) -> None:
    run(start(tmp_path / "first", recipe_of(files, "pairs", steps=1), CPU), lambda event: None)
    (tmp_path / "first/sentence").mkdir()
    settings = {"max_seq_length": 9, "do_lower_case": True}
    (tmp_path / "first/sentence/sentence_bert_config.json").write_text(json.dumps(settings))
    loud = tmp_path / "loud.jsonl"
    loud.write_text(files["pairs"].read_text().upper().replace("ANCHOR", "anchor").replace("POSITIVE", "positive"))
    begin = open_pretrained(tmp_path / "first")
    state = start(tmp_path / "second", recipe_of({"pairs": loud}, "pairs"), CPU, pretrained=begin)
    assert state.recipe.sequence_length == 9 and state.recipe.data.lowercase  # type: ignore[attr-defined]
    tokens = state.objective.batch(0)[0]
    assert tokens.shape[1] == 9 and bytes(tokens[0].tolist()).decode().islower()
    batches = resume(tmp_path / "second", CPU).objective.batch(3), state.objective.batch(3)
    assert all(torch.equal(one, other) for one, other in zip(*batches, strict=True))
    bare = build(parse(MODELS["decoder"] | {"vocab_size": 9}))
    with pytest.raises(ArchetypeError, match="no sentence embedding head, and so no prompts"):
        LanguageModel(bare.spec, bare).embed([[1]], prompt="query")


BAD = {
    '{"anchor": "a"}': "line 1: has no positive",
    '{"anchor": "a", "positive": "b", "negative": [""]}': "line 1: negative is not a text or a list of texts",
    '{"anchor": "a", "positive": "b"}\n{"anchor": "c", "positive": "d", "negative": "e"}': "some rows have 0 negatives",
    '{"text1": "a", "text2": "b", "score": "x"}': "line 1: the score 'x' is not a number",
}


def test_what_is_wrong_with_a_file_is_said_before_anything_is_written(files: dict[str, Path], tmp_path: Path) -> None:
    for number, (text, cause) in enumerate(BAD.items()):
        file = tmp_path / f"{number}.jsonl"
        file.write_text(text)
        name = "scored" if "text1" in text else "pairs"
        with case(cause), pytest.raises(ArchetypeError, match=cause):
            start(tmp_path / "run", recipe_of({name: file}, name), CPU)
        assert not (tmp_path / "run").exists()
    with pytest.raises(ArchetypeError, match="contrastive does not suit"):
        start(tmp_path / "run", recipe_of(files, "scored", objective=Contrastive()), CPU)
