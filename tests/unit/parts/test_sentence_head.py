"""The head that gives vectors of texts: each pooling by its definition, layers, and what is counted and drawn."""

from itertools import combinations

import pytest
import torch
from torch import Tensor

import archetype
from archetype import spec
from archetype.errors import SpecError
from archetype.estimate.report import cost_report, total_parameters
from archetype.models.build import build
from archetype.parts.sentence_head.module import SentenceEmbeddingHead
from tests.helpers.cases import case
from tests.helpers.weights import distance, randomize

D, LENGTHS = 6, (5, 1, 3)
EXACT, WRONG = 1e-6, 1e-3
BLOCK = spec.Block(
    wiring=spec.PreNorm(norm=spec.RMSNorm()),
    mixer=spec.Attention(num_heads=2),
    feedforward=spec.MLP(d_ff=8, activation="gelu"),
)
MODELS: dict[str, type[spec.Encoder] | type[spec.Decoder]] = {"encoder": spec.Encoder, "decoder": spec.Decoder}
POOLS = {
    "first": lambda row: row[0],
    "max": lambda row: torch.stack([max(column) for column in row.T]),
    "mean": lambda row: sum(row) / len(row),
    "mean_sqrt_len": lambda row: sum(row) / len(row) ** 0.5,
    "weighted_mean": lambda row: sum((n + 1) * vector for n, vector in enumerate(row)) / sum(range(1, len(row) + 1)),
    "last": lambda row: row[-1],
}


def model_with(head: spec.SentenceEmbeddingHead, kind: str = "encoder") -> spec.Encoder | spec.Decoder:
    return MODELS[kind](
        vocab_size=20, context_length=9, d_model=D, layers=(BLOCK,), final_norm=spec.RMSNorm(), head=head
    )


def padded(filler: float = 7.0) -> tuple[Tensor, Tensor]:
    """Vectors of rows of different lengths, and what stands in their padding."""
    vectors = torch.randn(len(LENGTHS), max(LENGTHS), D, generator=torch.Generator().manual_seed(0))
    for row, length in enumerate(LENGTHS):
        vectors[row, length:] = filler
    return vectors, torch.tensor(LENGTHS)


def test_every_pooling_is_what_its_definition_says_whatever_stands_in_the_padding() -> None:
    for modes in (*combinations(POOLS, 1), *combinations(POOLS, 2)):
        head = SentenceEmbeddingHead(spec.SentenceEmbeddingHead(pooling=modes, normalize=False), 0, D)
        for filler in (7.0, -1e4):
            with case(f"{modes}, {filler}"):
                vectors, lengths = padded(filler)
                rows = [row[:length] for row, length in zip(vectors, LENGTHS, strict=True)]
                expected = torch.stack([torch.cat([POOLS[mode](row) for mode in modes]) for row in rows])
                assert distance(head(vectors, lengths), expected) < EXACT
                reads_padding = not set(modes) <= {"first", *(["max"] if filler < 0 else [])}
                as_tokens = head(vectors, torch.full_like(lengths, max(LENGTHS)))
                assert (distance(as_tokens, expected) > WRONG) == reads_padding


def test_layers_and_length_come_after_pooling_in_their_order() -> None:
    layers = (spec.DenseLayer(width=4), spec.DenseLayer(width=3, activation="none", bias=False))
    part = spec.SentenceEmbeddingHead(pooling=("mean", "last"), layers=layers)
    head, (vectors, lengths) = randomize(SentenceEmbeddingHead(part, 0, D)), padded()
    rows = [row[:length] for row, length in zip(vectors, LENGTHS, strict=True)]
    pooled = torch.stack([torch.cat([row.mean(0), row[-1]]) for row in rows])
    first, second = head.layers
    expected = torch.tanh(pooled @ first.weight.T + first.bias) @ second.weight.T
    assert distance(head(vectors, lengths, normalized=False), expected) < EXACT
    assert distance(head(vectors, lengths), expected / expected.norm(dim=1, keepdim=True)) < EXACT
    assert part.width(D) == 3 and spec.SentenceEmbeddingHead(pooling=("mean", "last")).width(D) == 2 * D


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_gives_them_and_its_cost_and_drawing_say_so(kind: str) -> None:
    layers = (spec.DenseLayer(width=4), spec.DenseLayer(width=3, bias=False))
    described = model_with(spec.SentenceEmbeddingHead(pooling=("mean", "max"), layers=layers), kind)
    model = randomize(build(described)).eval()
    tokens, lengths = torch.randint(0, 20, (3, 5)), torch.tensor(LENGTHS)
    output = model(tokens, num_tokens=lengths)
    assert output.logits is None and output.text_vectors.shape == (3, 3)
    assert distance(output.text_vectors, model.sentence_head(output.hidden, lengths)) == 0
    assert model(tokens, num_tokens=lengths, with_logits=False).text_vectors is None
    assert sum(p.numel() for p in model.parameters()) == total_parameters(described)
    report, drawn = str(cost_report(described)), str(archetype.draw(described).svg)
    assert "sentence_head.layers.1" in report and "2 B D_s1 D_s2" in report
    assert "mean + max pooling" in drawn and "(B, 3)" in drawn
    assert spec.parse(described.dump()) == described


def test_what_a_file_may_say() -> None:
    plain = model_with(spec.SentenceEmbeddingHead())
    for said, expected in ((["mean"], ("mean",)), ("last", ("last",))):  # one may be a word
        read = spec.parse(plain.dump() | {"head": {"kind": "sentence_embedding", "pooling": said}})
        assert read.head.pooling == expected
    for said in ([], "median", ["mean", 3]):
        with case(str(said)), pytest.raises(SpecError, match=r"head\.pooling"):
            spec.parse(plain.dump() | {"head": {"kind": "sentence_embedding", "pooling": said}})
    with pytest.raises(SpecError, match="head"):
        spec.parse({"kind": "ngram", "vocab_size": 9, "order": 2, "head": {"kind": "sentence_embedding"}})
