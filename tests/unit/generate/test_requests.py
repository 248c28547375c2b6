"""Requests to one engine: each gets what it gets alone, whoever comes, leaves, shares its beginning, or fails.

Models compute in float64 here: torch's products of one row and of several differ in the last bits of float32.
"""

import asyncio
import random
import threading
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import archetype
from archetype import Engine, LanguageModel, spec
from archetype.errors import ArchetypeError, CheckpointError
from archetype.families.gemma2 import gemma2
from archetype.families.llama import llama
from archetype.families.mamba import mamba
from archetype.families.original_transformer import transformer
from archetype.families.seq2seq import seq2seq
from archetype.generate import scheduler, step
from archetype.generate.request import Event, Request
from archetype.models.build import build
from archetype.tokenizers import train_tokenizer
from tests.helpers.examples import examples
from tests.helpers.kernels import kernels
from tests.helpers.weights import randomize

VOCABULARY, CONTEXT = 13, 64
SIZES: dict[str, Any] = dict(d_model=8, vocab_size=VOCABULARY, context_length=CONTEXT)
SPECS = {
    "full": llama(num_layers=1, num_heads=4, num_kv_heads=2, d_ff=12, **SIZES),
    "windows": gemma2(
        num_layers=2, num_heads=2, num_kv_heads=1, head_dim=6, query_width=5, window=20, d_ff=12, **SIZES
    ),
    "recurrent": mamba(num_layers=1, **SIZES),
    "rotation by length": llama(
        num_layers=1, num_heads=2, d_ff=12, **SIZES,
        position=spec.Rotary(scaling=spec.DynamicScaling(factor=4.0, original_context_length=CONTEXT)),
    ),
    "source and target": transformer(num_layers=1, num_heads=2, d_ff=12, **SIZES),
    "source by states": seq2seq(num_layers=1, **SIZES),
}  # fmt: skip
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.5, "top_k": 9, "seed": 4},
    {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 7, "logprobs": 2},
    {"temperature": 0.0, "stop": "\x03"},
)
Outcome = tuple[list[int], str, str | None]


@cache
def loaded(name: str = "full") -> LanguageModel:
    """A model of bytes whose token 0 ends a text."""
    tokenizer = train_tokenizer("bytes", [], None)
    tokenizer.eos = (0,)
    model = randomize(build(SPECS[name], dtype=torch.float64), seed=5)
    return LanguageModel(SPECS[name], model, tokenizer)  # type: ignore[arg-type]


@cache
def asked(name: str) -> list[tuple[list[int], dict[str, Any]]]:
    """Forty different requests, some of which begin alike, or have the same source."""
    draw = random.Random(1)
    if isinstance(SPECS[name], spec.EncoderDecoder):
        tokens = [draw.randrange(1, VOCABULARY) for _ in range(CONTEXT)]
        return [
            (
                tokens[number % 9 : number % 9 + (1, 3, 8, 20, 55)[number % 5]],
                SETTINGS[number % len(SETTINGS)]
                | {"target": tokens[: draw.choice((0, 0, 1, 7, 62))], "max_new_tokens": draw.choice((1, 6, 20))},
            )
            for number in range(40)
        ]
    beginning = [draw.randrange(1, VOCABULARY) for _ in range(40)]
    requests = []
    for number in range(40):
        shared = draw.choice((0, 0, 18, 30, 40))
        own = [draw.randrange(1, VOCABULARY) for _ in range(draw.choice((0 if shared else 1, 2, 5, 9, 20)))]
        prompt = beginning[:shared] + own
        # some run past the context
        limit = {"max_new_tokens": draw.choice((1, 3, 6, 9)) + (12 if len(prompt) > CONTEXT - 10 else 0)}
        requests.append((prompt, SETTINGS[number % len(SETTINGS)] | limit))
    return requests


def outcome(request: Request) -> Outcome:
    return request.tokens, request.text, request.finish_reason


