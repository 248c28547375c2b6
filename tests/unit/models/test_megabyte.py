"""MegaByte: which patches and bytes it reads, what it remembers, and that it learns."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor

from archetype import spec
from archetype.errors import SpecError
from archetype.models.build import build_on_meta
from archetype.models.initialization import initialize
from archetype.models.megabyte.module import MegaByte
from archetype.nn.context import ForwardContext
from archetype.settings.generation import Sampling
from tests.helpers import causal as writing
from tests.helpers.examples import first_of_each
from tests.helpers.passes import forward_step
from tests.helpers.weights import distance

VOCABULARY, CONTEXT = 13, 24


ATTENTION = spec.Attention(num_heads=2, position=spec.Rotary())


def block(mixer: spec.Mixer = ATTENTION) -> spec.Block:
    feedforward = spec.GatedMLP(d_ff=16, activation="silu")
    return spec.Block(wiring=spec.PreNorm(norm=spec.RMSNorm()), mixer=mixer, feedforward=feedforward)


def megabyte(patch_size: int = 4, mixer: spec.Mixer = ATTENTION, tied: bool = False) -> MegaByte:
    model = spec.MegaByte(
        vocab_size=VOCABULARY, context_length=CONTEXT, patch_size=patch_size,
        global_model=spec.SizedStack(d_model=24, layers=(block(), block(mixer)), final_norm=spec.RMSNorm()),
        local_model=spec.SizedStack(d_model=8, layers=(block(mixer), block()), final_norm=spec.LayerNorm()),
        head=spec.LanguageModelHead(tied=tied, bias=tied),
    )  # fmt: skip
    drawn = writing.drawn(model)
    assert isinstance(drawn, MegaByte)
    return drawn


MODELS = {
    "patches of 1": lambda: megabyte(1),
    "patches of 3": lambda: megabyte(3),
    "one patch": lambda: megabyte(CONTEXT),
    "a window of patches": lambda: megabyte(3, ATTENTION.replace(pattern=spec.Window(size=2))),
    "recurrent": lambda: megabyte(4, spec.LSTM()),
    "tied": lambda: megabyte(tied=True),
}
EVERY = pytest.mark.parametrize("name", MODELS)
CUTS = [[], [3, 4, 8], [9, 10, 22], list(range(1, CONTEXT))]


def in_turn(values: Sequence[Any]) -> list[ParameterSet]:
    """Every model with every value: each model and each value in every run, each pair of them in the soak."""
    pairs = [
        (name, values[(model + turn) % len(values)]) for model, name in enumerate(MODELS) for turn in range(len(values))
    ]
    return first_of_each(lambda name, value: (name, str(value)), [pytest.param(*pair) for pair in pairs])


def predicted(model: MegaByte, text: Tensor) -> Tensor:
    """Logits of each byte of a text from those before it, (N, V), as the paper says it: whole patches, one by one."""
    size, count = model.spec.patch_size, len(text) // model.spec.patch_size
    patches, place = text.view(count, size), torch.arange(len(text))
    vectors = model.global_embedding.token.weight[text] + model.global_embedding.position.weight[place]
    shifted = torch.cat((model.global_embedding.start[None], vectors.view(count, -1)[:-1]))
    context = ForwardContext.of(shifted[None])
    contexts = model.global_model.run(shifted[None], context)
    contexts = model.global_model.final_norm(contexts)[0].view(count, size, -1)
    logits = []
    for patch, context in zip(patches, contexts, strict=True):
        before = torch.cat((model.local_embedding.start[None], model.local_embedding.token.weight[patch[:-1]]))
        x = before + context @ model.projection.weight.T + model.projection.bias
        y = model.local_model.run(x[None], ForwardContext.of(x[None]))
        logits.append(model.lm_head(model.local_model.final_norm(y), model.local_embedding.token.weight)[0])
    return torch.cat(logits)


@pytest.mark.shapes
@EVERY
def test_logits_are_the_papers_one_byte_later(name: str) -> None:
    model, tokens = MODELS[name](), writing.text(2, CONTEXT, VOCABULARY)
    for row in range(2):
        assert distance(model(tokens).logits[row, :-1], predicted(model, tokens[row])[1:]) < writing.EXACT


@EVERY
def test_a_text_of_any_length_begins_as_a_longer_one(name: str) -> None:
    model, tokens = MODELS[name](), writing.text(2, CONTEXT, VOCABULARY)
    whole = model(tokens).logits
    for length in range(1, CONTEXT):
        assert distance(model(tokens[:, :length]).logits, whole[:, :length]) < writing.EXACT


@pytest.mark.parametrize(("name", "cuts"), in_turn(CUTS))
def test_chunks_as_whole(name: str, cuts: list[int]) -> None:
    """Of whole patches, and with a last one that is not whole; token by token the longer text goes through both."""
    for length in (CONTEXT,) if len(cuts) > 9 else (CONTEXT, CONTEXT - 1):
        writing.chunks_as_whole(MODELS[name](), writing.text(2, length, VOCABULARY), cuts)


@pytest.mark.parametrize(("name", "step"), in_turn([1, 5, CONTEXT]))
def test_a_batch_as_each_row_alone(name: str, step: int) -> None:
    writing.batch_as_single(MODELS[name](), [9, 1, 4, 23, 8], step)


@pytest.mark.shapes
@EVERY
def test_rows_join_and_leave(name: str) -> None:
    writing.rows_join_and_leave(MODELS[name](), 14)


@EVERY
def test_future_tokens_change_nothing(name: str) -> None:
    writing.future_changes_nothing(MODELS[name](), CONTEXT)


def test_the_global_model_goes_once_for_each_patch() -> None:
    model, passes = megabyte(), []
    state, tokens = model.new_state(1), writing.text(1, 12, VOCABULARY)
    model.global_model.blocks[0].register_forward_hook(lambda *_: passes.append(int(state.lengths)))
    for place in range(12):
        _, state = forward_step(model, tokens[:, place : place + 1], state)
    assert passes == [3, 7, 11]


def test_the_state_has_places_for_patches_and_one_patch() -> None:
    model = megabyte()
    *layers, unfinished = model.new_state(2, 9, torch.bfloat16).layers
    assert [layer.layer.keys.shape for layer in layers] == [(2, 2, 3, 12)] * 2  # the start and two patches
    assert (unfinished.tokens.shape, unfinished.context.shape) == ((2, 4), (2, 24))
    assert model.new_state(2, 9, torch.bfloat16).nbytes == 2 * (2 * 2 * 3 * 24 * 2 + 4 * 8 + 24 * 2)
    *layers, _ = model.new_state(2).narrow(8).layers
    assert layers[0].layer.keys.shape == (2, 2, 3, 12)
    assert model.new_state(1, 10**9).capacity == CONTEXT


def test_rounding_the_state_changes_little() -> None:
    model, tokens = megabyte(), writing.text(2, CONTEXT, VOCABULARY)
    logits = writing.in_chunks(model, tokens, model.new_state(2, dtype=torch.float16), [5, 6, 13])
    assert 0 < distance(logits, model(tokens).logits) < 1e-2


def test_more_bytes_than_positions_are_refused() -> None:
    with pytest.raises(SpecError, match="tokens: 25 tokens exceed the 24 learned positions"):
        megabyte()(torch.zeros(1, 25, dtype=torch.long))


def test_names_of_parameters_are_the_file_format() -> None:
    names = list(megabyte().state_dict())
    assert [name for name in names if ".blocks." not in name] == [
        "global_embedding.start", "global_embedding.token.weight", "global_embedding.position.weight",
        "local_embedding.start", "local_embedding.token.weight", "global_model.final_norm.weight",
        "local_model.final_norm.weight", "local_model.final_norm.bias", "projection.weight", "projection.bias",
        "lm_head.weight",
    ]  # fmt: skip
    assert {name.split(".blocks.")[0] for name in names if ".blocks." in name} == {"global_model", "local_model"}


def test_starts_are_drawn_as_tables_are() -> None:
    model = build_on_meta(megabyte(1).spec.replace(initialization=spec.NormalInitialization(std=0.5))).to_empty(
        device="cpu"
    )
    initialize(model, model.spec.initialization, model.spec.num_layers, seed=0)
    starts = torch.cat((model.global_embedding.start, model.local_embedding.start))
    assert starts.mean().abs() < 0.4
    assert 0.3 < starts.std() < 0.7


@pytest.mark.shapes
def test_losses_of_both_stacks_are_given_and_padding_adds_nothing() -> None:
    experts = spec.MixtureOfExperts(
        num_experts=3, experts_per_token=1, expert=spec.MLP(d_ff=8, activation="relu"), balance_loss=0.1
    )
    stack = spec.SizedStack(d_model=8, layers=(block().replace(feedforward=experts),), final_norm=spec.RMSNorm())
    model = spec.MegaByte(
        vocab_size=VOCABULARY, context_length=CONTEXT, patch_size=4, global_model=stack, local_model=stack
    )
    built = writing.drawn(model).train()
    tokens = writing.text(2, 15, VOCABULARY)
    alone = built(tokens[:, :9]).aux_loss
    padded = built(tokens, num_tokens=torch.tensor([9, 9])).aux_loss
    torch.testing.assert_close(alone, padded)
    for side in ("global_model", "local_model"):  # each stack adds its part
        silent = getattr(model, side).replace(layers=(block(),))
        other = writing.drawn(model.replace(**{side: silent})).train()
        assert 0 < other(tokens[:, :9]).aux_loss < alone


def test_autocast_changes_little() -> None:
    model, tokens = megabyte(), writing.text(2, CONTEXT, VOCABULARY)
    whole = model(tokens).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert 0 < distance(model(tokens).logits, whole) < 5e-2
        assert distance(writing.in_chunks(model, tokens, model.new_state(2), [5, 6, 13]), whole) < 5e-2


def test_it_writes_past_its_context() -> None:
    """The driver's whole way: rows of different lengths, chosen as each row alone chooses."""
    model, settings = megabyte(), Sampling(temperature=0.0, max_new_tokens=40)
    prompts = [writing.text(1, length, VOCABULARY, length)[0].tolist() for length in (1, 7, 20)]

    alone = [writing.decoded(model, [prompt], settings)[0] for prompt in prompts]
    assert writing.decoded(model, prompts, settings) == alone


def test_training_reduces_the_loss() -> None:
    model = spec.MegaByte(
        context_length=32, patch_size=4,
        global_model=spec.SizedStack(d_model=32, layers=(block(),), final_norm=spec.RMSNorm()),
        local_model=spec.SizedStack(d_model=16, layers=(block(),), final_norm=spec.RMSNorm()),
    )  # fmt: skip
    losses = writing.losses_of_training(model, steps=40, rate=1.5e-2)
    assert losses[-1] < losses[0] / 2
