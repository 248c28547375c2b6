"""The encoder's own formulas: embedding with types, heads, pooler, and that it learns."""

import pytest
import torch

from archetype import families, spec
from archetype.errors import SpecError
from archetype.models.build import build, build_on_meta
from archetype.models.encoder.module import Encoder
from archetype.models.initialization import initialize
from archetype.nn.context import ForwardContext
from tests.helpers import causal as writing
from tests.helpers.weights import distance, randomize

BERT = families.preset("bert-tiny")
TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
TYPES = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])


def encoder(**changes: object) -> Encoder:
    model = build(BERT.replace(**changes))
    randomize(model)
    assert isinstance(model, Encoder)
    return model.requires_grad_(False)


def test_an_embedding_adds_positions_and_types_and_is_normed() -> None:
    model = encoder()
    part = model.embedding
    for types in (None, TYPES):
        kinds = part.token_type.weight[TYPES if types is not None else torch.zeros_like(TYPES)]
        expected = part.norm(part.token.weight[TOKENS] + part.position.weight[:5] + kinds)
        torch.testing.assert_close(part(TOKENS, ForwardContext.of(TOKENS), types), expected)
    assert distance(model(TOKENS, token_types=TYPES).logits, model(TOKENS).logits) > 1e-3


def test_vectors_are_the_blocks_one_after_the_other() -> None:
    model = encoder(final_norm=spec.LayerNorm())
    context, x = ForwardContext.of(TOKENS), model.embedding(TOKENS, ForwardContext.of(TOKENS))
    for block in model.blocks:
        x = block(x, context)
    assert distance(model(TOKENS).hidden, model.final_norm(x)) < 1e-6


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_hidden_tokens_are_named_through_a_layer_and_a_norm(tied: bool, bias: bool) -> None:
    head = spec.MaskedLanguageModelHead(activation="relu", norm=spec.LayerNorm(), tied=tied, bias=bias)
    model = encoder(head=head)
    part = model.lm_head
    dense = model(TOKENS).hidden @ part.dense.weight.T + part.dense.bias
    table = model.embedding.token.weight if tied else part.weight
    expected = part.norm(dense.relu()) @ table.T + (part.bias if bias else 0)
    assert distance(model(TOKENS).logits, expected) < 1e-6
    assert ("lm_head.weight" in model.state_dict()) != tied


@pytest.mark.parametrize("pooler", [False, True])
def test_a_class_follows_from_the_first_token(pooler: bool) -> None:
    model = encoder(pooler=pooler, head=spec.ClassificationHead(num_classes=3))
    first = model(TOKENS).hidden[:, 0]
    if pooler:
        first = torch.tanh(first @ model.pooler.weight.T + model.pooler.bias)
    assert distance(model.pooled(model(TOKENS).hidden), first) < 1e-6
    assert distance(model(TOKENS).logits, first @ model.classifier.weight.T + model.classifier.bias) < 1e-6


def test_without_a_head_it_gives_vectors() -> None:
    model = encoder(head=spec.NoHead())
    output = model(TOKENS)
    assert output.logits is None and output.hidden.shape == (*TOKENS.shape, model.spec.d_model)


def test_dropout_falls_on_the_pooled_vector_in_training_only() -> None:
    model = encoder(pooler=True, head=spec.ClassificationHead(num_classes=64, dropout=0.5))
    assert torch.equal(model(TOKENS).logits, model(TOKENS).logits)
    model.classifier.train()
    assert not torch.equal(model(TOKENS).logits, model(TOKENS).logits)


def test_more_positions_than_were_learned_are_refused() -> None:
    with pytest.raises(SpecError, match="tokens: 129 tokens exceed the 128 learned positions"):
        encoder()(torch.zeros(1, 129, dtype=torch.long))


def test_names_of_parameters_are_the_file_format() -> None:
    names = list(build_on_meta(BERT.replace(pooler=True)).state_dict())
    assert [name for name in names if not name.startswith("blocks.")] == [
        "embedding.token.weight", "embedding.position.weight", "embedding.token_type.weight", "embedding.norm.weight",
        "embedding.norm.bias", "pooler.weight", "pooler.bias", "lm_head.bias", "lm_head.dense.weight",
        "lm_head.dense.bias", "lm_head.norm.weight", "lm_head.norm.bias",
    ]  # fmt: skip
    classes = build_on_meta(BERT.replace(head=spec.ClassificationHead(num_classes=3))).state_dict()
    assert [name for name in classes if "class" in name or "head" in name] == ["classifier.weight", "classifier.bias"]


def test_it_learns_what_is_hidden() -> None:
    """Every fourth byte of a text is hidden; every parameter that the head can see is reached by the first step."""
    preset = BERT.replace(embedding=BERT.embedding.replace(num_token_types=0), context_length=64)
    model = build_on_meta(preset).to_empty(device="cpu")
    initialize(model, preset.initialization, preset.num_layers, seed=0)
    windows = torch.tensor(list(writing.ENGLISH.encode())).unfold(0, 64, 32)
    seen = windows.clone()
    seen[:, ::4] = 256
    optimizer = torch.optim.AdamW(model.parameters(), 6e-3)
    losses = []
    for step in range(30):
        loss = torch.nn.functional.cross_entropy(model(seen).logits[:, ::4].flatten(0, 1), windows[:, ::4].flatten())
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            unreached = {name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()}
            # a number added to all of a query's scores changes nothing
            assert {name for name in unreached if not name.endswith("mixer.k.bias")} == set()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1