@cache
def alone(name: str, number: int) -> Outcome:
    """What a request gets in an engine of its own."""
    prompt, settings = asked(name)[number]
    request = Engine(loaded(name), slots=1, prefix_bytes=0).submit(prompt, **settings)
    request.result()
    return outcome(request)


def run_mix(name: str, draw: random.Random) -> Engine:
    """Requests that arrive and are cancelled at any time, in an engine of few slots."""
    sizes = {"slots": (1, 2, 3, 4, 6), "prefix_bytes": (0, 9000, 10**6), "prefill_tokens": (1, 40, 512)}
    engine = Engine(loaded(name), **{size: draw.choice(values) for size, values in sizes.items()})
    numbers, requests = [draw.randrange(40) for _ in range(draw.randrange(2, 10))], dict[Request, int]()
    while numbers or engine.stats().waiting or engine.stats().running:
        while numbers and draw.random() < 0.5:
            number = numbers.pop()
            prompt, settings = asked(name)[number]
            requests[engine.submit(prompt, **settings)] = number
        engine.step()
        if requests and draw.random() < 0.05:
            draw.choice([*requests]).cancel()
    for request, number in requests.items():
        tokens, text, reason = alone(name, number)
        if request.finish_reason == "cancelled":
            assert request.tokens == tokens[: len(request.tokens)] and text.startswith(request.text)
        else:
            assert outcome(request) == (tokens, text, reason), (name, number)
    return engine


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("count", [10, pytest.param(250, marks=pytest.mark.slow)])
def test_random_mixes_equal_their_single_runs(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (step, scheduler):
        monkeypatch.setattr(module, "PREFILL_CHUNK", 16)
    draw = random.Random(count)
    cached = sum(run_mix(name, draw).stats().cached_tokens for _ in range(count))
    assert len({alone(name, number)[2] for number in range(40)}) == 2
    assert (cached > 0) == (name != "rotation by length")


@pytest.mark.parametrize("count", [5, pytest.param(200, marks=pytest.mark.slow)])
def test_in_float32_company_changes_no_bit(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of kernels' steps; where a beginning is copied from a prompt of another length, only the last digits."""
    kernels("native")
    for module in (step, scheduler):
        monkeypatch.setattr(module, "PREFILL_CHUNK", 16)
    lm = LanguageModel(SPECS["full"], randomize(build(SPECS["full"]), seed=5))  # type: ignore[arg-type]
    draw = random.Random(count)
    for _ in range(count):
        beginning = [draw.randrange(1, VOCABULARY) for _ in range(30)] if draw.random() < 0.5 else []
        prompts = [
            beginning + [draw.randrange(VOCABULARY) for _ in range(draw.choice((1, 5, 17, 30)))] for _ in range(6)
        ]
        engine, alone = (Engine(lm, slots, prefix_bytes=0, prefill_tokens=draw.choice((1, 40))) for slots in (5, 1))
        options: dict[str, Any] = {"temperature": 0.0, "max_new_tokens": 12, "logprobs": 2}
        requests = []
        for prompt in prompts:
            requests.append(engine.submit(prompt, **options))
            for _ in range(draw.choice((0, 0, 2))):
                engine.step()
        for request in requests:
            together, single = ([*one] for one in (request, alone.submit(request.prompt, **options)))
            assert [event.token for event in together] == [event.token for event in single]
            for ours, theirs in zip(together, single, strict=True):
                assert ours.logprobs is not None and theirs.logprobs is not None
                exact = ours.logprobs.logprob if request.num_cached == 0 else None
                assert theirs.logprobs.logprob == (exact or pytest.approx(ours.logprobs.logprob, abs=1e-4))
        assert beginning or engine.stats().cached_tokens == 0


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(0, 39)),
        st.tuples(st.just("cancel"), st.integers(0, 9)),
        st.tuples(st.just("step"), st.integers(1, 4)),
    ),
    max_size=25,
)


