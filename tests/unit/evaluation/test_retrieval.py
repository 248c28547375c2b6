"""Retrieval and correlation: every figure by its definition, beside scikit-learn's and scipy's."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.convert.sentence_transformers.files import SentenceSettings
from archetype.data.example_counts import ExampleCounts
from archetype.data.retrieval import RetrievalData, read_retrieval
from archetype.errors import DataError
from archetype.evaluation.retrieval import cosines_of_pairs, nearest, retrieval_score, similarity_score
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from tests.helpers.cases import case
from tests.helpers.weights import randomize
from tests.unit.parts.test_sentence_head import BLOCK


@pytest.mark.parametrize("seed", range(3))
def test_the_figures_are_those_of_their_definitions(seed: int) -> None:
    from sklearn.metrics import ndcg_score  # takes seconds to load

    drawn = np.random.default_rng(seed)
    queries, documents = (torch.tensor(drawn.normal(size=(count, 5))) for count in (7, 40))
    relevant = [
        {int(place): float(drawn.integers(1, 4)) for place in drawn.choice(40, drawn.integers(1, 5), replace=False)}
        for _ in range(7)
    ]
    score = retrieval_score(queries, documents, relevant, recall_at=(1, 5, 100))
    products = (queries @ documents.T).numpy()
    orders = [list(np.argsort(-row, kind="stable")) for row in products]
    truth = np.array([[answers.get(place, 0.0) for place in range(40)] for answers in relevant])
    assert score.ndcg == pytest.approx(ndcg_score(truth, products, k=10), abs=1e-12)
    first = [min(order.index(place) for place in answers) + 1 for order, answers in zip(orders, relevant, strict=True)]
    assert score.mrr == pytest.approx(np.mean([1 / rank if rank <= 10 else 0.0 for rank in first]))
    for k in (1, 5, 100):
        pairs = zip(orders, relevant, strict=True)
        shares = [len(answers.keys() & set(order[:k])) / len(answers) for order, answers in pairs]
        assert score.recall[k] == pytest.approx(np.mean(shares))
    assert (score.num_queries, score.num_documents, score.recall[100]) == (7, 40, 1.0)
    assert retrieval_score(-queries, documents, relevant).ndcg != pytest.approx(score.ndcg)


def test_many_queries_are_those_of_one_by_one() -> None:
    torch.manual_seed(0)
    queries, documents = torch.randn(300, 4), torch.randn(9, 4)  # more than are ranked together
    relevant = [{row % 9: 1.0} for row in range(300)]
    alone = [retrieval_score(queries[row : row + 1], documents, [relevant[row]]).mrr for row in range(300)]
    assert retrieval_score(queries, documents, relevant).mrr == pytest.approx(np.mean(alone))


def test_of_equal_documents_the_first_comes_first() -> None:
    assert nearest(torch.ones(1, 2), torch.ones(4, 2), 4).tolist() == [[0, 1, 2, 3]]


def test_correlations_are_scipys() -> None:
    drawn = np.random.default_rng(1)
    scores = drawn.integers(0, 5, 60).astype(float)
    values = scores + drawn.normal(size=60)
    values[:6] = values[0]
    score = similarity_score(values.tolist(), scores.tolist())
    assert score.spearman == pytest.approx(spearmanr(values, scores).statistic)
    assert score.pearson == pytest.approx(pearsonr(values, scores).statistic)
    flat = similarity_score(values.tolist(), [1.0] * 60)
    assert flat.spearman is flat.pearson is None and "60" in str(flat)


ROWS = [
    {"anchor": "a cat", "positive": "one cat", "negative": ["two dogs", "three cows"]},
    {"anchor": "a dog", "positive": "one dog", "negative": "one cat"},
    {"anchor": "a cat", "positive": "the cat"},
]
SAME = RetrievalData(
    ["a cat", "a dog"], ["one cat", "two dogs", "three cows", "one dog", "the cat"], [{0: 1.0, 4: 1.0}, {3: 1.0}]
)


def beir(folder: Path, qrels: str = "q1\tone\t1\nq1\tfive\t1\nq2\tfour\t2\nq2\tone\t0\n") -> Path:
    folder.mkdir()
    names = ["one", "two", "three", "four", "five"]
    texts = [{"_id": name, "text": text} for name, text in zip(names, SAME.documents, strict=True)]
    texts[0] = {"_id": "one", "title": "one", "text": "cat"}
    queries = [{"_id": f"q{n}", "text": text} for n, text in enumerate(SAME.queries, start=1)]
    for name, records in (("corpus", texts), ("queries", [*queries, {"_id": "q3", "text": "nobody judged it"}])):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + qrels)
    return folder


def test_pairs_and_folders_are_read(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    assert read_retrieval(file) == SAME
    table = tmp_path / "pairs.tsv"
    table.write_text('anchor\tpositive\na, cat\t"one\tcat"\n')
    assert read_retrieval(table) == RetrievalData(["a, cat"], ["one\tcat"], [{0: 1.0}])
    folder = read_retrieval(beir(tmp_path / "beir"))
    assert folder == SAME._replace(relevant=[SAME.relevant[0], {3: 2.0}])


WRONG = {
    "q1\tsix\t1\n": "names 'six', which corpus.jsonl lacks",
    "q9\tone\t1\n": "names 'q9', which queries.jsonl lacks",
    "q1\tone\tgood\n": "the score 'good' is not a number",
    "q1\tone\t0\n": "no query has a relevant document",
}


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    for number, (qrels, cause) in enumerate(WRONG.items()):
        with case(cause), pytest.raises(DataError, match=cause):
            read_retrieval(beir(tmp_path / str(number), qrels))
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"anchor": "a", "positive": "b", "negative": [1]}')
    with pytest.raises(DataError, match="negative is not a text or a list of texts"):
        read_retrieval(file)


def test_documents_as_near_as_each_other_come_in_their_order() -> None:
    places = nearest(torch.ones(3, 2), torch.ones(5000, 2), 10)
    assert places.tolist() == [[*range(10)]] * 3


def test_questions_and_documents_are_read_behind_their_own_prompts() -> None:
    settings = SentenceSettings(prompts={"query": "Q: ", "passage": "P: ", "other": "O: "})
    assert settings.prepared("a", settings.query_prompt) == "Q: a"
    assert settings.prepared("a", settings.document_prompt) == "P: a"
    bare = SentenceSettings()
    assert bare.query_prompt is bare.document_prompt is None and bare.prepared("a", bare.query_prompt) == "a"


def test_a_model_is_scored_by_the_cosines_of_its_vectors(tmp_path: Path) -> None:
    described = spec.Encoder(
        vocab_size=256, context_length=32, d_model=8, layers=(BLOCK,), final_norm=spec.RMSNorm(),
        head=spec.SentenceEmbeddingHead(normalize=False),
    )  # fmt: skip
    prompts = {"prompts": {"query": "Q: ", "passage": "P: "}, "default_prompt_name": None}
    lm = LanguageModel(described, randomize(build(described)).eval(), train_tokenizer("bytes", "", None))
    lm.sentence_files = {"config_sentence_transformers.json": json.dumps(prompts).encode()}
    queries = lm.embed([f"Q: {text}" for text in SAME.queries], normalized=True)
    documents = lm.embed([f"P: {text}" for text in SAME.documents], normalized=True)
    expected = replace(retrieval_score(queries, documents, SAME.relevant, (2,)), examples=ExampleCounts(32))
    assert lm.evaluate_retrieval(beir(tmp_path / "beir", "q1\tone\t1\nq1\tfive\t1\nq2\tfour\t1\n"), (2,)) == expected
    file = tmp_path / "scored.csv"
    file.write_text("text1,text2,score\na,b,0.5\nc,dd,1\ne,f,0\n")
    a, b = lm.embed(["a", "c", "e"]), lm.embed(["b", "dd", "f"])
    expected_correlation = similarity_score(cosines_of_pairs(a, b), [0.5, 1.0, 0.0])
    assert lm.evaluate_similarity(file) == replace(expected_correlation, examples=ExampleCounts(32))
    file.write_text("text1,text2,score\na,b,much\n")
    with pytest.raises(DataError, match=r"line 2: the score 'much' is not a number"):
        lm.evaluate_similarity(file)
