"""The decoder's own formulas: embedding, head, and how it is built."""

import os

import pytest
import torch
from torch import Tensor

from archetype import families, spec
from archetype.errors import SpecError
from archetype.models.build import build, build_on_meta
from archetype.models.decoder.module import Decoder
from archetype.nn.context import ForwardContext
from tests.helpers.weights import distance, randomize

TINY = families.preset("llama-tiny")
TOKENS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])


def logits(decoder: spec.Decoder) -> tuple[Decoder, Tensor]:
    model = build(decoder)
    randomize(model)
    return model, model(TOKENS).logits


def test_an_embedding_is_scaled_placed_and_normed_in_this_order() -> None:
    embedding = spec.Embedding(position=spec.Learned(), scale=3.0, norm=spec.LayerNorm())
    model = build(TINY.replace(embedding=embedding))
    part = randomize(model).embedding
    expected = part.norm(3.0 * part.token.weight[TOKENS] + part.position.weight[:5])
    torch.testing.assert_close(part(TOKENS, ForwardContext.of(TOKENS)), expected)


def test_embedding_dropout_falls_on_what_the_norm_gives() -> None:
    """Before the norm it would leave no zero behind it."""
    embedding = spec.Embedding(position=spec.Learned(), norm=spec.LayerNorm(), dropout=0.5)
    model = randomize(build(TINY.replace(embedding=embedding))).train()
    torch.manual_seed(0)
    tokens = torch.arange(8)[None]
    dropped = model.embedding(tokens, ForwardContext.of(tokens))
    whole = model.eval().embedding(tokens, ForwardContext.of(tokens))
    nonzero = dropped != 0
    assert 0.3 < nonzero.float().mean() < 0.7
    assert torch.allclose(dropped[nonzero], 2 * whole[nonzero])


def test_embedding_dropout_acts_in_training_only() -> None:
    model = build(TINY.replace(embedding=spec.Embedding(dropout=0.5))).eval()
    assert torch.equal(model(TOKENS).logits, model(TOKENS).logits)
    part = model.train().embedding
    assert (part(TOKENS, ForwardContext.of(TOKENS)) == 0).float().mean() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_products_with_the_heads_table_or_the_embeddings(tied: bool, bias: bool) -> None:
    model, model_logits = logits(TINY.replace(head=spec.LanguageModelHead(tied=tied, bias=bias, scale=0.3)))
    context, x = ForwardContext.of(TOKENS), model.embedding(TOKENS, ForwardContext.of(TOKENS))
    for block in model.blocks:
        x = block(x, context)
    table = model.embedding.token.weight if tied else model.lm_head.weight
    expected = 0.3 * model.final_norm(x) @ table.T + (model.lm_head.bias if bias else 0)
    assert distance(model_logits, expected) < 1e-6
    assert ("lm_head.weight" in model.state_dict()) != tied


def test_layers_that_turn_differently_do_not_share_their_angles() -> None:
    """What one layer computes for all is computed anew for a layer of another kind."""
    first, second = TINY.layers
    others = [spec.Rotary(theta=50.0), spec.Rotary(interleaved=True), spec.Rotary(dim=8)]
    layers = [first, *(second.replace(mixer=second.mixer.replace(position=other)) for other in others), first]
    model, model_logits = logits(TINY.replace(layers=tuple(layers)))
    x = model.embedding(TOKENS, ForwardContext.of(TOKENS))
    for block in model.blocks:
        x = block(x, ForwardContext.of(TOKENS))
    assert torch.equal(model_logits, model.lm_head(model.final_norm(x), model.embedding.token.weight))


def test_a_tied_table_learns_from_both_its_uses() -> None:
    model = build(TINY.replace(head=spec.LanguageModelHead(tied=True)))
    model(TOKENS).logits.logsumexp(-1).sum().backward()
    assert (model.embedding.token.weight.grad.abs().sum(-1) > 0).all()  # also of tokens that the text does not hold


def test_names_of_parameters_are_the_file_format() -> None:
    assert {name for name in build(TINY).state_dict() if not name.startswith("blocks.1.")} == {
        "embedding.token.weight", "blocks.0.mixer_norm.weight", "blocks.0.mixer.q.weight", "blocks.0.mixer.k.weight",
        "blocks.0.mixer.v.weight", "blocks.0.mixer.o.weight", "blocks.0.feedforward_norm.weight",
        "blocks.0.feedforward.gate.weight", "blocks.0.feedforward.up.weight", "blocks.0.feedforward.down.weight",
        "final_norm.weight", "lm_head.weight",
    }  # fmt: skip


def test_a_name_changes_no_number() -> None:
    assert torch.equal(build(TINY)(TOKENS).logits, build(TINY.replace(name="another"))(TOKENS).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_model_computes_in_the_type_it_is_built_in(dtype: torch.dtype) -> None:
    model = build(TINY, dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}
    assert model(TOKENS).logits.dtype == dtype
    assert model.new_state(1).layers[0].keys.dtype == dtype


def test_nothing_is_stored_that_is_no_parameter() -> None:
    assert list(build(TINY).buffers()) == []


def test_a_skeleton_holds_no_numbers() -> None:
    model = build_on_meta(families.preset("llama-3.1-405b"))
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_a_model_larger_than_memory_is_refused_before_it_is_allocated() -> None:
    with pytest.raises(SpecError) as caught:
        build(families.preset("llama-3.1-405b"), dtype=torch.float64)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    assert str(caught.value) == (
        f"llama-3.1-405b: the weights take 3,023.8 GiB, but this machine has {memory:,.1f} GiB; "
        "use a smaller model, or device='meta' to count parameters"
    )


def test_any_size_can_be_built_without_storage() -> None:
    assert build(families.preset("gpt3-175b"), device="meta").spec.num_layers == 96


def test_more_positions_than_were_learned_are_refused() -> None:
    model = build(spec.parse(families.preset("gpt2-tiny").dump()))
    with pytest.raises(SpecError, match="tokens: 129 tokens exceed the 128 learned positions"):
        model(torch.zeros(1, 129, dtype=torch.long))
