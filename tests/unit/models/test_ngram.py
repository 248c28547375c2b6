"""The n-gram model: what it reads, what it remembers, and that it learns."""

import pytest
import torch

from archetype import spec
from archetype.models.build import build_on_meta
from archetype.models.ngram.module import NGram
from archetype.nn.state import State
from tests.helpers import causal as writing
from tests.helpers.passes import forward_step
from tests.helpers.weights import distance

VOCABULARY, CONTEXT = 13, 16
BASE = spec.NGram(vocab_size=VOCABULARY, context_length=CONTEXT, n=4, d_model=6, hidden=(10, 7))
MODELS = {
    "bigram": BASE.replace(n=1, hidden=()),
    "no hidden": BASE.replace(n=3, hidden=()),
    "two hidden": BASE,
    "tied": BASE.replace(hidden=(6,), head=spec.LanguageModelHead(tied=True, bias=True)),
    "longer than the text": BASE.replace(n=20),
}
EVERY = pytest.mark.parametrize("name", MODELS)


def ngram(name: str) -> NGram:
    model = writing.drawn(MODELS[name])
    assert isinstance(model, NGram)
    return model


def cache_length(state: State) -> torch.Tensor:
    (layer,) = state.layers
    return layer.tokens


def test_a_bigram_model_is_one_table_times_another() -> None:
    model, tokens = ngram("bigram"), writing.text(2, 5, VOCABULARY)
    table = model.embedding.token.weight @ model.lm_head.weight.T + model.lm_head.bias
    torch.testing.assert_close(model(tokens).logits, table[tokens])


@EVERY
def test_logits_are_those_of_the_papers_equation(name: str) -> None:
    """Logits b + U f(H x + d), x the vectors of the n newest, the oldest first, and zeros before the start."""
    model, tokens = ngram(name), writing.text(2, 7, VOCABULARY)
    n, d = model.spec.n, model.spec.d_model
    for position in range(7):
        window = tokens[:, max(0, position - n + 1) : position + 1]
        x = torch.zeros(2, n * d)
        x[:, n * d - window.shape[1] * d :] = model.embedding.token.weight[window].flatten(1)
        for layer in model.hidden:
            x = torch.tanh(x @ layer.weight.T + layer.bias)
        table = model.embedding.token.weight if model.spec.head.tied else model.lm_head.weight
        assert distance(model(tokens).logits[:, position], x @ table.T + model.lm_head.bias) < writing.EXACT


def test_exactly_the_n_newest_tokens_count() -> None:
    model, tokens = ngram("two hidden"), writing.text(1, 9, VOCABULARY)
    for age in range(9):
        changed = tokens.clone()
        changed[0, 8 - age] = (changed[0, 8 - age] + 1) % VOCABULARY
        difference = distance(model(changed).logits[:, -1], model(tokens).logits[:, -1])
        assert difference > writing.WRONG if age < 4 else difference == 0


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_activation_is_the_specifications(activation: spec.Activation) -> None:
    model = writing.drawn(BASE.replace(hidden=(7,), activation=activation))
    tokens = writing.text(1, 4, VOCABULARY)
    (layer,) = model.hidden
    x = getattr(torch.nn.functional, activation)(layer(model.embedding.token.weight[tokens].flatten(1)))
    assert distance(model(tokens).logits[:, -1], x @ model.lm_head.weight.T + model.lm_head.bias) < writing.EXACT


@EVERY
@pytest.mark.parametrize("cuts", [[], [1], [5, 6, 11], list(range(1, CONTEXT))])
def test_chunks_as_whole(name: str, cuts: list[int]) -> None:
    writing.chunks_as_whole(ngram(name), writing.text(2, CONTEXT, VOCABULARY), cuts)


@EVERY
@pytest.mark.parametrize("step", [1, 5, CONTEXT])
def test_a_batch_as_each_row_alone(name: str, step: int) -> None:
    writing.batch_as_single(ngram(name), [9, 1, 4, 13], step)


@EVERY
def test_rows_join_and_leave(name: str) -> None:
    writing.rows_join_and_leave(ngram(name), 10)


@EVERY
def test_future_tokens_change_nothing(name: str) -> None:
    writing.future_changes_nothing(ngram(name), 8)


def test_the_state_is_the_newest_tokens() -> None:
    model = ngram("two hidden")
    tokens = writing.text(2, 7, VOCABULARY)
    _, state = forward_step(model, tokens, model.new_state(2, dtype=torch.bfloat16), torch.tensor([7, 5]))
    assert cache_length(state).tolist() == [tokens[0, 4:7].tolist(), tokens[1, 2:5].tolist()]
    assert state.nbytes == 2 * 3 * 8
    assert model.new_state(1, 10**9).capacity == CONTEXT


@pytest.mark.parametrize("name", ["two hidden", "tied"])
def test_autocast_changes_little(name: str) -> None:
    model, tokens = ngram(name), writing.text(2, CONTEXT, VOCABULARY)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast_logits = model(tokens).logits
    assert 0 < distance(autocast_logits, model(tokens).logits) < 5e-2


def test_names_of_parameters_are_the_file_format() -> None:
    assert list(build_on_meta(BASE).state_dict()) == [
        "embedding.token.weight", "hidden.0.weight", "hidden.0.bias", "hidden.1.weight", "hidden.1.bias",
        "lm_head.weight", "lm_head.bias",
    ]  # fmt: skip


@pytest.mark.parametrize("n", [1, 3])
def test_training_reduces_the_loss(n: int) -> None:
    model = spec.NGram(vocab_size=256, context_length=32, n=n, d_model=16, hidden=(64,) if n > 1 else ())
    losses = writing.losses_of_training(model, steps=50, rate=2e-2)
    assert losses[-1] < losses[0] / 2
