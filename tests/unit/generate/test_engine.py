"""The driver: with state as without, in a batch as alone, in chunks as at once, past the context as within."""

import copy
from functools import cache

import pytest
import torch

from archetype import spec
from archetype.api.language_model import LanguageModel
from archetype.errors import SpecError
from archetype.families.gpt2 import gpt2
from archetype.families.llama import llama
from archetype.generate import Engine, Sampler, Sampling, prefill, sample, step
from archetype.generate.request import Request
from archetype.generate.slots import Slots
from archetype.models.build import Model, build
from archetype.nn.state import State
from tests.helpers.causal import decoded
from tests.helpers.weights import randomize

VOCABULARY, CONTEXT = 13, 16
SIZES = dict(num_layers=1, d_model=8, vocab_size=VOCABULARY, context_length=CONTEXT)
SPECS = {
    "rotary, grouped": llama(num_heads=4, num_kv_heads=2, d_ff=12, **SIZES),
    "learned positions": gpt2(num_heads=2, **SIZES),
    # from its start on the earlier keys turn too, and a state cannot be as a pass over the whole; so it starts here
    "keys stored before they turn": llama(
        num_heads=2,
        d_ff=12,
        position=spec.Rotary(scaling=spec.DynamicScaling(factor=4.0, original_context_length=CONTEXT)),
        **SIZES,
    ),
}
GREEDY = Sampling(temperature=0.0, max_new_tokens=8)
SAMPLED = Sampling(temperature=1.5, top_k=9, repetition_penalty=1.1, max_new_tokens=8, seed=4)
PROMPTS = [[3], [1, 2, 3, 4, 5, 6, 7], [12, 0], [5] * 11]
Tokens = list[int]

settings = pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])


@cache
def built(name: str) -> Model:
    return randomize(build(SPECS[name]), seed=5)  # with which greedy texts vary


@pytest.fixture(params=SPECS)
def model(request: pytest.FixtureRequest) -> Model:
    return built(request.param)


