"""Guesses change no token: with a draft model or prompt lookup each text is the one without, greedy or sampled."""

import copy
import random
from functools import cache
from typing import Any

import pytest
import torch

from archetype import Engine, LanguageModel
from archetype.errors import SpecError
from archetype.families.gpt2 import gpt2
from archetype.families.llama import llama
from archetype.families.mamba import mamba
from archetype.families.mistral import mistral
from archetype.generate import slots
from archetype.generate.request import Request
from archetype.generate.speculate import DraftModel, OwnDraft, PromptLookup
from archetype.generate.step import DecodeStep
from archetype.models.build import build
from archetype.nn.context import ForwardContext
from archetype.spec import Decoder, assign
from archetype.tokenizers import train_tokenizer
from tests.helpers.kernels import kernels
from tests.helpers.weights import randomize

SIZES: dict[str, Any] = dict(num_heads=2, vocab_size=13, context_length=48)
SPECS = {
    "rotary": llama(num_layers=2, d_model=8, d_ff=12, **SIZES),
    "learned positions": gpt2(num_layers=1, d_model=8, **SIZES),
    "draft": llama(num_layers=1, d_model=8, d_ff=12, **SIZES | {"context_length": 32}),
}
SETTINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.2, "top_k": 9, "seed": 4},
    {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.3, "seed": 7},
)


@cache
def loaded(name: str, seed: int = 5) -> LanguageModel:
    tokenizer = train_tokenizer("bytes", [], None)
    tokenizer.eos = (0,)
    model = randomize(build(SPECS[name], dtype=torch.float64), seed)
    return LanguageModel(SPECS[name], model, tokenizer)  # type: ignore[arg-type]


def run(engine: Engine, draw: random.Random) -> list[Request]:
    """Requests that arrive at any time; every third prompt repeats itself."""
    requests = []
    for number in range(12):
        prompt = [draw.randrange(1, 13) for _ in range(draw.choice((1, 3, 6)))] * draw.choice((1, 1, 3))
        options = SETTINGS[number % 3] | {"max_new_tokens": draw.choice((1, 4, 17, 50)), "ignore_eos": number % 4 > 0}
        requests.append(engine.submit(prompt, **options))
        for _ in range(draw.randrange(3)):
            engine.step()
    for _ in engine.events():
        pass
    return requests


@cache
def without_guesses(name: str, seed: int) -> list[Request]:
    return run(Engine(loaded(name), slots=4), random.Random(seed))


@pytest.mark.parametrize("name", ["rotary", "learned positions"])
@pytest.mark.parametrize("guess", ["lookup", "draft", "the model itself"])
def test_no_token_changes(name: str, guess: str) -> None:
    """Also past the context, with stops, and with requests that come and go."""
    draft = {"lookup": None, "draft": loaded("draft"), "the model itself": loaded(name)}[guess]
    for seed in range(2):
        engine = Engine(loaded(name), slots=4, draft=draft, lookup=draft is None)
        for request, expected in zip(run(engine, random.Random(seed)), without_guesses(name, seed), strict=True):
            assert request.tokens == expected.tokens
            assert (request.text, request.finish_reason) == (expected.text, expected.finish_reason)
        stats = engine.stats()
        assert 0 < stats.accepted_tokens <= stats.guessed_tokens
        if guess == "the model itself":  # whose guesses are right, but for those past the end of a text
            assert stats.accepted_tokens > 0.6 * stats.guessed_tokens


def test_sampled_tokens_are_as_likely_as_the_model_says() -> None:
    """The third token after a prompt, over many seeds, against the probabilities of plain passes."""
    lm, prompt, draws = loaded("rotary"), [1, 2, 3, 1, 2], 400
    engine = Engine(lm, draft=loaded("draft"))
    requests = [
        engine.submit(prompt, seed=seed, temperature=1.0, max_new_tokens=3, ignore_eos=True) for seed in range(draws)
    ]
    for _ in engine.events():
        pass
    with torch.no_grad():
        first = lm.model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
        second = lm.model(torch.tensor([[*prompt, a] for a in range(13)])).logits[:, -1].softmax(-1)
        longer = torch.tensor([[*prompt, a, b] for a in range(13) for b in range(13)])
        third = lm.model(longer).logits[:, -1].softmax(-1).view(13, 13, 13)
    expected = torch.einsum("a,ab,abc->c", first, second, third) * draws
    observed = torch.bincount(torch.tensor([request.tokens[2] for request in requests]), minlength=13)
    assert expected.min() > 5
    squared = float(((observed - expected) ** 2 / expected).sum())
    assert squared < 32.9  # chi-square with 12 degrees of freedom stays below in 999 of 1,000 sets of seeds
    assert engine.stats().accepted_tokens > 50


