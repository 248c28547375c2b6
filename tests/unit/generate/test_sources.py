"""Requests with a source, to an engine of an encoder-decoder: as a pass over the whole target, as the beam search."""

from functools import cache
from typing import Any

import pytest
import torch

from archetype.api.language_model import LanguageModel
from archetype.data.pairs import end_of_text
from archetype.errors import ArchetypeError
from archetype.families.original_transformer import transformer
from archetype.families.seq2seq import seq2seq
from archetype.families.t5 import t5
from archetype.generate import Beam, Engine, Sampler, Sampling, beam_search, sample
from archetype.models.build import build
from archetype.models.encoder_decoder.module import EncoderDecoder
from archetype.nn.context import ForwardContext
from archetype.spec import ModelSpec
from archetype.tokenizers import train_tokenizer
from tests.helpers.cases import case
from tests.helpers.weights import randomize

END, VOCABULARY, CONTEXT = 0, 13, 24
SIZES: dict[str, Any] = dict(num_layers=1, d_model=8, vocab_size=VOCABULARY, context_length=CONTEXT)
SPECS: dict[str, ModelSpec] = {
    "transformer": transformer(num_heads=2, d_ff=12, **SIZES),
    "t5": t5(num_heads=2, head_dim=4, d_ff=12, tied=False, **SIZES),
    "lstm with attention": seq2seq(attention=True, **SIZES),
}
SOURCES = [[1, 2, 3, END], [4, END], [3, 3, 1, 12, 2, 1, 4, 9, 5, END], [2, 1, END], [4, END]]
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.5, "top_k": 9, "repetition_penalty": 1.2, "seed": 4},
)


@cache
def loaded(name: str, seed: int = 5) -> LanguageModel:
    tokenizer = train_tokenizer("bytes", [], None)
    tokenizer.eos = (END,)
    model = randomize(build(SPECS[name], dtype=torch.float64), seed=seed)
    with torch.no_grad():  # so that logits follow the text
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return LanguageModel(SPECS[name], model, tokenizer)  # type: ignore[arg-type]


@torch.no_grad()
def plainly(name: str, source: list[int], target: list[int], sampling: dict[str, Any], count: int) -> list[int]:
    """Every token from a pass over the whole target."""
    model, written = loaded(name).model, [END, *target]
    sampler = Sampler(Sampling(**sampling), written, VOCABULARY, torch.device("cpu"))
    for _ in range(min(count, CONTEXT - len(written))):
        logits = model(torch.tensor([written]), source=torch.tensor([source])).logits[:, -1]
        written.append(sample(logits, [sampler])[0])
        if written[-1] == END:
            break
    return written[1 + len(target) :]


@pytest.mark.parametrize("name", SPECS)
def test_targets_are_those_of_passes_over_the_whole(name: str) -> None:
    engine, requests = Engine(loaded(name), slots=3), []
    for sampling in SAMPLINGS:
        for source, target in zip(SOURCES[:4], ([], [7, 1], [], [5] * 20), strict=True):
            requests.append((engine.submit(source, target=target, max_new_tokens=9, **sampling), sampling))
    [*engine.events()]
    for request, sampling in requests:
        with case(f"{request.prompt} {request.window} {sampling}"):
            target = request.window[1 : len(request.window) - sum(token != END for token in request.tokens)]
            assert request.tokens == plainly(name, request.prompt, target, sampling, 9)
            ended = request.tokens[-1] == END
            assert request.finish_reason == ("stop" if ended else "length")
    assert len({tuple(request.tokens) for request, _ in requests}) > 4