@torch.no_grad()
def without_state(model: Model, prompt: Tokens, sampling: Sampling, stop: tuple[int, ...] = ()) -> Tokens:
    """Every token from a pass over the whole text; past the context, over its newest three quarters."""
    context = model.spec.context_length
    window, generated = list(prompt), []
    sampler = Sampler(sampling, prompt, VOCABULARY, torch.device("cpu"))
    while len(generated) < sampling.max_new_tokens:
        [token] = sample(model(torch.tensor([window])).logits[:, -1], [sampler])
        if token in stop:
            break
        generated.append(token)
        window.append(token)
        if len(window) > context:
            window = window[-min(context, max(2, context * 3 // 4)) :]
    return generated


@settings
def test_with_state_is_as_without_token_by_token(model: Model, sampling: Sampling) -> None:
    for prompt in PROMPTS:
        sampling = sampling.replace(max_new_tokens=CONTEXT - len(prompt))
        assert decoded(model, [prompt], sampling) == [without_state(model, prompt, sampling)]


@settings
def test_a_batch_is_as_each_alone(model: Model, sampling: Sampling) -> None:
    assert decoded(model, PROMPTS, sampling) == [without_state(model, prompt, sampling) for prompt in PROMPTS]


@settings
def test_rows_end_at_different_times(model: Model, sampling: Sampling) -> None:
    sampling = sampling.replace(max_new_tokens=12)
    whole = [without_state(model, prompt, sampling) for prompt in PROMPTS]
    ends = {token for tokens in whole for token in tokens[1:4]}
    assert len(ends) > 2
    for stop in sorted(ends)[:4]:
        expected = [tokens[: tokens.index(stop)] if stop in tokens else tokens for tokens in whole]
        assert decoded(model, PROMPTS, sampling, (stop,)) == expected


def test_stop_ids_can_be_ignored(model: Model) -> None:
    every = tuple(range(VOCABULARY))
    assert decoded(model, [[1]], GREEDY, every) == [[]]
    assert decoded(model, [[1]], GREEDY.replace(ignore_eos=True), every) == [without_state(model, [1], GREEDY)]


@settings
def test_chunks_of_a_prompt_change_nothing(model: Model, sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [list(range(n)) for n in (1, 3, 4, 7)]
    sampling = sampling.replace(max_new_tokens=2)
    whole = decoded(model, prompts, sampling)
    monkeypatch.setattr(step, "PREFILL_CHUNK", 3)
    assert decoded(model, prompts, sampling) == whole


def test_prefill_gives_the_logits_after_each_text(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "PREFILL_CHUNK", 5)
    texts = [list(range(n)) for n in (1, 5, 6, 11)]
    logits, state = prefill(model, texts, model.new_state(len(texts)))
    assert state.lengths.tolist() == [1, 5, 6, 11]
    for row, text in enumerate(texts):
        with torch.no_grad():
            torch.testing.assert_close(logits[row], model(torch.tensor([text])).logits[0, -1], atol=1e-5, rtol=0)


@settings
def test_past_the_context_the_newest_three_quarters_go_on(model: Model, sampling: Sampling) -> None:
    sampling = sampling.replace(max_new_tokens=2 * CONTEXT)
    prompts = [[3], [*range(VOCABULARY), 0, 1, 2]]
    assert decoded(model, prompts, sampling) == [without_state(model, prompt, sampling) for prompt in prompts]


@pytest.mark.parametrize("context", [1, 2, 3])
def test_the_shortest_contexts_are_decoded_too(context: int) -> None:
    small = randomize(build(SPECS["rotary, grouped"].replace(context_length=context)))
    prompts = [[4], [7]]
    assert decoded(small, prompts, GREEDY) == [without_state(small, prompt, GREEDY) for prompt in prompts]


def submitted(model: Model, prompts: list[Tokens], sampling: Sampling) -> Engine:
    engine = Engine(LanguageModel(model.spec, model))
    for row, prompt in enumerate(prompts):
        engine.submit(prompt, id=row, **dict(sampling))
    return engine


def test_a_cancelled_row_leaves_and_the_others_go_on(model: Model) -> None:
    engine, tokens_by_row = submitted(model, PROMPTS, GREEDY), {row: [] for row in range(len(PROMPTS))}
    for event in engine.events():
        if event.token is not None:
            tokens_by_row[event.request.id].append(event.token)
        if event.request.id == 1 and len(tokens_by_row[1]) == 3:
            engine.cancel(1)
    whole = [without_state(model, prompt, GREEDY) for prompt in PROMPTS]
    assert list(tokens_by_row.values()) == [whole[0], whole[1][:3], *whole[2:]]


def test_a_prompt_is_read_where_it_is_decoded_if_nothing_else_is(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the prompts that follow another are copied into their rows; a prefix is, and a row is clean again."""
    put, copied = Slots.put, list[int]()

    def counted(self: Slots[Request], slots: list[int], sequences: list[Request], state: State) -> None:
        copied.extend(slots)
        put(self, slots, sequences, state)

    monkeypatch.setattr(Slots, "put", counted)
    engine = Engine(LanguageModel(model.spec, model), prefix_bytes=2**20)
    for wave in (PROMPTS[:1], PROMPTS[:3], [[*PROMPTS[1], 8]], PROMPTS[3:]):
        for prompt in wave:
            engine.submit(prompt, id=str(prompt), **dict(GREEDY))
        whole = {event.request.id: event.request.tokens for event in engine.events()}
        assert whole == {str(prompt): without_state(model, prompt, GREEDY) for prompt in wave}
        assert copied == [*range(1, len(wave))]
        copied.clear()


def test_a_prompt_that_fails_in_its_row_leaves_nothing_to_the_next() -> None:
    """NaN in keys and values would stay behind a mask: 0 * NaN = NaN."""
    model = copy.deepcopy(built("rotary, grouped"))
    engine = Engine(LanguageModel(model.spec, model))
    weight, intact = model.embedding.token.weight, model.embedding.token.weight.detach().clone()
    with torch.no_grad():
        weight.fill_(torch.nan)
        engine.submit(PROMPTS[1], id="fails", **dict(GREEDY))
        assert [event.finish_reason for event in engine.step()] == ["error"]
        weight.copy_(intact)
    layers = engine._scheduler.slots.state.layers
    assert all(values.isfinite().all() for layer in layers for _, _, values in layer.tensors())
    engine.submit(PROMPTS[0], id="next", **dict(GREEDY))
    tokens = [event.token for event in engine.events() if event.token is not None]
    assert tokens == without_state(model, PROMPTS[0], GREEDY)


def test_tokens_come_row_by_row_as_they_are_chosen(model: Model) -> None:
    events = submitted(model, [[1], [2]], GREEDY.replace(max_new_tokens=2)).events()
    assert [event.request.id for event in events] == [0, 1, 0, 1]


def test_no_prompts_give_no_tokens(model: Model) -> None:
    assert decoded(model, [], GREEDY) == []


def test_the_prompts_are_left_as_they_were(model: Model) -> None:
    prompts = [[1, 2], [3]]
    decoded(model, prompts, GREEDY)
    assert prompts == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("prompt", "what"),
    [
        ([], "is empty, and the tokenizer has no start token; provide some text"),
        ([1] * 17, "has 17 tokens, but the model's context is 16; shorten it"),
        ([1, 13], "contains a token id outside the vocabulary of 13; is it the model's own tokenizer?"),
        ([-1, 2], "contains a token id outside the vocabulary of 13; is it the model's own tokenizer?"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_named(prompt: Tokens, what: str) -> None:
    model = built("learned positions")
    engine = Engine(LanguageModel(model.spec, model))
    for name, place in ((None, "prompt"), (2, "prompt 2")):
        with pytest.raises(SpecError) as caught:
            engine.submit(prompt, id=name)
        assert str(caught.value) == f"{place}: {what}"
    assert engine.stats().waiting == 0


def test_rows_without_a_text_stay_at_their_start(model: Model) -> None:
    """Three texts are decoded in four rows; the fourth takes part in every step and must not grow."""
    engine = submitted(model, [[1], [2], [3]], GREEDY.replace(max_new_tokens=12))
    for _ in range(10):
        engine.step()
        room = engine.occupancy()
        used = engine.stats().cache_use * room.rows * room.capacity
        assert len(room.slots) == 3 and used - sum(slot.length for slot in room.slots) <= room.rows - 3 + 1e-6