def test_a_draft_forgets_all_after_its_first_wrong_guess() -> None:
    """It guesses what one guesses that reads the whole text anew."""
    model: Any = loaded("draft").model
    engine, guesser = Engine(loaded("rotary")), DraftModel(model, slots=2)
    request, count = engine.submit([3, 1, 4], temperature=0.0), 4
    guesses = guesser.propose([request], count)
    for right in (0, 2, 1, 3, 0):
        request.window += [*guesses[0][:right], guesses[0][right] % 12 + 1, 5, 7]  # and two steps without guesses
        guesses = guesser.propose([request], count)
        assert guesses == DraftModel(model, slots=2).propose([request], count)


def test_lookup_finds_what_followed_the_newest_tokens_last() -> None:
    request = Engine(loaded("rotary")).submit([5, 1, 2, 3, 9, 1, 2, 3, 4, 6, 1, 2, 3])
    assert PromptLookup().propose([request], 3) == [[4, 6, 1]]
    request.window = [7, 1, 2, 8, 8, 1, 2]
    assert PromptLookup().propose([request], 9) == [[8, 8, 1, 2]]
    for window in ([1], [1, 2], [1, 2, 3], [1, 3, 1]):
        request.window = window
        assert PromptLookup().propose([request], 9) == [[]]


def test_guesses_need_a_state_that_can_go_back() -> None:
    sizes: dict[str, Any] = dict(num_layers=1, d_model=8, vocab_size=13, context_length=48)
    for spec in (mamba(**sizes), mistral(num_heads=2, num_kv_heads=1, d_ff=12, window=4, **sizes)):
        other = LanguageModel(spec, randomize(build(spec)))  # type: ignore[arg-type]
        for lm, options, place in ((other, {"lookup": True}, "model"), (loaded("rotary"), {"draft": other}, "draft")):
            with pytest.raises(SpecError, match=f"{place}: the state cannot be rolled back after a rejected draft"):
                Engine(lm, **options)  # type: ignore[arg-type]
    small = Decoder.parse(SPECS["draft"].dump() | {"vocab_size": 12})
    with pytest.raises(SpecError, match="draft: does not have the model's vocabulary of 13 tokens"):
        Engine(loaded("rotary"), draft=LanguageModel(small, build(small)))
    with pytest.raises(SpecError, match="lookup: cannot be combined with a draft model"):
        Engine(loaded("rotary"), draft=loaded("draft"), lookup=True)


def test_the_draft_goes_on_with_the_steps_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is recorded when it is first taken; a new one for every guess would be recorded every time."""
    created: list[DecodeStep] = []

    class Counted(DecodeStep):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            created.append(self)

    monkeypatch.setattr(slots, "DecodeStep", Counted)
    engine = Engine(loaded("rotary"), draft=loaded("draft", seed=6))
    tokens = list(engine.submit([1, 2, 3], max_new_tokens=20, ignore_eos=True, temperature=0.0))
    assert len(tokens) == 20 and engine.stats().guessed_tokens > 20
    assert 0 < len(created) <= 6  # one each time that the state has grown


FURTHER = {
    "one further": assign(SPECS["rotary"], ["further_tokens={count: 1}"]),
    "three further": assign(SPECS["learned positions"], ["further_tokens={count: 3}", "head.softcap=5.0"]),
}


@pytest.mark.parametrize("name", FURTHER)
def test_a_model_that_is_its_own_draft_changes_no_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also past the context, with stops, and with requests that come and go."""
    monkeypatch.setitem(SPECS, name, FURTHER[name])
    for seed in range(2):
        engine = Engine(loaded(name), slots=4, draft="self")
        for request, expected in zip(run(engine, random.Random(seed)), without_guesses(name, seed), strict=True):
            assert request.tokens == expected.tokens
            assert (request.text, request.finish_reason) == (expected.text, expected.finish_reason)
        stats = engine.stats()
        assert 0 < stats.accepted_tokens < stats.guessed_tokens