@pytest.mark.parametrize("name", SPECS)
def test_a_source_is_read_once_however_many_ask(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, read = loaded(name), []
    assert isinstance(lm.model, EncoderDecoder)
    encode = lm.model.encode

    def counted(source: torch.Tensor, context: ForwardContext) -> object:
        read.append(source.tolist()[0])
        return encode(source, context)

    monkeypatch.setattr(lm.model, "encode", counted)
    engine = Engine(lm, slots=2, prefill_tokens=5)
    requests = [engine.submit(source, max_new_tokens=4, temperature=0.0) for source in SOURCES * 2]
    [*engine.events()]
    assert read == SOURCES[:4]
    assert sum(request.num_cached for request in requests) == sum(map(len, (*SOURCES, SOURCES[4])))
    assert engine.stats().cached_tokens + sum(map(len, SOURCES[:4])) == engine.stats().prompt_tokens
    engine = Engine(lm, prefix_bytes=0)
    [engine.submit([4, END], max_new_tokens=1).result() for _ in range(2)]
    assert read[4:] == [[4, END]] * 2 and engine.stats().prefix_bytes == 0


def test_greedy_texts_are_the_translations_with_one_beam() -> None:
    """With the ids that start and suppress as a folder's files give them, as Marian's do."""
    texts = ["\x03\x05", "\x01", "\x0b\x02\x07\x07"]
    for special in ({}, {"decoder_start_token_id": 12, "bad_words_ids": [[7], [2, 3], [99]]}):
        lm = loaded("transformer")
        lm = LanguageModel(lm.spec, lm.model, lm.tokenizer, special=special)
        expected = lm.translate(texts, num_beams=1)
        assert lm.generate(texts, max_new_tokens=CONTEXT) == expected != ["", "", ""]
        assert [*lm.stream(texts[0])] == [*expected[0]]
        assert ("\x07" in "".join(expected)) == (not special)
        assert lm.tokenizer is not None and isinstance(lm.model, EncoderDecoder)
        source = [*lm.tokenizer.encode(texts[0]), end_of_text(lm.tokenizer)]
        never = (7,) if special else ()
        start = special.get("decoder_start_token_id", END)
        settings = Beam(num_beams=1, suppress_tokens=never)
        assert Engine(lm).submit(source).result() == lm.tokenizer.decode(
            beam_search(lm.model, [source], start, END, settings)[0]
        )


def test_logprobs_are_those_of_a_plain_pass() -> None:
    lm, source = loaded("t5"), SOURCES[2]
    events = [*Engine(lm).submit(source, target=[3], logprobs=2, max_new_tokens=9, temperature=1.1, ignore_eos=True)]
    target = [END, 3, *(event.token for event in events if event.token is not None)]
    with torch.no_grad():
        logs = lm.model(torch.tensor([target]), source=torch.tensor([source])).logits[0].log_softmax(-1)
    for place, event in enumerate(events, start=1):
        assert event.logprobs is not None and event.token is not None
        assert event.logprobs.logprob == pytest.approx(float(logs[place, event.token]), abs=1e-6)
        assert [id for id, _ in event.logprobs.top] == logs[place].topk(2).indices.tolist()


def test_a_source_that_fails_leaves_the_others_as_they_were() -> None:
    lm = loaded("t5")
    model = randomize(build(SPECS["t5"], dtype=torch.float64), seed=5).requires_grad_(False)
    model.get_parameter("embedding.token.weight")[9] = float("nan")
    engine = Engine(LanguageModel(lm.spec, model, lm.tokenizer), slots=2)  # type: ignore[arg-type]
    requests = [engine.submit(source, max_new_tokens=9, temperature=0.0) for source in SOURCES]
    with pytest.raises(ArchetypeError, match="the first NaN or infinite number is computed by embedding"):
        requests[2].result()
    for request in (*requests[:2], *requests[3:]):
        single = Engine(LanguageModel(lm.spec, model, lm.tokenizer), slots=1)  # type: ignore[arg-type]
        assert request.result() == single.submit(request.prompt, max_new_tokens=9, temperature=0.0).result()


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([1] * 25, {}, "prompt: has 25 tokens, but the model's context is 24; shorten it"),
        ([13], {}, "prompt: contains a token id outside the vocabulary of 13; is it the model's own tokenizer?"),
        ([1], {"target": [1] * 23}, "target: has 25 tokens, but the model's context is 24; shorten it"),
        (
            [1],
            {"target": [13]},
            "target: contains a token id outside the vocabulary of 13; is it the model's own tokenizer?",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_at_once(prompt: Any, options: dict[str, Any], message: str) -> None:
    engine = Engine(loaded("transformer"))
    with pytest.raises(ArchetypeError) as caught:
        engine.submit(prompt, **options)
    assert str(caught.value) == message and engine.stats().waiting == 0


def test_what_needs_a_decoder_is_refused() -> None:
    lm = loaded("transformer")
    with pytest.raises(ArchetypeError, match="model: an encoder-decoder cannot score a text without its"):
        Engine(lm).score([[1]])
    with pytest.raises(ArchetypeError, match="model: the state cannot be rolled back after a rejected draft"):
        Engine(lm, lookup=True)
    with pytest.raises(ArchetypeError, match="tokenizer: the model's folder has no tokenizer"):
        Engine(LanguageModel(lm.spec, lm.model)).submit([1])
    assert Engine(LanguageModel(lm.spec, lm.model, special={"decoder_start_token_id": 3})).submit([1]).window == [3]