@example([("submit", 0), ("submit", 3)], 1)  # the second ends with its first token, read in place behind a prefix
@examples(15)
@given(ACTIONS, st.integers(1, 5))
def test_every_request_ends_once_and_slots_hold_those_that_run(actions: list[tuple[str, int]], slots: int) -> None:
    engine, requests, events = Engine(loaded(), slots, prefix_bytes=20_000), list[Request](), list[Event]()
    for action, number in actions:
        if action == "submit":
            prompt, settings = asked("full")[number]
            requests.append(engine.submit(prompt, **settings))
        elif action == "cancel" and requests:
            engine.cancel(requests[number % len(requests)].id)
        else:
            for _ in range(number):
                events += engine.step()
                check_slots(engine, slots)
    events += engine.events()
    assert [event.request for event in events if event.finish_reason] == list(
        dict.fromkeys(event.request for event in events if event.finish_reason)
    )
    assert {event.request for event in events} == {*requests} and all(one.finish_reason for one in requests)
    for request in requests:
        tokens = [event.token for event in events if event.request is request and event.token is not None]
        assert tokens == request.tokens
    stats = engine.stats()
    assert (stats.waiting, stats.running, stats.finished) == (0, 0, len(requests))
    assert stats.cache_use == 0 and stats.prefix_bytes <= 20_000
    assert stats.generated_tokens == sum(len(request.tokens) for request in requests)


def check_slots(engine: Engine, limit: int) -> None:
    """Each running request once, in front, and its row as long as what was read of it."""
    running = engine._scheduler.slots.sequences
    assert len({*running}) == len(running) <= limit
    lengths = engine._scheduler.slots.state.lengths.tolist()
    assert lengths[: len(running)] == [len(request.window) - 1 for request in running]
    assert engine._scheduler.slots.state.capacity <= CONTEXT and len(lengths) <= limit
    assert not any(request.finish_reason for request in running)