@pytest.mark.parametrize("name", FURTHER)
def test_its_guesses_are_those_of_the_whole_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was guessed wrong, whatever other rows read, and where a text goes on from another's state."""
    monkeypatch.setitem(SPECS, name, FURTHER[name])
    lm = loaded(name)
    model: Any = lm.model
    proposed, whole, own = [], [], OwnDraft.propose

    def propose(self: OwnDraft, requests: list[Request], limit: int) -> list[list[int]]:
        guesses = own(self, requests, limit)
        proposed.extend(guesses)
        whole.extend(drafted(model, request.window)[:limit] for request in requests)
        return guesses

    monkeypatch.setattr(OwnDraft, "propose", propose)
    monkeypatch.setattr(slots, "MIN_SHARED", 3)
    engine, draw = Engine(lm, slots=3, draft="self", speculative_tokens=2), random.Random(1)
    first = [draw.randrange(1, 13) for _ in range(9)]
    for prompt in (first, first[:5], [*first[:7], 1, 2], first, [4]):
        engine.submit(prompt, temperature=0.0, max_new_tokens=draw.choice((3, 9, 30)), ignore_eos=True)
        engine.step()
    for _ in engine.events():
        pass
    assert proposed == whole and len(proposed) > 20
    assert engine.stats().accepted_tokens < len(proposed)


def drafted(model: Any, window: list[int]) -> list[int]:
    """The guesses of a model without a state."""
    text, further = torch.tensor([window]), model.further_tokens
    guesses: list[int] = []
    with torch.no_grad():
        hidden = model(text[:, :-1]).hidden
        context = ForwardContext.of(hidden)
        for index in range(len(further.blocks)):
            text = torch.tensor([[*window, *guesses]])
            embedded = model.embedding(text, ForwardContext.of(text))[:, index + 1 :]
            hidden = further.step(index, hidden, embedded, context)
            guesses.append(int(model.lm_head(hidden[:, -1:], model.token_table).argmax()))
    return guesses


def test_further_tokens_that_are_always_right_save_most_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a model without blocks the next token follows from the newest: a head that reads it says as much ahead."""
    monkeypatch.setitem(SPECS, "one further", FURTHER["one further"])
    lm = LanguageModel(FURTHER["one further"], copy.deepcopy(loaded("one further").model))  # type: ignore[arg-type]
    model: Any = lm.model
    with torch.no_grad():
        for block in (*model.blocks, *model.further_tokens.blocks):  # which add nothing
            block.mixer.o.weight.zero_()
            block.feedforward.down.weight.zero_()
        further = model.further_tokens
        further.projections[0].weight.copy_(torch.cat((torch.zeros(8, 8), torch.eye(8)), dim=1))
        for norm in (further.embedding_norms[0], further.final_norms[0], model.final_norm):
            norm.weight.fill_(1.0)
    engine = Engine(lm, draft="self")
    request = engine.submit([3, 1], temperature=0.0, max_new_tokens=21, ignore_eos=True)
    assert len(list(request)) == 21
    stats = engine.stats()
    assert (stats.accepted_tokens, stats.guessed_tokens, stats.steps) == (10, 10, 11)


def test_a_draft_of_its_own_needs_further_tokens_whose_blocks_can_go_back() -> None:
    with pytest.raises(SpecError, match="draft: the model has no further_tokens; name a smaller model"):
        Engine(loaded("rotary"), draft="self")
    for block in ("mixer={kind: gru}", "mixer.pattern={kind: window, size: 4}"):
        further = assign(FURTHER["one further"], [f"further_tokens.block={SPECS['rotary'].layers[0].dump()}"])
        model = assign(further, [f"further_tokens.block.{block}"])
        with pytest.raises(SpecError, match=r"further_tokens.block: the state cannot be rolled back"):
            Engine(LanguageModel(model, build(model)), draft="self")  # type: ignore[arg-type]
        LanguageModel(model, build(model)).generate  # noqa: B018  # which it does without a draft


def test_a_step_of_a_draft_state_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels("native")
    model: Any = build(FURTHER["one further"])
    state, plain = model.new_draft_state(2, 16), model.new_state(2, 16)
    tokens = torch.tensor([[3, 1, 4], [1, 5, 9]])
    for name, one in (("draft", state), ("plain", plain)):
        model(tokens, one)
        one.lengths += 3
        step = DecodeStep(model, one)
        logits = [step(torch.tensor([[2], [6]])).clone() for _ in range(3)]
        assert step.replay is not None, name
        results = logits if name == "draft" else results
        assert all(torch.equal(a, b) for a, b in zip(results, logits, strict=True))
    hidden = model(torch.cat((tokens, *[torch.tensor([[2], [6]])] * 3), dim=1)).hidden
    torch.testing.assert_close(state.layers[len(model.blocks)].vectors[:, 0, :6], hidden)
