"""Deterministic models: a text's logits are the same to the bit alone and in company, cut, shared, guessed or not."""

import random
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch

from archetype import Engine, LanguageModel, spec
from archetype.errors import SpecError
from archetype.families import preset
from archetype.generate import Beam, beam_search, scheduler, step
from archetype.generate.reader import StepReader, make_deterministic
from archetype.generate.request import Logprobs, Request
from archetype.models.build import build
from tests.helpers.examples import every
from tests.helpers.kernels import kernels
from tests.helpers.weights import distance, randomize

VOCABULARY, CONTEXT = 96, 80
KINDS = (
    "llama", "gemma2", "mamba", "mixtral", "gpt2", "deepseek-v2", "bloom", "gpt-oss", "mamba2", "sparse-strided", "gru",
    "t5", "smollm3", "ngram", "qwen3-moe", "transformer",
)  # fmt: skip
FORMATS = ("bfloat16", "int8", "int4", "lossless", "float32")
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.1, "top_k": 20, "seed": 4},
    {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 7},
)
Outcome = list[tuple[int, Logprobs | None]]


@cache
def loaded(kind: str, format: str = "float32", deterministic: bool = True) -> LanguageModel:
    """A small model of some kind with random weights of a format."""
    own = preset(f"{kind}-tiny").replace(d_model=128, vocab_size=VOCABULARY, context_length=CONTEXT)
    model = randomize(build(own), seed=5).to(torch.float32 if format == "float32" else torch.bfloat16)
    lm = LanguageModel(own, model, special={"decoder_start_token_id": 0})  # type: ignore[arg-type]
    if format in ("int8", "int4", "lossless"):
        lm.pack(format)
    return lm.make_deterministic() if deterministic else lm


@cache
def asked(kind: str) -> list[tuple[list[int], dict[str, Any]]]:
    """Forty requests, half of which begin alike, or have the same source; some run past the context."""
    draw, requests = random.Random(1), []
    beginning = [draw.randrange(VOCABULARY) for _ in range(60)]
    for number in range(40):
        own = [draw.randrange(VOCABULARY) for _ in range(draw.choice((1, 2, 3, 7, 16, 33, 70)))]
        prompt = (beginning[: draw.choice((0, 0, 17, 40))] + own)[: CONTEXT - 2]
        options = SETTINGS[number % 3] | {"max_new_tokens": draw.choice((1, 4, 9, 20)), "logprobs": 3}
        if preset(f"{kind}-tiny").reads_source:
            prompt, options = beginning[: draw.choice((1, 9, 40))], options | {"target": own[:5]}
        requests.append((prompt, options))
    return requests


def outcome(request: Request) -> Outcome:
    """Its tokens, and the log-probabilities of these and of the likeliest, to the bit."""
    return [(event.token, event.logprobs) for event in request if event.token is not None]


@cache
def single_engine(kind: str, format: str, deterministic: bool) -> Engine:
    return Engine(loaded(kind, format, deterministic), slots=1, prefix_bytes=0)


@cache
def alone(kind: str, format: str, deterministic: bool, number: int) -> Outcome:
    """What a request gets in an engine that has no other, and remembers nothing."""
    prompt, options = asked(kind)[number]
    return outcome(single_engine(kind, format, deterministic).submit(prompt, **options))


def in_company(kind: str, format: str, draw: random.Random, deterministic: bool) -> tuple[int, int]:
    """How many requests an engine had, with others at any time, and how many differ from their single runs."""
    lm = loaded(kind, format, deterministic)
    guesses: list[dict[str, Any]] = [{}]
    if isinstance(lm.spec, spec.CausalSpec) and lm.model.new_state(1).can_shorten:
        guesses += [{"lookup": True}, *({"draft": loaded(draft, format, False)} for draft in (kind, "gpt2"))]
    sizes = {"slots": (2, 3, 6), "prefix_bytes": (0, 10**7), "prefill_tokens": (1, 40, 512)}
    engine = Engine(lm, **{size: draw.choice(values) for size, values in sizes.items()}, **draw.choice(guesses))
    numbers, requests = [draw.randrange(40) for _ in range(8)], dict[Request, int]()
    while numbers or engine.stats().waiting or engine.stats().running:
        while numbers and draw.random() < 0.4:
            prompt, options = asked(kind)[number := numbers.pop()]
            requests[engine.submit(prompt, **options)] = number
        engine.step()
        if requests and draw.random() < 0.03:
            draw.choice([*requests]).cancel()
    whole = [request for request in requests if request.finish_reason != "cancelled"]
    return len(whole), sum(outcome(one) != alone(kind, format, deterministic, requests[one]) for one in whole)