@pytest.mark.parametrize("name", ["full", "source and target"])
def test_threads_share_an_engine_and_engines_share_a_model(name: str) -> None:
    shared, failed = Engine(loaded(name), slots=3), list[object]()

    def read(number: int, engine: Engine) -> None:
        try:
            prompt, settings = asked(name)[number]
            request = engine.submit(prompt, **settings)
            tokens = [event.token for event in request if event.token is not None]
            if tokens != alone(name, number)[0] or request.result() != alone(name, number)[1]:
                failed.append((number, tokens))
        except Exception as error:
            failed.append(error)

    [alone(name, number) for number in range(16)]
    threads = [
        threading.Thread(target=read, args=(number, shared if number < 12 else Engine(loaded(name), slots=1)))
        for number in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == [] and shared.stats().finished == 12


def test_asyncio_reads_while_a_thread_steps() -> None:
    engine = Engine(loaded(), slots=3)

    async def read(number: int) -> list[int]:
        prompt, settings = asked("full")[number]
        return [event.token async for event in engine.submit(prompt, **settings) if event.token is not None]

    async def leave_early() -> Request:
        request = engine.submit([1, 2, 3], max_new_tokens=10_000, ignore_eos=True)
        events = aiter(request)
        await anext(events)
        await events.aclose()  # type: ignore[attr-defined]
        return request

    async def everything() -> None:
        left = asyncio.create_task(leave_early())
        numbers = [4, 9, 14, 19, 24]
        assert await asyncio.gather(*map(read, numbers)) == [alone("full", number)[0] for number in numbers]
        while (await left).finish_reason is None:
            await asyncio.sleep(0.001)
        assert (await left).finish_reason == "cancelled"

    asyncio.run(everything())
    assert engine.stats().finished == 6


def test_logprobs_are_those_of_a_plain_pass_before_temperature() -> None:
    lm = loaded()
    engine = Engine(lm)
    for sampling in ({"temperature": 0.0}, {"temperature": 1.7, "seed": 3, "top_k": 5, "repetition_penalty": 1.3}):
        request = engine.submit([1, 2, 3], logprobs=4, max_new_tokens=12, ignore_eos=True, **sampling)
        events = [*request]
        text = request.prompt + request.tokens
        with torch.no_grad():
            logs = lm.model(torch.tensor([text])).logits[0].float().log_softmax(-1)
        for place, event in enumerate(events, start=len(request.prompt) - 1):
            assert event.logprobs is not None
            assert event.logprobs.logprob == pytest.approx(float(logs[place, event.token]), abs=1e-6)
            best = logs[place].topk(4)
            assert [id for id, _ in event.logprobs.top] == best.indices.tolist()
            assert [value for _, value in event.logprobs.top] == pytest.approx(best.values.tolist(), abs=1e-6)
            likeliest, value = event.logprobs.top[0]
            assert (event.token == likeliest) == (event.logprobs.logprob == value)
        [scores] = engine.score([text], logprobs=4)
        assert scores[0] is None and len(scores) == len(text)
        for one, event in zip(scores[len(request.prompt) :], events, strict=True):
            assert one is not None and event.logprobs is not None
            assert one.logprob == pytest.approx(event.logprobs.logprob, abs=1e-6)
    ended = engine.submit([1, 2, 3], logprobs=0, stop_ids=tuple(range(VOCABULARY)))
    [event] = ended
    assert event.token is not None and event.logprobs is not None and event.logprobs.top == ()
    assert (event.text, event.finish_reason) == ("", "stop")


@pytest.mark.parametrize("name", ["full", "windows", "recurrent"])
def test_a_shared_beginning_is_read_once(name: str) -> None:
    """Of full attention any part of an earlier text; of others an earlier text as a whole."""
    beginning = [1 + n % 7 for n in range(30)]
    engine = Engine(loaded(name), slots=2)
    first = engine.submit(beginning, temperature=0.0, max_new_tokens=4, ignore_eos=True)
    first.result()
    prompts = [[*beginning, *first.tokens[:-1], 5, 6], [*beginning[:20], 9]]
    for prompt in prompts:
        request = engine.submit(prompt, temperature=0.0, max_new_tokens=6)
        request.result()
        single = Engine(loaded(name), prefix_bytes=0).submit(prompt, temperature=0.0, max_new_tokens=6)
        assert request.result() == single.result() and request.tokens == single.tokens
        assert single.num_cached == 0
        assert request.num_cached == (len(prompt) - 2 if prompt is prompts[0] else 20 if name == "full" else 0)
    assert engine.stats().cached_tokens == 33 + (20 if name == "full" else 0)


def test_states_that_are_remembered_take_no_more_than_their_share() -> None:
    engine, cached = Engine(loaded(), slots=1, prefix_bytes=6000), []
    for number in (1, 2, 3, 4, 5, 5, 1):
        request = engine.submit([number] * 40, max_new_tokens=1)
        request.result()
        cached.append(request.num_cached)
        assert 0 < engine.stats().prefix_bytes <= 6000
    assert cached == [0, 0, 0, 0, 0, 39, 0]


@pytest.fixture
def damaged() -> LanguageModel:
    """A model in which token 9 has no finite vector."""
    model = randomize(build(SPECS["full"], dtype=torch.float64), seed=5).requires_grad_(False)
    model.get_parameter("embedding.token.weight")[9] = float("nan")
    return LanguageModel(SPECS["full"], model)  # type: ignore[arg-type]


def test_a_request_that_fails_leaves_the_others_as_they_were(damaged: LanguageModel) -> None:
    engine, options = Engine(damaged, slots=2), {"temperature": 0.0, "max_new_tokens": 20}
    good = engine.submit([1, 2, 3], **options)
    bad = engine.submit([4, 9, 3], **options)
    late = [engine.submit([5, 6], **options) for _ in range(2)]
    with pytest.raises(CheckpointError, match="first NaN or infinite number is computed by embedding"):
        bad.result()
    assert bad.finish_reason == "error" and isinstance(bad.error, CheckpointError)
    for request in (good, *late):
        single = Engine(damaged).submit(request.prompt, **options)
        assert (request.result(), request.tokens) == (single.result(), single.tokens)
        assert len(single.tokens) == 20 and 9 not in single.tokens


def test_a_fault_in_a_step_reaches_every_reader_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(loaded(), slots=2)
    requests = [engine.submit([number], max_new_tokens=9, ignore_eos=True) for number in (1, 2, 3)]
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(type(loaded().model), "forward", lambda *_, **__: 1 / 0)
        engine.step()
    for request in requests:
        with pytest.raises(ZeroDivisionError):
            request.result()
    assert [len(request.tokens) for request in requests] == [1, 1, 0]
    prompt, options = asked("full")[8]
    request = engine.submit(prompt, **options)
    request.result()
    assert outcome(request) == alone("full", 8)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ("a" * 99, {}, "prompt: has 99 tokens, but the model's context is 64; shorten it"),
        ([], {}, "prompt: is empty, and the tokenizer has no start token; provide some text"),
        ([1], {"logprobs": 101}, "logprobs: 101 is not between 0 and 100; choose a number in this range"),
        ([1], {"temprature": 1}, "temprature: is not a known key; did you mean temperature?"),
        ([1], {"id": 7}, "id: 7 is the id of another unfinished request; choose another id"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(prompt: Any, options: dict[str, Any], message: str) -> None:
    engine = Engine(loaded())
    engine.submit([1], id=7)
    with pytest.raises(ArchetypeError) as caught:
        engine.submit(prompt, **options)
    assert str(caught.value) == message
    assert engine.stats().waiting == 1


def test_an_engine_needs_a_model_that_continues_texts() -> None:
    bert = archetype.load_spec("bert-tiny")
    with pytest.raises(ArchetypeError, match="model: Encoder cannot generate text; load a decoder"):
        Engine(LanguageModel(bert, archetype.build(bert)))
    with pytest.raises(ArchetypeError, match="slots: 0 is too small; use at least 1"):
        Engine(loaded(), slots=0)
    bare = Engine(LanguageModel(loaded().spec, loaded().model))
    for prompt, options in (("text", {}), ([1], {"stop": "a"})):
        with pytest.raises(ArchetypeError, match="the model's folder has no tokenizer"):
            bare.submit(prompt, **options)  # type: ignore[arg-type]


def test_text_comes_in_whole_characters_and_ends_at_a_stop_string() -> None:
    wide = llama(num_layers=1, d_model=8, num_heads=2, d_ff=12, vocab_size=256, context_length=64)
    lm = LanguageModel(wide, randomize(build(wide), 3), train_tokenizer("bytes", [], None))  # type: ignore[arg-type]
    request = Engine(lm).submit("aé", temperature=3.0, max_new_tokens=40)
    events = [*request]
    assert "".join(event.text for event in events) == request.text == lm.tokenizer.decode(request.tokens)  # type: ignore[union-attr]
    stop = request.text[5:7]
    stopped = Engine(lm).submit("aé", temperature=3.0, max_new_tokens=40, stop=stop)
    assert stopped.result() == request.text[: request.text.index(stop)] and stopped.finish_reason == "stop"


def test_a_request_that_comes_while_a_slot_is_given_is_read() -> None:
    """From another thread, as a server's do: here from within the hash of a group, which is looked up meanwhile."""
    engine = Engine(loaded("full"), slots=2)
    late: list[Request] = []

    class Group:
        def __hash__(self) -> int:
            late.append(engine.submit([3, 4], max_new_tokens=2))
            return 1

    first = [engine.submit([1, 2], max_new_tokens=2, group=Group()) for _ in range(2)]
    engine.step()
    assert late
    for request in first:
        request.group = None
    for request in [*first, *late]:
        request.result()
        assert len(request.tokens) == 2