def total(
    kind: str, format: str, engines: int, monkeypatch: pytest.MonkeyPatch, deterministic: bool = True
) -> tuple[int, int]:
    """The sums over some engines, whose prompts are cut into pieces of different lengths."""
    kernels("native")
    draw, counts = random.Random(engines), []
    for _ in range(engines):
        monkeypatch.setattr(scheduler, "PREFILL_CHUNK", draw.choice((5, 16, 1024)))
        counts.append(in_company(kind, format, draw, deterministic))
    requests, different = map(sum, zip(*counts, strict=True))
    return requests, different


CASES = [(kind, FORMATS[(number + turn) % 5]) for turn, (number, kind) in product(range(5), enumerate(KINDS))]


@pytest.mark.parametrize(("kind", "format"), every(34, [pytest.param(*case, id="-".join(case)) for case in CASES]))
def test_company_changes_no_bit(kind: str, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert total(kind, format, 1, monkeypatch)[1] == 0


@pytest.mark.slow
def test_five_thousand_requests_are_bit_for_bit_as_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {case: total(*case, 9, monkeypatch) for case in CASES}
    assert sum(requests for requests, _ in counts.values()) > 5000
    assert {case: different for case, (_, different) in counts.items() if different} == {}


@pytest.mark.parametrize("format", ["bfloat16", "int8"])
def test_without_it_company_changes_bits(format: str) -> None:
    assert in_company("llama", format, random.Random(0), deterministic=False)[1] > 0


def test_a_text_is_scored_as_it_was_written() -> None:
    kernels("native")
    for kind, format in (("llama", "bfloat16"), ("gemma2", "int8")):
        engine = Engine(loaded(kind, format), slots=2)
        request = engine.submit([5, 9, 1, 1, 40], temperature=0.0, max_new_tokens=12, logprobs=3)
        written = [event.logprobs for event in request]
        [scored] = engine.score([[5, 9, 1, 1, 40, *request.tokens]], logprobs=3)
        assert scored[5:] == written


@pytest.mark.parametrize(
    ("kind", "dtype", "message"),
    [
        (
            "lstm",
            torch.float32,
            "a step of this model contains aten.mkldnn_rnn_layer.default in _LSTM, so results",
        ),
        (
            "megabyte",
            torch.float32,
            "a step of this model contains __bool__ on the host in MegaByte, so results",
        ),
        ("llama", torch.float64, "there are no native kernels for float64 on cpu here; use float32 or bfloat16"),
        ("bert", torch.float32, "a model of kind encoder with head masked_language_model cannot do this"),
    ],
)
def test_what_cannot_be_promised_is_refused(kind: str, dtype: torch.dtype, message: str) -> None:
    kernels("native")
    model = build(preset(f"{kind}-tiny"), dtype=dtype).eval()
    with pytest.raises(SpecError, match=message):
        LanguageModel(model.spec, model).make_deterministic()
    assert not getattr(model, "is_deterministic", False)


def test_without_kernels_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "library", lambda: None)
    with pytest.raises(SpecError, match="there are no native kernels for float32 on cpu here"):
        loaded("llama", deterministic=False).make_deterministic()


def test_a_search_with_beams_is_refused() -> None:
    kernels("native")
    with pytest.raises(SpecError, match="deterministic: beam search batches its sources"):
        beam_search(loaded("transformer").model, [[3, 4]], 0, 1, Beam())  # type: ignore[arg-type]


@torch.no_grad()
def test_a_prompt_is_read_by_steps_into_states_of_parts_side_by_side() -> None:
    """The rows of a step, which are tokens of one text, share the keys of both attentions."""
    kernels("native")
    block = preset("llama-tiny").layers[0]
    both = spec.MixersTogether(parts=(block.mixer, spec.Attention(num_heads=4, num_kv_heads=2)))
    model = randomize(build(preset("llama-tiny").replace(layers=(block.replace(mixer=both),)))).eval()
    make_deterministic(model)
    tokens = [5, 9, 2, 7, 1]
    logits = StepReader(model, model.new_state(1, 16))(tokens)
    assert distance(logits, model(torch.tensor([tokens])).logits[0]) < 1e-5
